"""A draft model's own cache, kept in step with what it is given to read; draws from it token by token."""

from collections.abc import Callable, Sequence
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftproof.decoding.batch import Row, slot_of
from draftproof.decoding.model import CachedModel, context_limit
from draftproof.decoding.proposers.base import Proposal, ProposerContext
from draftproof.decoding.proposers.stepwise import Feed, draw_stepwise, last_logits, sound
from draftproof.decoding.shapes import measure_shapes

CATCH_UP = 2


class DraftCache:
    """
    A draft model and what it has read in each slot.

    Parameters
    ----------
    model : PreTrainedModel
    context : ProposerContext
    max_len : int
        Longest sequence in the draft's tokens; the draft's own context limit may be shorter.

    Notes
    -----
    What the cache holds for a slot is compared with what is to be read at each round, and everything after their common
    prefix is taken back. So full acceptance, rejection, and rounds in which the proposer was not asked need no
    bookkeeping of their own.
    """

    def __init__(self, model: PreTrainedModel, context: ProposerContext, max_len: int) -> None:
        self._context = context
        self.cached = CachedModel(
            model, num_slots=context.num_slots, max_len=context_limit(model, max_len), block=CATCH_UP
        )
        measure_shapes(self.cached)
        self._held: list[list[int]] = [[] for _ in range(context.num_slots)]

    def draft(
        self,
        rows: Sequence[Row],
        limits: Sequence[int],
        texts: Sequence[list[int]],
        confidence: float,
        *,
        to_target: Callable[[Tensor], Tensor] = lambda logits: logits,
        to_draft: Tensor | None = None,
    ) -> Proposal:
        """
        Draw up to ``limits[i]`` tokens to follow row i.

        Parameters
        ----------
        texts : sequence of lists of int
            What each row has committed, in the draft's ids. A row gets no tokens where this is empty, is at the draft's
            context limit, or holds an id that the draft has no embedding for.
        confidence : float
            As for `draw_stepwise`.
        to_target : callable
            From the draft's logits, shape (rows, V of the draft), to those of the target's ids.
        to_draft : Tensor, shape (V of the target,), int64, or None
            The draft's id for each drafted one; None where they are the same.

        Raises
        ------
        ValueError
            A row's logits were not finite before anything was drawn for it; its slot is empty then.
        """
        wanted = [min(limit, self._room(text)) for limit, text in zip(limits, texts, strict=True)]
        feeds = {
            index: self._catch_up(slot_of(row), texts[index]) for index, row in enumerate(rows) if wanted[index] > 0
        }

        scored: list[tuple[list[int], Tensor]] = []

        def score(blocks: dict[int, Feed]) -> Tensor:
            logits = self.cached.score({slot_of(rows[index]): block for index, block in blocks.items()})
            last = last_logits(logits, [len(block) for block in blocks.values()])
            scored.append((list(blocks), sound(last).to(self._context.device)))
            return to_target(last)

        proposal = draw_stepwise(self._context, rows, wanted, feeds, score, confidence, to_draft)
        read = proposal.token_ids if to_draft is None else to_draft[proposal.token_ids]
        # read once: what was drawn, and for each pass which rows' logits were finite
        told = iter(torch.cat([read.flatten(), *(fine for _, fine in scored)]).tolist())
        tokens = [list(islice(told, read.shape[1])) for _ in rows]
        num_passes, broken = dict.fromkeys(feeds, 0), dict[int, int]()
        for indices, _ in scored:
            for index, fine in zip(indices, told, strict=False):
                num_passes[index] += 1
                if not fine:
                    broken.setdefault(index, num_passes[index])
        for index, feed in feeds.items():
            slot = slot_of(rows[index])
            if index not in broken:
                self._held[slot] += [*feed, *tokens[index][: num_passes[index] - 1]]
            elif broken[index] == 1:
                self.release(slot)
            else:
                # what was drawn before stays: to drop it would be to choose by what was drawn
                self._scrub(slot)
        if 1 in broken.values():
            raise ValueError("the draft's logits are not finite")
        return proposal

    def release(self, slot: int) -> None:
        """Empty the slot."""
        self._held[slot] = []
        self.cached.release(slot)

    def _scrub(self, slot: int) -> None:
        """Leave no trace of what was read since the last round: keys that are not finite leak through a mask."""
        self.cached.roll_back(slot, self.cached.row_len[slot] - len(self._held[slot]))
        self.cached.scrub_tail(slot)

    def _room(self, text: Sequence[int]) -> int:
        if not text or max(text) >= self.cached.vocab_size:
            return 0
        return max(0, self.cached.max_len - len(text))

    def _catch_up(self, slot: int, tokens: list[int]) -> list[int]:
        """Make the cache agree with these tokens but for the last one or two, and return those."""
        held = self._held[slot]
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
