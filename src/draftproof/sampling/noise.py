"""
Random numbers that belong to a place, not to a call: each is a function of (seed, sample index, position, purpose).

So a request's numbers do not depend on its batch row, on what else runs, or on how its tokens fell into rounds.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.uint64]


class Purpose(IntEnum):
    """What a random number decides; two purposes at one position are independent."""

    DRAFT = 1
    ACCEPT = 2
    CORRECTION = 3
    TARGET = 4


class Noise(Protocol):
    """A source of uniform numbers in [0, 1)."""

    def uniform(
        self, keys: Sequence[tuple[int, int]], positions: Sequence[int], purpose: Purpose, count: int
    ) -> Tensor:
        """
        Return ``count`` numbers per row, for positions ``positions[row] + 0 .. count - 1``.

        Parameters
        ----------
        keys : sequence of (seed, sample index), length B
        positions : sequence of int, length B
            Index of the first generated token concerned.
        purpose : Purpose
        count : int

        Returns
        -------
        Tensor, shape (B, count), float64, CPU
        """
        ...


class KeyedNoise:
    """
    A counter-based generator: the finaliser of SplitMix64, chained over the four parts of the key.

    Notes
    -----
    Values are multiples of 2**-53 in [0, 1); 1.0 is never produced. Source: [1]_, the ``mix64`` variant 13.
    Held by: tests/sampling/test_sampling_noise.py (uniformity, independence between neighbouring keys).

    References
    ----------
    .. [1] Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """

    def uniform(
        self, keys: Sequence[tuple[int, int]], positions: Sequence[int], purpose: Purpose, count: int
    ) -> Tensor:
        """See `Noise.uniform`."""
        key = np.array(keys, dtype=np.uint64).reshape(len(keys), 2)
        place = np.array(positions, dtype=np.uint64)[:, None] + np.arange(count, dtype=np.uint64)[None]
        state = _mix(key[:, :1])
        state = _mix(state ^ _mix(key[:, 1:] + np.uint64(0x51)))
        state = _mix(state ^ _mix(place + np.uint64(0xA7)))
        state = _mix(state ^ _mix(np.array([int(purpose)], dtype=np.uint64)))
        return torch.from_numpy((state >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix(value: Array) -> Array:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
