"""
What the rounds of a finished request would have been with another number of drafted tokens.

Knows counts of tokens. Does not know tokens, models or times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class RoundCount(NamedTuple):
    """What one round did."""

    proposed: int  # draft tokens
    accepted: int  # the leading ones that the target kept
    emitted: int  # tokens that entered the output


class Rounds(NamedTuple):
    """How many rounds a request takes; expected numbers where a chance is in them."""

    idle: float  # rounds that drafted nothing
    drafting: float  # rounds that drafted something
    drafted: float  # draft tokens over all rounds


@dataclass(frozen=True, slots=True)
class Trace:
    """
    What a request's rounds tell about drafting each token of its output.

    Attributes
    ----------
    acceptance : tuple of float, one per token
        Chance that a draft is accepted at this place, if it was accepted up to it: 1 or 0 where it was seen.
    began : tuple of int or None, one per token
        Tokens that the round drafted which began here; None where no round began.
    wanted : int
        K of the rounds that were seen.
    cut : bool
        Whether the request ended because it had as many tokens as it may have, so that its last drafts are short.
    """

    acceptance: tuple[float, ...]
    began: tuple[int | None, ...]
    wanted: int
    cut: bool

    def at(self, num_speculative_tokens: int) -> Rounds:
        """
        Return the rounds that the same output takes with another k.

        Parameters
        ----------
        num_speculative_tokens : int, 1 or more
            k.

        Returns
        -------
        Rounds
            At k = K those that were seen.

        Notes
        -----
        A round accepts up to the first place at which a draft was refused, and then takes one token from the target; the
        next one begins behind it. So runs of accepted tokens stay as long as they were, which a formula in the acceptance by
        position does not keep: that of rounds with another k is another one. Expected counts from each place on, the last
        first; cost: O(tokens * k).
        """
        size = len(self.acceptance)
        idle, drafting, drafted = [0.0] * (size + 1), [0.0] * (size + 1), [0.0] * (size + 1)
        for place in range(size - 1, -1, -1):
            count = self._drafts(place, num_speculative_tokens)
            idle[place], drafting[place], drafted[place] = float(count == 0), float(count > 0), float(count)
            reached = 1.0
            for step in range(count + 1):
                after = place + step + 1
                if after > size:
                    break
                # a draft that was accepted whole is followed by a token of the target, whatever that is
                stops = reached if step == count else reached * (1.0 - self.acceptance[place + step])
                idle[place] += stops * idle[after]
                drafting[place] += stops * drafting[after]
                drafted[place] += stops * drafted[after]
                reached -= stops
                if reached <= 0.0:
                    break
        return Rounds(idle[0], drafting[0], drafted[0])

    def _drafts(self, place: int, wanted: int) -> int:
        room = len(self.acceptance) - place - 1 if self.cut else wanted
        seen = self.began[place]
        if seen is None or seen >= min(self.wanted, room):
            return min(wanted, room)
        return min(wanted, room, seen)


def trace(rounds: Sequence[RoundCount], num_speculative_tokens: int, bonus_acceptance: float, *, cut: bool) -> Trace:
    """
    Read what a request's rounds tell about each token.

    Parameters
    ----------
    rounds : sequence of RoundCount
        In order.
    num_speculative_tokens : int
        K, with which they were run.
    bonus_acceptance : float, [0, 1]
        Chance that a longer draft would have been accepted where a bonus token came from the target: nothing was drafted
        there, so it is the one thing that the rounds cannot tell.
    cut : bool
        Whether the request ended at its largest number of tokens.
    """
    acceptance: list[float] = []
    began: list[int | None] = []
    for index, item in enumerate(rounds):
        last = 0.0
        if item.proposed and item.accepted == item.proposed:
            following = rounds[index + 1] if index + 1 < len(rounds) else None
            # where the next round found nothing to draft, a longer draft would have had nothing either
            ended = following is not None and following.proposed == 0 and index + 2 < len(rounds)
            last = 0.0 if ended else bonus_acceptance
        acceptance += [*[1.0] * item.accepted, last][: item.emitted]
        began += [item.proposed, *[None] * (item.emitted - 1)] if item.emitted else []
    return Trace(tuple(acceptance), tuple(began), num_speculative_tokens, cut)
