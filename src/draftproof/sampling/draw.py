"""Draw a token from a distribution with given random numbers, and how a proposer takes them."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from draftproof.sampling.noise import Noise, Purpose
from draftproof.sampling.upload import upload


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """
    Return the token at which the cumulative distribution first exceeds the uniform number.

    Parameters
    ----------
    probs : Tensor, shape (B, V), float64
        Non-negative; rows need not sum to 1.
    uniform : Tensor, shape (B,), float64
        In [0, 1).

    Returns
    -------
    Tensor, shape (B,), int64
        Never a token of probability 0 when the row has any mass.
    """
    cumulative = probs.cumsum(-1)
    wanted = upload(uniform, probs.device)[:, None] * cumulative[:, -1:]
    token_ids = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    # rounding of the product can only reach the total, one step beyond the last token that has mass
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous(), right=False)[:, 0]
    return torch.minimum(token_ids, last)


def race(probs: Tensor, exponentials: Tensor) -> Tensor:
    """
    Return the token whose exponential number, divided by its probability, is smallest.

    Parameters
    ----------
    probs : Tensor, shape (..., V), float64
        Non-negative; rows need not sum to 1.
    exponentials : Tensor, shape (..., V), float64
        Above 0.

    Returns
    -------
    Tensor, shape (...), int64
        Never a token of probability 0 when the row has any mass. The same as argmax(log probs + Gumbel noise).
    """
    return (exponentials / probs).argmin(-1)


class Drawing(Protocol):
    """How a proposer draws its tokens."""

    def __call__(
        self, probs: Tensor, keys: Sequence[tuple[int, int]], positions: Sequence[int], noise: Noise
    ) -> Tensor:
        """
        Return one token for each row, shape (B,), int64.

        Parameters
        ----------
        probs : Tensor, shape (B, V), float64
        keys : sequence of (seed, sample index)
        positions : sequence of int
            Index of each row's token.
        noise : Noise
        """
        ...


def draw_alone(probs: Tensor, keys: Sequence[tuple[int, int]], positions: Sequence[int], noise: Noise) -> Tensor:
    """Draw with numbers that nothing else uses, as the rejection rule needs it; see `Drawing`."""
    return draw(probs, noise.uniform(keys, positions, Purpose.DRAFT, 1)[:, 0])


def draw_shared(probs: Tensor, keys: Sequence[tuple[int, int]], positions: Sequence[int], noise: Noise) -> Tensor:
    """Draw with the very numbers that the target will use, so that both choose alike; see `Drawing`."""
    return race(probs, noise.exponential(keys, positions, 1, probs.shape[-1], probs.device)[:, 0])
