"""A draft that draws from another law than it reports."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from draftproof.decoding.proposers.base import Proposer, ProposerContext
from draftproof.sampling.accept import Keys
from draftproof.sampling.draw import Drawing, draw_alone
from draftproof.sampling.noise import Noise
from draftproof.verify.controls.temper import tempered
from draftproof.verify.controls.wrapper import Wrapper


class Redrawn(Wrapper):
    """A proposer whose way of drawing is replaced; what it reports stays."""

    def __init__(self, proposer: Proposer, draw: Drawing) -> None:
        super().__init__(proposer)
        self._draw = draw

    def bind(self, context: ProposerContext) -> None:
        """See `Proposer.bind`."""
        super().bind(replace(context, draw=self._draw))


def most_likely(probs: Tensor, keys: Keys, positions: Sequence[int], noise: Noise) -> Tensor:
    """Take the most likely token; see `Drawing`."""
    return probs.argmax(-1)


def from_tempered(temperature: float) -> Drawing:
    """Draw at another temperature."""

    def draw(probs: Tensor, keys: Keys, positions: Sequence[int], noise: Noise) -> Tensor:
        return draw_alone(tempered(probs, temperature), keys, positions, noise)

    return draw
