"""Propose with the target's own first layers, on the target's own cache."""

from collections.abc import Sequence

from torch import Tensor

from draftproof.decoding.batch import Row, slot_of
from draftproof.decoding.model import CachedModel
from draftproof.decoding.proposers.base import Proposal, ProposerContext, unbound_copy
from draftproof.decoding.proposers.stepwise import Feed, draw_stepwise, last_logits, require_threshold
from draftproof.errors import InputError, ModelError


class EarlyExit:
    """
    The first layers of the target, then its final norm and head.

    Parameters
    ----------
    layer : int, 1 or more, below the target's number of layers
        Layers that run.
    confidence_threshold : float, [0, 1)
        Stop drafting where the most likely token has less than this probability.

    Raises
    ------
    InputError
        A value is out of its range.
    ModelError
        The target's code always runs all of its layers.

    Notes
    -----
    It needs no memory of its own: drafted tokens write the lower layers' keys where the target's pass will write them again,
    and are taken back before it. Source: Zhang et al., "Draft & Verify", arXiv:2309.08168, and Elhoushi et al.,
    "LayerSkip", arXiv:2404.16710.
    """

    def __init__(self, layer: int, confidence_threshold: float = 0.0) -> None:
        if not isinstance(layer, int) or layer < 1:
            raise InputError(f"early exit after layer {layer}: allowed 1 or more, whole numbers")
        require_threshold(confidence_threshold)
        self.layer, self.confidence_threshold = layer, confidence_threshold

    def __deepcopy__(self, memo: dict[int, object]) -> "EarlyExit":
        return unbound_copy(self, memo, bound=("_context", "_target"))

    def bind(self, context: ProposerContext) -> None:
        """Take the target's passes, and see that they can stop early."""
        target = context.target
        if not isinstance(target, CachedModel):
            raise ModelError("early exit needs a target with layers; use another proposer with this engine")
        if self.layer >= target.num_layers:
            raise InputError(
                f"early exit after layer {self.layer}: allowed 1 to {target.num_layers - 1} with this target"
            )
        if not target.stops_at(self.layer):
            raise ModelError(
                f"{type(target.model).__name__} always runs all of its layers, so it has no early exit; "
                "use a draft model or prompt lookup"
            )
        self._context, self._target = context, target

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        slots = [slot_of(row) for row in rows]
        before = [self._target.row_len[slot] for slot in slots]
        feeds = {index: [row.token_ids[-1]] for index, row in enumerate(rows) if limits[index]}

        def score(blocks: dict[int, Feed]) -> Tensor:
            logits = self._target.score({slots[index]: block for index, block in blocks.items()}, self.layer)
            return last_logits(logits, [len(block) for block in blocks.values()])

        try:
            return draw_stepwise(self._context, rows, limits, feeds, score, self.confidence_threshold)
        finally:
            for slot, length in zip(slots, before, strict=True):
                self._target.roll_back(slot, self._target.row_len[slot] - length)
                # what the drafts wrote may not be finite, and the target's pass may be shorter
                self._target.scrub_tail(slot)

    def release(self, slot: int) -> None:
        """Nothing is kept."""
