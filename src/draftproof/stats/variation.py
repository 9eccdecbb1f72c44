"""
Total variation between what was emitted and what the target says, with an upper bound.

Knows cells and their probabilities. Does not know tokens, vocabularies or how the cells were chosen; the cells must be
fixed before the token is seen.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

SUM_TOLERANCE = 1e-4  # cell probabilities are sums of float32 probabilities


@dataclass(frozen=True, slots=True)
class TVResult:
    """Total variation, averaged over contexts; ``None`` when there were no tokens."""

    estimate: float | None  # in [0, 1]
    upper_bound: float | None  # in [0, 1], one-sided
    tokens: int


def total_variation(frequencies: ArrayLike, probabilities: ArrayLike) -> float:
    """
    Return half the sum of the absolute differences of two distributions.

    Parameters
    ----------
    frequencies, probabilities : array_like, shape (m,)
        Not negative, sum to 1 within ``SUM_TOLERANCE``.

    Returns
    -------
    float
        In the interval ``[0, 1]``, but for rounding.

    Raises
    ------
    ValueError
        The shapes differ, or an input is not a distribution.

    Examples
    --------
    >>> total_variation([0.5, 0.5], [0.75, 0.25])
    0.25
    """
    left = np.asarray(frequencies, dtype=np.float64)
    right = np.asarray(probabilities, dtype=np.float64)
    if left.ndim != 1 or left.shape != right.shape:
        raise ValueError(f"both distributions must have one shape (m,), got {left.shape} and {right.shape}")
    for name, row in (("frequencies", left), ("probabilities", right)):
        if not (row >= 0.0).all() or not abs(float(row.sum()) - 1.0) <= SUM_TOLERANCE:
            raise ValueError(f"{name} must be non-negative and sum to 1 within {SUM_TOLERANCE}, got {row.sum()}")
    return 0.5 * float(np.abs(left - right).sum())


def tv_upper_bound(tv_estimate: float, cells: int, tokens: int, alpha: float) -> float:
    """
    Return the one-sided upper confidence bound of a pooled total variation.

    Parameters
    ----------
    tv_estimate : float
        Between the frequencies and the mean probabilities, ``0 <= tv_estimate <= 1``.
    cells : int
        ``m``, at least 1.
    tokens : int
        ``N``, at least 1; they may depend on each other through their prefixes.
    alpha : float
        The probability that the bound is below the truth; must be in the interval ``0 < alpha < 1``.

    Returns
    -------
    float
        ``tv_estimate + sqrt((m ln 2 + ln(1/alpha)) / (2 N))``, at most 1.

    Raises
    ------
    ValueError
        An argument is outside its interval.

    Notes
    -----
    Azuma-Hoeffding [1]_ for each of the ``2**m`` sets of cells, and a union bound. No asymptotics: it holds at every
    ``N``. It bounds the deviation averaged over contexts; opposite errors in different contexts can cancel, so it
    must never stand alone. Held by: tests/stats/test_stats_variation.py.

    References
    ----------
    .. [1] Azuma, "Weighted sums of certain dependent random variables", 1967.
    """
    if not 0.0 <= tv_estimate <= 1.0:
        raise ValueError(f"tv_estimate must be in the interval [0, 1], got {tv_estimate}")
    if cells < 1 or tokens < 1:
        raise ValueError(f"cells and tokens must be at least 1, got {cells} and {tokens}")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must be in the interval 0 < alpha < 1, got {alpha}")
    margin = math.sqrt((cells * math.log(2.0) - math.log(alpha)) / (2.0 * tokens))
    return min(1.0, tv_estimate + margin)


def pooled_tv(cells_observed: ArrayLike, cell_probs: ArrayLike, alpha: float = 0.05) -> TVResult:
    """
    Return the total variation pooled over tokens with different contexts, and its upper bound.

    Parameters
    ----------
    cells_observed : array_like, shape (N,), integers
        The cell of each emitted token, in ``[0, m)``.
    cell_probs : array_like, shape (N, m)
        The target's probability of each cell at that token; rows sum to 1 within ``SUM_TOLERANCE``.
    alpha : float
        The probability that the bound is below the truth; must be in the interval ``0 < alpha < 1``.

    Returns
    -------
    TVResult
        Frequencies of the cells against the mean of the rows. Without tokens both numbers are ``None``.

    Raises
    ------
    ValueError
        The shapes do not fit, a cell is out of range, or a row is not a distribution.

    Notes
    -----
    See ``tv_upper_bound``. Cost: O(N m).
    """
    observed = np.asarray(cells_observed)
    probs = np.asarray(cell_probs, dtype=np.float64)
    if observed.ndim != 1 or probs.ndim != 2 or probs.shape[0] != observed.size:
        raise ValueError(f"shapes must be (N,) and (N, m), got {observed.shape} and {probs.shape}")
    num_tokens, num_cells = probs.shape
    if num_tokens == 0:
        return TVResult(estimate=None, upper_bound=None, tokens=0)
    if not np.issubdtype(observed.dtype, np.integer) or observed.min() < 0 or observed.max() >= num_cells:
        raise ValueError(f"cells_observed must be integers in [0, {num_cells})")
    if not (probs >= 0.0).all() or not (np.abs(probs.sum(axis=1) - 1.0) <= SUM_TOLERANCE).all():
        raise ValueError(f"rows of cell_probs must be non-negative and sum to 1 within {SUM_TOLERANCE}")
    frequencies = np.bincount(observed, minlength=num_cells) / num_tokens
    estimate = min(1.0, total_variation(frequencies, probs.mean(axis=0)))
    bound = tv_upper_bound(estimate, cells=num_cells, tokens=num_tokens, alpha=alpha)
    return TVResult(estimate=estimate, upper_bound=bound, tokens=num_tokens)
