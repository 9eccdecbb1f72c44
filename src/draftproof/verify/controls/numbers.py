"""Random numbers that are used twice, or by the wrong row."""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof.sampling.accept import Keys
from draftproof.sampling.noise import Noise, Purpose


class Altered:
    """A source of noise that changes what is asked for; this one changes nothing."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise

    def uniform(self, keys: Keys, positions: Sequence[int], purpose: Purpose, count: int) -> Tensor:
        """See `Noise.uniform`."""
        return self._noise.uniform(keys, positions, purpose, count)

    def exponential(self, keys: Keys, positions: Sequence[int], count: int, size: int, device: torch.device) -> Tensor:
        """See `Noise.exponential`."""
        return self._noise.exponential(keys, positions, count, size, device)


class DraftsNumberAsCoin(Altered):
    """The coin of a drafted token is the number that it was drawn with."""

    def uniform(self, keys: Keys, positions: Sequence[int], purpose: Purpose, count: int) -> Tensor:
        """See `Noise.uniform`."""
        return super().uniform(keys, positions, Purpose.DRAFT if purpose is Purpose.ACCEPT else purpose, count)


class OneCoinPerRound(Altered):
    """All drafted tokens of a round are held against one coin."""

    def uniform(self, keys: Keys, positions: Sequence[int], purpose: Purpose, count: int) -> Tensor:
        """See `Noise.uniform`."""
        numbers = super().uniform(keys, positions, purpose, count)
        return numbers[:, :1].expand(-1, count) if purpose is Purpose.ACCEPT else numbers


class CoinAsCorrection(Altered):
    """After a rejection the token is drawn with the coin that rejected."""

    def uniform(self, keys: Keys, positions: Sequence[int], purpose: Purpose, count: int) -> Tensor:
        """See `Noise.uniform`."""
        return super().uniform(keys, positions, Purpose.ACCEPT if purpose is Purpose.CORRECTION else purpose, count)


class SameEveryRound(Altered):
    """The rule's numbers begin anew with each round of a request."""

    def uniform(self, keys: Keys, positions: Sequence[int], purpose: Purpose, count: int) -> Tensor:
        """See `Noise.uniform`."""
        places = positions if purpose is Purpose.DRAFT else [0] * len(positions)
        return super().uniform(keys, places, purpose, count)


class FirstRowsForAll(Altered):
    """Every row of a batch gets the first row's numbers."""

    def uniform(self, keys: Keys, positions: Sequence[int], purpose: Purpose, count: int) -> Tensor:
        """See `Noise.uniform`."""
        return super().uniform([keys[0]] * len(keys), positions, purpose, count)
