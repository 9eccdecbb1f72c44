"""
How small a deviation a run can see, and how many tokens it needs to show that there is none.

Deviations are total variations (TV) per token, on average over the tokens. Knows no data.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2, norm

from draftproof.stats.variation import SUM_TOLERANCE

POWER = 0.9


def smallest_tv_of_score(tokens: int, alpha: float, power: float = POWER) -> float:
    """
    Return the TV that a two-sided score test in one direction, fixed beforehand, finds with the given power.

    Parameters
    ----------
    tokens : int, 1 or more
    alpha, power : float
        In the interval ``(0, 1)``.

    Returns
    -------
    float
        ``(z(alpha/2) + z(1-power)) / (2 sqrt(tokens))``, at most 1.

    Raises
    ------
    ValueError
        An argument is outside its interval.

    Notes
    -----
    For the indicator of a set of cells to which the deviation moves its mass, at the largest variance, 1/4. The number does
    not depend on how many cells there are. A deviation that leaves the score's mean alone is not found at any size.
    Source: the normal law of the score, `goodness.score_test`. Held by: tests/stats/test_stats_power.py.

    Examples
    --------
    >>> round(smallest_tv_of_score(17_000, 1e-4), 3)
    0.02
    """
    _check(tokens, alpha, power)
    return min(1.0, float(norm.isf(alpha / 2.0) + norm.ppf(power)) / (2.0 * math.sqrt(tokens)))


def smallest_tv_of_chi2(tokens: int, df: int, alpha: float, power: float = POWER) -> float:
    """
    Return the TV that the chi-square test over cells finds with the given power, in whichever direction it lies.

    Parameters
    ----------
    tokens : int, 1 or more
        In the contexts that the test uses.
    df : int, 1 or more
        Degrees of freedom, summed over contexts.
    alpha, power : float
        In the interval ``(0, 1)``.

    Returns
    -------
    float
        ``sqrt(lambda / (4 tokens))``, at most 1, with the non-centrality ``lambda`` that gives the power.

    Raises
    ------
    ValueError
        An argument is outside its interval.

    Notes
    -----
    By Cauchy-Schwarz ``sum (s - p)**2 / p >= 4 TV**2``, with equality for an even shift of an even law; so this is the
    hardest case, and the deviation averaged over contexts [1]_. Held by: tests/stats/test_stats_power.py.

    References
    ----------
    .. [1] Cohen, "Statistical Power Analysis for the Behavioral Sciences", 2nd edition, 1988, chapter 7.
    """
    _check(tokens, alpha, power)
    if df < 1:
        raise ValueError(f"df must be at least 1, got {df}")
    critical = chi2.isf(alpha, df)
    high = 1.0
    while ncx2.sf(critical, df, high) < power:
        high *= 2.0
    needed = float(brentq(lambda value: float(ncx2.sf(critical, df, value)) - power, 1e-9, high))
    return min(1.0, math.sqrt(needed / (4.0 * tokens)))


def tokens_for_one_context(cell_probs: ArrayLike, delta: float, alpha: float, power: float = POWER) -> int:
    """
    Return how many independent draws from one law a correct sampler needs for its TV bound to be below ``delta``.

    Parameters
    ----------
    cell_probs : array_like, shape (m,)
        The law; sums to 1 within ``SUM_TOLERANCE``.
    delta, alpha, power : float
        In the interval ``(0, 1)``.

    Returns
    -------
    int
        ``ceil(((sum sqrt(p (1 - p)) / sqrt(2 pi) + sqrt(ln(1/alpha) / 2) + 0.3 z(power)) / delta)**2)``.

    Raises
    ------
    ValueError
        An argument is outside its interval, or the law is none.

    Notes
    -----
    For the bound ``TV_hat + sqrt(ln(1/alpha) / (2 n))`` of one law (McDiarmid [1]_). The first term is the mean of ``TV_hat``
    when nothing is wrong, times sqrt(n); 0.3 is a little above what the standard deviation of ``TV_hat`` was in simulations.
    Held by: tests/stats/test_stats_power.py.

    References
    ----------
    .. [1] McDiarmid, "On the method of bounded differences", 1989.
    """
    return _tokens_for_bound(cell_probs, delta, alpha, power, log_sets=0.0)


def tokens_for_pooled_bound(cell_probs: ArrayLike, delta: float, alpha: float, power: float = POWER) -> int:
    """
    Return the same as `tokens_for_one_context` for `variation.tv_upper_bound`, which pools dependent tokens.

    Parameters
    ----------
    cell_probs : array_like, shape (m,)
        The mean law over the tokens; sums to 1 within ``SUM_TOLERANCE``.
    delta, alpha, power : float
        In the interval ``(0, 1)``.

    Returns
    -------
    int
        As above, with ``m ln 2`` added to ``ln(1/alpha)``.

    Raises
    ------
    ValueError
        An argument is outside its interval, or the law is none.

    Notes
    -----
    Held by: tests/stats/test_stats_power.py.
    """
    return _tokens_for_bound(cell_probs, delta, alpha, power, log_sets=np.asarray(cell_probs).size * math.log(2.0))


def _tokens_for_bound(cell_probs: ArrayLike, delta: float, alpha: float, power: float, log_sets: float) -> int:
    _check(1, alpha, power)
    law = np.asarray(cell_probs, dtype=np.float64)
    if law.ndim != 1 or not (law >= 0.0).all() or not abs(float(law.sum()) - 1.0) <= SUM_TOLERANCE:
        raise ValueError(f"cell_probs must be one row, non-negative, with sum 1 within {SUM_TOLERANCE}")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must be in the interval 0 < delta < 1, got {delta}")
    chance = float(np.sqrt(np.maximum(0.0, law * (1.0 - law))).sum()) / math.sqrt(2.0 * math.pi)
    margin = math.sqrt((log_sets - math.log(alpha)) / 2.0)
    return math.ceil(((chance + margin + 0.3 * float(norm.ppf(power))) / delta) ** 2)


def _check(tokens: int, alpha: float, power: float) -> None:
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    for name, value in (("alpha", alpha), ("power", power)):
        if not 0.0 < value < 1.0:
            raise ValueError(f"{name} must be in the interval 0 < {name} < 1, got {value}")
