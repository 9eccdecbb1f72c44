"""
Quantiles with order-statistic intervals.

Does not know what the values are. They must be independent draws, or come in as many groups that are.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from draftproof.stats.interval import Interval


def min_sample_size(quantile: float, confidence: float) -> int:
    """
    Return the smallest sample for which a two-sided interval of a quantile is finite on both sides.

    Parameters
    ----------
    quantile : float
        Must be in the interval ``0 < quantile < 1``.
    confidence : float
        Of the two-sided interval, half the risk on each side; must be in the interval ``0 < confidence < 1``.

    Returns
    -------
    int
        At 0.95: 72 for the 95th percentile, 368 for the 99th.

    Raises
    ------
    ValueError
        An argument is outside its interval.

    Notes
    -----
    The extremes of ``n`` draws enclose the quantile on the far side with probability ``1 - max(q, 1 - q)**n``;
    that must reach ``1 - (1 - confidence) / 2``. Source: [1]_, section 3.2.

    References
    ----------
    .. [1] Conover, "Practical Nonparametric Statistics", 3rd edition, 1999.

    Examples
    --------
    >>> min_sample_size(0.99, 0.95)
    368
    """
    _check_open_unit("quantile", quantile)
    _check_open_unit("confidence", confidence)
    tail = (1.0 - confidence) / 2.0
    far_side = max(quantile, 1.0 - quantile)
    return max(1, math.ceil(math.log(tail) / math.log(far_side)))


def quantile_interval(
    values: ArrayLike, quantile: float, confidence: float = 0.95, num_draws: int | None = None
) -> Interval:
    """
    Return a quantile of the values and its order-statistic interval.

    Parameters
    ----------
    values : array_like, shape (n,)
        Independent draws, finite, any unit.
    quantile : float
        Must be in the interval ``0 < quantile < 1``.
    confidence : float
        Must be in the interval ``0 < confidence < 1``.
    num_draws : int or None
        How many independent draws the values come from, such as requests whose gaps are pooled; None: each is one.

    Returns
    -------
    Interval
        In the unit of the values. Below ``min_sample_size(quantile, confidence)`` draws all three are ``None``.

    Raises
    ------
    ValueError
        The values are not one-dimensional or not finite, or an argument is outside its interval.

    Notes
    -----
    The limits are two of the values, ``X_(r)`` and ``X_(s)``: with ``B ~ Binomial(n, quantile)``, ``r`` is the largest
    rank with ``P(B < r) <= a`` and ``s`` the smallest with ``P(B >= s) <= a``, ``a = (1 - confidence) / 2``.
    No distribution is assumed; coverage is at least ``confidence``, also with ties. Source: [1]_, section 3.2.
    Fewer draws than values: the ranks are those of as many draws, stretched over the values. That is exact where the values
    of a draw are equal and as many in each; the less they resemble one another, the wider than needed it is.
    The estimate interpolates linearly between order statistics. Cost: O(n log n).
    Held by: tests/stats/test_stats_quantile.py (coverage).

    References
    ----------
    .. [1] Conover, "Practical Nonparametric Statistics", 3rd edition, 1999.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1:
        raise ValueError(f"values must have shape (n,), got {sample.shape}")
    if not np.isfinite(sample).all():
        raise ValueError("values must be finite, got NaN or infinity; leave out what was not measured")
    draws = sample.size if num_draws is None else min(num_draws, sample.size)
    if draws < min_sample_size(quantile, confidence):
        return Interval(estimate=None, low=None, high=None)
    tail = (1.0 - confidence) / 2.0
    low_rank = int(binom.ppf(tail, draws, quantile))
    if binom.cdf(low_rank, draws, quantile) <= tail:  # ppf stops at cdf >= tail: equality allows one rank more
        low_rank += 1
    high_rank = int(binom.isf(tail, draws, quantile)) + 1
    if low_rank < 1 or high_rank > draws:  # rounding at the minimum size; an infinite side is not a number
        return Interval(estimate=None, low=None, high=None)
    ordered = np.sort(sample)
    return Interval(
        estimate=float(np.quantile(ordered, quantile)),
        # the first value of the lower draw and the last one of the upper, where a draw is several values
        low=float(ordered[(low_rank - 1) * sample.size // draws]),
        high=float(ordered[-(-high_rank * sample.size // draws) - 1]),
    )


def _check_open_unit(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must be in the interval 0 < {name} < 1, got {value}")
