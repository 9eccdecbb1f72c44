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

from draftproof.sampling.upload import upload

Array = npt.NDArray[np.uint64]
# SplitMix64's constants; torch has no unsigned arithmetic, and these wrap to the same bits
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


class Purpose(IntEnum):
    """What a random number decides; two purposes at one position are independent."""

    DRAFT = 1
    ACCEPT = 2
    CORRECTION = 3
    TARGET = 4
    SHARED = 5


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

    def exponential(
        self, keys: Sequence[tuple[int, int]], positions: Sequence[int], count: int, size: int, device: torch.device
    ) -> Tensor:
        """
        Return one exponential number for each row, position and token of the vocabulary.

        Parameters
        ----------
        keys, positions, count
            As for `uniform`.
        size : int
            V.

        Returns
        -------
        Tensor, shape (B, count, V), float64, above 0
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
        state = _states(keys, positions, purpose, count)
        return torch.from_numpy((state >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def exponential(
        self, keys: Sequence[tuple[int, int]], positions: Sequence[int], count: int, size: int, device: torch.device
    ) -> Tensor:
        """See `Noise.exponential`: minus the logarithm of the middles of 2**52 equal parts of (0, 1)."""
        start = upload(torch.from_numpy(_states(keys, positions, Purpose.SHARED, count).view(np.int64)), device)
        # a SplitMix64 stream for each key: the state grows by the golden number from token to token
        stream = start[..., None] + torch.arange(size, device=device) * GOLDEN
        bits = _mix_in_place(stream).bitwise_right_shift_(12).bitwise_and_((1 << 52) - 1)
        return bits.to(torch.float64).add_(0.5).mul_(2.0**-52).log_().neg_()


def _states(
    keys: Sequence[tuple[int, int]], positions: Sequence[int], purpose: Purpose, count: int
) -> npt.NDArray[np.uint64]:
    key = np.array(keys, dtype=np.uint64).reshape(len(keys), 2)
    place = np.array(positions, dtype=np.uint64)[:, None] + np.arange(count, dtype=np.uint64)[None]
    state = _mix(key[:, :1])
    state = _mix(state ^ _mix(key[:, 1:] + np.uint64(0x51)))
    state = _mix(state ^ _mix(place + np.uint64(0xA7)))
    return _mix(state ^ _mix(np.array([int(purpose)], dtype=np.uint64)))


def _mix(value: Array) -> Array:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _mix_in_place(value: Tensor) -> Tensor:
    """Mix as `_mix` does, on a device and without temporaries that the size of a vocabulary would make costly."""
    shifted = torch.empty_like(value)

    def shift_in(bits: int) -> None:
        torch.bitwise_right_shift(value, bits, out=shifted)
        # the shift is arithmetic: clear what it drew in from the sign
        value.bitwise_xor_(shifted.bitwise_and_((1 << (64 - bits)) - 1))

    value.add_(GOLDEN)
    shift_in(30)
    value.mul_(MULTIPLIERS[0])
    shift_in(27)
    value.mul_(MULTIPLIERS[1])
    shift_in(31)
    return value
