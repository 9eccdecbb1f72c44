"""Propose with a smaller model, token by token, from the law that the request asks for."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftproof.decoding.batch import Row
from draftproof.decoding.model import CachedModel
from draftproof.decoding.proposers.base import Proposal, ProposerContext
from draftproof.decoding.shapes import measure_shapes
from draftproof.errors import ModelError
from draftproof.sampling.law import token_law

CATCH_UP = 2


class DraftModel:
    """
    A draft model with its own cache.

    Parameters
    ----------
    model : str or PreTrainedModel
        A name or path (the engine loads it and compares its tokenizer with the target's), or a model in memory.

    Notes
    -----
    What the cache holds for a slot is compared with the row's tokens at each round, and everything after their common
    prefix is taken back. So full acceptance, rejection, and rounds in which this proposer was not asked need no
    bookkeeping of their own.
    """

    def __init__(self, model: str | PreTrainedModel) -> None:
        self.source = model

    def load(self, loader: Callable[[str], PreTrainedModel]) -> None:
        """Load the model if it was given by name."""
        if isinstance(self.source, str):
            self.source = loader(self.source)

    def bind(self, context: ProposerContext) -> None:
        """Allocate the cache and measure the pass shapes."""
        if isinstance(self.source, str):
            raise ModelError(f"draft model '{self.source}' is not loaded; use Engine.from_pretrained, or give a model")
        limit = int(getattr(self.source.config, "max_position_embeddings", context.max_len))
        self._context = context
        self.cached = CachedModel(
            self.source, num_slots=context.num_slots, max_len=min(context.max_len, limit), block=CATCH_UP
        )
        self.shape_class = measure_shapes(self.cached)
        self._held: list[list[int]] = [[] for _ in range(context.num_slots)]

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`; a row at the draft's own context limit gets no tokens."""
        vocab_size, device = self._context.vocab_size, self._context.device
        room = [self.cached.max_len - len(row.token_ids) for row in rows]
        wanted = [max(0, min(limit, left)) for limit, left in zip(limits, room, strict=True)]
        width = max(wanted, default=0)
        token_ids = torch.zeros(len(rows), width, dtype=torch.int64, device=device)
        probs = torch.zeros(len(rows), width, vocab_size, dtype=torch.float64, device=device)
        feeds = {index: self._catch_up(row) for index, row in enumerate(rows) if wanted[index]}
        drafts: list[list[int]] = [[] for _ in rows]
        for step in range(width):
            active = [index for index in feeds if step < wanted[index]]
            blocks = {_slot(rows[index]): feeds[index] for index in active}
            if not blocks:
                break
            logits = self.cached.score(blocks)
            for slot, block in blocks.items():
                self._held[slot].extend(block)
            last = torch.tensor([len(feeds[index]) - 1 for index in active], device=logits.device)
            final = logits[torch.arange(len(active), device=logits.device), last]
            law = self._law(final, [rows[index] for index in active], [drafts[index] for index in active])
            keys = [rows[index].key for index in active]
            places = [rows[index].num_generated + step for index in active]
            drawn = self._context.draw(law, keys, places, self._context.noise)
            token_ids[active, step], probs[active, step] = drawn, law
            for index, token_id, has_law in zip(active, drawn.tolist(), law.any(-1).tolist(), strict=True):
                if has_law:
                    feeds[index] = [token_id]
                    drafts[index].append(token_id)
                else:
                    # nothing is allowed here: that is known before the draw, so the law stays exact
                    wanted[index] = step
        return Proposal(token_ids=token_ids, num_tokens=torch.tensor(wanted, device=device), probs=probs)

    def release(self, slot: int) -> None:
        """Empty the slot."""
        self._held[slot] = []
        self.cached.release(slot)

    def _catch_up(self, row: Row) -> list[int]:
        """Make the cache agree with the row but for the last one or two tokens, and return those."""
        slot, tokens, held = _slot(row), row.token_ids, self._held[_slot(row)]
        common = min(len(held), len(tokens) - 1)
        while held[:common] != tokens[:common]:
            common -= 1
        self.cached.roll_back(slot, len(held) - common)
        del held[common:]
        missing = tokens[common:]
        if len(missing) > CATCH_UP:
            early = missing[:-1]
            self.cached.prefill(slot, early)
            held.extend(early)
            missing = missing[-1:]
        return missing

    def _law(self, logits: Tensor, rows: Sequence[Row], drafts: Sequence[Sequence[int]]) -> Tensor:
        """Return the requests' law after their drafts, shape (rows, V)."""
        fitted = self._fit(logits, self._context.vocab_size).to(self._context.device)
        prefixes = [row.prefix() for row in rows]
        for prefix, draft in zip(prefixes, drafts, strict=True):
            prefix.token_ids = [*prefix.token_ids, *draft]
        return token_law(fitted[:, None], [row.params for row in rows], prefixes)[:, 0]

    @staticmethod
    def _fit(logits: Tensor, vocab_size: int) -> Tensor:
        """Ids that only one of the models has (vocabulary padding) are never proposed."""
        if logits.shape[-1] >= vocab_size:
            return logits[..., :vocab_size]
        return torch.nn.functional.pad(logits, (0, vocab_size - logits.shape[-1]), value=-torch.inf)


def _slot(row: Row) -> int:
    assert row.slot is not None
    return row.slot
