"""Wrong roll-backs: the target goes on from tokens that were not kept, or without one that was."""

from draftproof.decoding.loop import RollBack
from draftproof.decoding.target import Target


class Miscounted:
    """
    A roll-back by ``error`` tokens more than it was asked for, where it was asked for any.

    Parameters
    ----------
    roll_back : callable
        The correct one.
    error : int
    """

    def __init__(self, roll_back: RollBack, error: int) -> None:
        self._roll_back, self._error = roll_back, error

    def __call__(self, target: Target, slot: int, num_tokens: int) -> None:
        """Take back some other number of tokens."""
        self._roll_back(target, slot, num_tokens + self._error if num_tokens else 0)


class Forgotten:
    """No roll-back at all: every rejected token stays in the target's cache."""

    def __init__(self, roll_back: RollBack) -> None:
        self._roll_back = roll_back

    def __call__(self, target: Target, slot: int, num_tokens: int) -> None:
        """Take nothing back."""
        self._roll_back(target, slot, 0)
