"""A proposer around another; those with a defect change what goes in or what comes out."""

from collections.abc import Sequence

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, Proposer, ProposerContext


class Wrapper:
    """
    Passes everything on, unchanged.

    Attributes
    ----------
    proposers : tuple of Proposer
        The one inside, where an engine finds the models that it is to load.
    """

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.proposers = (proposer,)

    def bind(self, context: ProposerContext) -> None:
        """See `Proposer.bind`."""
        self._proposer.bind(context)

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        return self._proposer.propose(rows, limits)

    def release(self, slot: int) -> None:
        """See `Proposer.release`."""
        self._proposer.release(slot)
