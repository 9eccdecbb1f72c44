"""Propose with a smaller model, token by token, from the law that the request asks for."""

from collections.abc import Callable, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from draftproof.decoding.batch import Row
from draftproof.decoding.model import CachedModel, context_limit
from draftproof.decoding.proposers.base import Proposal, ProposerContext
from draftproof.decoding.proposers.stepwise import draw_stepwise, last_logits
from draftproof.decoding.shapes import measure_shapes
from draftproof.errors import InputError, ModelError

CATCH_UP = 2


class DraftModel:
    """
    A draft model with its own cache.

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

    Notes
    -----
    What the cache holds for a slot is compared with the row's tokens at each round, and everything after their common
    prefix is taken back. So full acceptance, rejection, and rounds in which this proposer was not asked need no
    bookkeeping of their own.
    """

    def __init__(self, model: str | PreTrainedModel, confidence_threshold: float = 0.0) -> None:
        if not 0 <= confidence_threshold < 1:
            raise InputError(f"confidence_threshold = {confidence_threshold}: allowed 0 up to, not including, 1")
        self.source, self.confidence_threshold = model, confidence_threshold

    def __deepcopy__(self, memo: dict[int, object]) -> "DraftModel":
        # for another engine: the same weights, bound to nothing yet
        return DraftModel(self.source, self.confidence_threshold)

    def load(self, loader: Callable[[str], PreTrainedModel]) -> None:
        """Load the model if it was given by name."""
        if isinstance(self.source, str):
            self.source = loader(self.source)

    def bind(self, context: ProposerContext) -> None:
        """Allocate the cache and measure the pass shapes."""
        if isinstance(self.source, str):
            raise ModelError(f"draft model '{self.source}' is not loaded; use Engine.from_pretrained, or give a model")
        self._context = context
        limit = context_limit(self.source, context.max_len)
        self.cached = CachedModel(self.source, num_slots=context.num_slots, max_len=limit, block=CATCH_UP)
        self.shape_class = measure_shapes(self.cached)
        self._held: list[list[int]] = [[] for _ in range(context.num_slots)]

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`; a row at the draft's own context limit gets no tokens."""
        room = [self.cached.max_len - len(row.token_ids) for row in rows]
        wanted = [max(0, min(limit, left)) for limit, left in zip(limits, room, strict=True)]
        if self.cached.vocab_size < self._context.vocab_size:
            for index, row in enumerate(rows):
                # a token that the draft has no embedding for
                if max(row.token_ids) >= self.cached.vocab_size:
                    wanted[index] = 0
        feeds = {index: self._catch_up(row) for index, row in enumerate(rows) if wanted[index]}

        def score(blocks: dict[int, list[int]]) -> Tensor:
            logits = self.cached.score({_slot(rows[index]): block for index, block in blocks.items()})
            for index, block in blocks.items():
                self._held[_slot(rows[index])].extend(block)
            return last_logits(logits, [len(block) for block in blocks.values()])

        return draw_stepwise(self._context, rows, wanted, feeds, score, self.confidence_threshold)

    def release(self, slot: int) -> None:
        """Empty the slot."""
        self._held[slot] = []
        self.cached.release(slot)

    def _catch_up(self, row: Row) -> list[int]:
        """Make the cache agree with the row but for the last one or two tokens, and return those."""
        slot, tokens, held = _slot(row), row.token_ids, self._held[_slot(row)]
        # a pass that raised may have left more behind than was noted
        self.cached.roll_back(slot, self.cached.row_len[slot] - len(held))
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


def _slot(row: Row) -> int:
    assert row.slot is not None
    return row.slot
