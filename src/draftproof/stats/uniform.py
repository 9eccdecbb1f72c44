"""
Tokens as uniform numbers, and whether those numbers depend on each other.

Under the target's law the transformed tokens are independent and uniform whatever the contexts were, so a random stream
that is used twice shows as a correlation.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from draftproof.stats.score import ScoreResult


def randomised_pit(cells: ArrayLike, probs: ArrayLike, seed: int) -> NDArray[np.float64]:
    """
    Return ``F(y-) + v p(y)`` for each token y: its place in the law's cumulative sum, spread evenly within its cell.

    Parameters
    ----------
    cells : array_like, shape (N,), integers
        The cell of each emitted token, in ``[0, m)``.
    probs : array_like, shape (N, m)
        The target's probability of each cell; rows are normalised.
    seed : int
        Of the uniform v. The same input and seed give the same result.

    Returns
    -------
    ndarray, shape (N,), float64
        In ``[0, 1]``. Independent and uniform if each token was drawn from its law given all before it.

    Notes
    -----
    The randomised probability integral transform [1]_. Cells are taken in the order of their columns.
    Held by: tests/stats/test_stats_uniform.py.

    References
    ----------
    .. [1] Brockwell, "Universal residuals: a multivariate transformation", Statistics and Probability Letters 77, 2007.
    """
    observed, laws = np.asarray(cells), np.asarray(probs, dtype=np.float64)
    if laws.ndim != 2 or observed.shape != laws.shape[:1]:
        raise ValueError(f"shapes must be (N,) and (N, m), got {observed.shape} and {laws.shape}")
    ends = np.cumsum(laws, axis=1)
    at = np.arange(observed.size)
    share = np.random.default_rng(seed).random(observed.size)
    inside = laws[at, observed]
    below = ends[at, observed] - inside
    places: NDArray[np.float64] = np.clip((below + share * inside) / ends[:, -1], 0.0, 1.0)
    return places


def uniform_correlation(left: ArrayLike, right: ArrayLike) -> ScoreResult:
    """
    Test whether pairs of uniform numbers are uncorrelated.

    Parameters
    ----------
    left, right : array_like, shape (n,)
        In ``[0, 1]``. A number may be in several pairs, as long as no two pairs are the same two numbers.

    Returns
    -------
    ScoreResult
        ``z = 12 sum (left - 1/2) (right - 1/2) / sqrt(n)``; ``None`` without pairs.

    Raises
    ------
    ValueError
        The shapes differ, or a number is outside ``[0, 1]``.

    Notes
    -----
    A uniform number has variance 1/12, and products of different pairs are uncorrelated, so ``z`` has mean 0 and variance
    exactly 1 when all numbers are independent; its normal law is asymptotic in n. Cost: O(n).
    Held by: tests/stats/test_stats_uniform.py.

    Examples
    --------
    >>> uniform_correlation([1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]).z
    6.0
    """
    first, second = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"left and right must have one shape (n,), got {first.shape} and {second.shape}")
    if not all(((row >= 0.0) & (row <= 1.0)).all() for row in (first, second)):
        raise ValueError("the numbers must be in the interval [0, 1]")
    if first.size == 0:
        return ScoreResult(z=None, p_value=None, n=0)
    z = 12.0 * float(((first - 0.5) * (second - 0.5)).sum()) / math.sqrt(first.size)
    return ScoreResult(z=z, p_value=float(2.0 * norm.sf(abs(z))), n=first.size)
