"""A draft that reports another law than it drew from."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, Proposer
from draftproof.verify.controls.wrapper import Wrapper


class Reported(Wrapper):
    """
    A proposer whose report is changed.

    Parameters
    ----------
    proposer : Proposer
        One that reports distributions; a report of point masses stays.
    change : callable, Tensor of shape (B, K, V) to another of that shape, or None
        None: report a point mass for each token, however it was drawn. That is lossless: given the token, it is accepted
        with the target's probability of it, and else the target's law without it is drawn from.
    """

    def __init__(self, proposer: Proposer, change: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__(proposer)
        self._change = change

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        proposal = super().propose(rows, limits)
        if proposal.probs is None:
            return proposal
        return replace(proposal, probs=self._change(proposal.probs) if self._change else None)
