"""Propose with a smaller model that has another vocabulary, through the tokens that both have."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftproof.decoding.batch import Row, slot_of
from draftproof.decoding.proposers.base import Proposal, ProposerContext, unbound_copy
from draftproof.decoding.proposers.draft_cache import DraftCache
from draftproof.decoding.proposers.pieces import shared_tokens, token_pieces
from draftproof.decoding.proposers.rendering import Reader, Rendering, drops_first_space
from draftproof.decoding.proposers.stepwise import require_threshold
from draftproof.errors import InputError, ModelError

BOUND = (
    *("_pieces", "_drops_first_space", "_reader", "_cache", "cached", "_target_ids", "_draft_ids", "_to_draft"),
    *("_vocab_size", "_renderings"),
)
"""What `CrossTokenizer.bind` makes."""


class CrossTokenizer:
    """
    A draft model whose vocabulary is not the target's.

    Parameters
    ----------
    model : str or PreTrainedModel
        A name or path (the engine loads it with its tokenizer), or a model in memory.
    tokenizer : PreTrainedTokenizerBase or None
        The tokenizer of a model in memory.
    confidence_threshold : float, [0, 1)
        Stop drafting where the draft's most likely shared token has less than this probability; see `DraftModel`.

    Raises
    ------
    InputError
        The threshold is out of its range, or a tokenizer is missing or given beside a name.

    Notes
    -----
    Token-level intersection (TLI): the draft's distribution is restricted to tokens whose exact bytes, or whose name as a special
    token, exist in both vocabularies, and renormalised. That is what is drawn from and what is reported, so the accept rule needs
    nothing new. Where it has no mass there, the row's draft ends. The draft reads the committed text in its own tokens, and
    each drafted token as its own token of the same bytes.

    Source: Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
    Vocabularies", arXiv:2502.05202. Held by: tests/decoding/test_decoding_cross_tokenizer.py.
    """

    stretch = 2
    """Tokens that the draft may need for one of the target's, in the mean over a text."""

    def __init__(
        self,
        model: str | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        confidence_threshold: float = 0.0,
    ) -> None:
        require_threshold(confidence_threshold)
        if isinstance(model, str) != (tokenizer is None):
            raise InputError(
                "CrossTokenizer takes a model's name alone, or a model in memory with its tokenizer; "
                f"got a {'name with a tokenizer' if isinstance(model, str) else 'model without one'}"
            )
        self.source, self.tokenizer, self.confidence_threshold = model, tokenizer, confidence_threshold

    def __deepcopy__(self, memo: dict[int, object]) -> "CrossTokenizer":
        return unbound_copy(self, memo, shared=("source", "tokenizer"), bound=BOUND)

    def load(self, loader: Callable[[str], tuple[PreTrainedModel, PreTrainedTokenizerBase]]) -> None:
        """Load the model and its tokenizer if it was given by name."""
        if isinstance(self.source, str):
            self.source, self.tokenizer = loader(self.source)

    def bind(self, context: ProposerContext) -> None:
        """
        Compare the vocabularies, allocate the cache and measure the pass shapes.

        Raises
        ------
        ModelError
            The model is not loaded, a tokenizer's tokens cannot be compared, or the vocabularies share next to nothing.
        """
        if isinstance(self.source, str):
            raise ModelError(f"draft model '{self.source}' is not loaded; use Engine.from_pretrained, or give a model")
        if context.tokenizer is None:
            raise ModelError("a draft with another vocabulary needs the target's tokenizer, and this engine gives none")
        self._pieces, own = token_pieces(context.tokenizer), token_pieces(self.tokenizer)
        self._drops_first_space = drops_first_space(context.tokenizer, self._pieces)
        self._reader = Reader(self.tokenizer, own)
        self._cache = DraftCache(self.source, context, self.stretch * context.max_len)
        self.cached = self._cache.cached
        shared = {
            target_id: draft_id
            for target_id, draft_id in shared_tokens(self._pieces, own).items()
            if target_id < context.vocab_size and draft_id < self.cached.vocab_size
        }
        device = self.cached.device
        self._target_ids = torch.tensor(list(shared), dtype=torch.int64, device=device)
        self._draft_ids = torch.tensor(list(shared.values()), dtype=torch.int64, device=device)
        # where no law gives mass there is nothing to read; any id will do
        self._to_draft = torch.zeros(context.vocab_size, dtype=torch.int64, device=context.device)
        self._to_draft[self._target_ids.to(context.device)] = self._draft_ids.to(context.device)
        self._vocab_size = context.vocab_size
        self._renderings: dict[int, Rendering] = {}

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`; a row gets no tokens at the draft's context limit, or where its text ends in half a character."""
        texts = [self._read(row) if limit else [] for row, limit in zip(rows, limits, strict=True)]
        return self._cache.draft(
            rows,
            limits,
            texts,
            self.confidence_threshold,
            to_target=self._shared_logits,
            to_draft=self._to_draft,
        )

    def release(self, slot: int) -> None:
        """Empty the slot and forget its text."""
        self._renderings.pop(slot, None)
        self._cache.release(slot)

    def _read(self, row: Row) -> list[int]:
        slot = slot_of(row)
        if slot not in self._renderings:
            self._renderings[slot] = Rendering(self._pieces, self._drops_first_space, self._reader)
        return self._renderings[slot].read(row.token_ids)

    def _shared_logits(self, logits: Tensor) -> Tensor:
        """Return (rows, V of the target): the draft's logits at the shared tokens, and no mass elsewhere."""
        shared = torch.full((len(logits), self._vocab_size), -torch.inf, dtype=logits.dtype, device=logits.device)
        shared[:, self._target_ids] = logits[:, self._draft_ids]
        return shared
