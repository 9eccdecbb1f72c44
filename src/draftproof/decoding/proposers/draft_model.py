"""Propose with a smaller model, token by token, from the law that the request asks for."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedModel

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, ProposerContext, unbound_copy
from draftproof.decoding.proposers.draft_cache import DraftCache
from draftproof.decoding.proposers.stepwise import require_threshold
from draftproof.errors import ModelError


class DraftModel:
    """
    A draft model with its own cache; its token ids are the target's.

    Parameters
    ----------
    model : str or PreTrainedModel
        A name or path (the engine loads it and compares its tokenizer with the target's), or a model in memory.
    confidence_threshold : float, [0, 1)
        Stop drafting where the draft's most likely token has less than this probability: a token that is likely to be
        refused costs a pass of the draft. Decided before the draw, so the law is kept.

    Raises
    ------
    InputError
        The threshold is out of its range.

    See Also
    --------
    CrossTokenizer : a draft model with another vocabulary.
    """

    stretch = 1
    """Tokens that the draft needs for one of the target's."""

    def __init__(self, model: str | PreTrainedModel, confidence_threshold: float = 0.0) -> None:
        require_threshold(confidence_threshold)
        self.source, self.confidence_threshold = model, confidence_threshold

    def __deepcopy__(self, memo: dict[int, object]) -> "DraftModel":
        return unbound_copy(self, memo, shared=("source",), bound=("_cache", "cached"))

    def load(self, loader: Callable[[str], PreTrainedModel]) -> None:
        """Load the model if it was given by name."""
        if isinstance(self.source, str):
            self.source = loader(self.source)

    def bind(self, context: ProposerContext) -> None:
        """Allocate the cache and measure the pass shapes."""
        if isinstance(self.source, str):
            raise ModelError(f"draft model '{self.source}' is not loaded; use Engine.from_pretrained, or give a model")
        self._cache = DraftCache(self.source, context, context.max_len)
        self.cached = self._cache.cached

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`; a row at the draft's own context limit gets no tokens."""
        return self._cache.draft(rows, limits, [row.token_ids for row in rows], self.confidence_threshold)

    def release(self, slot: int) -> None:
        """Empty the slot."""
        self._cache.release(slot)
