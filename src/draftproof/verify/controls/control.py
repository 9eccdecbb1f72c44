"""What a control is: one part of the round, replaced."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from draftproof.decoding.loop import RollBack, roll_back
from draftproof.decoding.proposers.base import Proposer
from draftproof.sampling.accept import AcceptRule, rejection
from draftproof.sampling.noise import KeyedNoise, Noise

Part = Literal["accept", "noise", "take_back", "proposer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a round that a control may replace, named as `Engine` names them; by default the correct ones."""

    proposer: Proposer | None
    accept: AcceptRule = rejection
    noise: Noise = field(default_factory=KeyedNoise)
    take_back: RollBack = roll_back


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """
    A change of one part.

    Attributes
    ----------
    name : str
        What is wrong, or different, in a few words.
    part : {"accept", "noise", "take_back", "proposer"}
        The argument of `Engine` that it goes to.
    kind : {"defect", "lossless", "slight"}
        A defect must be found. A lossless variant has the target's law and must not be found. A slight defect departs by less
        than the check is made to see, so either is right.
    stands_for : str
        The number it has in the project's protocol, and public reports of the same mistake.
    wrap : callable
        From the correct part to its replacement.
    needs_draft_law : bool
        Whether it is none where drafts are point masses, as prompt lookup's: it changes how they are drawn or reported.
    """

    name: str
    part: Part
    kind: Literal["defect", "lossless", "slight"]
    stands_for: str
    wrap: Callable[[Any], Any]
    needs_draft_law: bool = False

    def plant(self, parts: Parts) -> Parts:
        """Return the parts with this one's replaced."""
        return replace(parts, **{self.part: self.wrap(getattr(parts, self.part))})
