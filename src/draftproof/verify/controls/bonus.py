"""Wrong, or other, tokens after a whole draft."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftproof.sampling.accept import AcceptRule, Decision, Keys, Proposal
from draftproof.sampling.noise import Noise
from draftproof.verify.controls.rule import Block, target_after_draft
from draftproof.verify.controls.temper import tempered


def one_place_early(block: Block) -> Tensor:
    """Read the target's law before the last drafted token."""
    last = replace(block, num_tokens=(block.num_tokens - 1).clamp(min=0))
    return last.after_draft(block.target_probs)


def neighbours_target(block: Block) -> Tensor:
    """Take the target of the row before in the batch."""
    return target_after_draft(block).roll(1, 0)


def of_tempered(temperature: float) -> Callable[[Block], Tensor]:
    """Take the target at another temperature."""

    def bonus(block: Block) -> Tensor:
        return tempered(target_after_draft(block), temperature)

    return bonus


class LastOfDraft:
    """
    A rule that gives the last drafted token as the next one once ``open_end`` or fewer of the drafted are undecided.

    Parameters
    ----------
    rule : AcceptRule
        The correct one.
    open_end : int
        0: all drafted tokens were accepted, and no bonus is drawn. 1: the last is not judged, so it is a bonus from the draft.
    """

    def __init__(self, rule: AcceptRule, open_end: int) -> None:
        self._rule, self._open_end = rule, open_end

    def __call__(
        self, target_probs: Tensor, proposal: Proposal, keys: Keys, positions: Sequence[int], noise: Noise
    ) -> Decision:
        """See `AcceptRule.__call__`."""
        decision = self._rule(target_probs, proposal, keys, positions, noise)
        before_last = proposal.num_tokens - 1
        whole = (before_last >= 0) & (decision.num_accepted >= proposal.num_tokens - self._open_end)
        if not proposal.token_ids.shape[1]:
            return decision
        last = proposal.token_ids.gather(-1, before_last.clamp(min=0)[:, None])[:, 0]
        return Decision(
            num_accepted=torch.where(whole, before_last, decision.num_accepted),
            next_token_ids=torch.where(whole, last, decision.next_token_ids),
        )
