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
"""With this probability a deviation of the size told is found, or a bound is small enough."""


def smallest_tv_of_score(tokens: int, alpha: float) -> float:
    """
    Return the TV that a two-sided score test in one direction, fixed beforehand, finds with probability `POWER`.

    Parameters
    ----------
    tokens : int, 1 or more
    alpha : float
        In the interval ``(0, 1)``.

    Returns
    -------
    float
        ``(z(alpha/2) + z(1 - POWER)) / (2 sqrt(tokens))``, at most 1.

    Raises
    ------
    ValueError
        An argument is outside its interval.

    Notes
    -----
    For the indicator of a set of cells to which the deviation moves its mass, at the largest variance, 1/4. The number does
    not depend on how many cells there are. A deviation that leaves the score's mean alone is not found at any size.
    Source: the normal law of the score, as in `score.tilted_score_test`. Held by: tests/stats/test_stats_power.py.

    Examples
    --------
    >>> round(smallest_tv_of_score(17_000, 1e-4), 3)
    0.02
    """
    _check(tokens, alpha)
    return min(1.0, float(norm.isf(alpha / 2.0) + norm.ppf(POWER)) / (2.0 * math.sqrt(tokens)))


def smallest_tv_of_chi2(tokens: int, df: int, alpha: float) -> float:
    """
    Return the TV that the chi-square test over cells finds with probability `POWER`, in whichever direction it lies.

    Parameters
    ----------
    tokens : int, 1 or more
        In the contexts that the test uses.
    df : int, 1 or more
        Degrees of freedom, summed over contexts.
    alpha : float
        In the interval ``(0, 1)``.

    Returns
    -------
    float
        ``sqrt(lambda / (4 tokens))``, at most 1, with the non-centrality ``lambda`` that gives this probability.

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
    _check(tokens, alpha)
    if df < 1:
        raise ValueError(f"df must be at least 1, got {df}")
    critical = chi2.isf(alpha, df)
    high = 1.0
    while ncx2.sf(critical, df, high) < POWER:
        high *= 2.0
    needed = float(brentq(lambda value: float(ncx2.sf(critical, df, value)) - POWER, 1e-9, high))
    return min(1.0, math.sqrt(needed / (4.0 * tokens)))


def tokens_for_pooled_bound(cell_probs: ArrayLike, delta: float, alpha: float) -> int:
    """
    Return how many tokens a correct sampler needs for `variation.tv_upper_bound` to be below ``delta`` with probability `POWER`.

    Parameters
    ----------
    cell_probs : array_like, shape (m,)
        The mean law over the tokens; sums to 1 within ``SUM_TOLERANCE``.
    delta, alpha : float
        In the interval ``(0, 1)``.

    Returns
    -------
    int
        ``ceil(((sum sqrt(p (1 - p)) / sqrt(2 pi) + sqrt((m ln 2 + ln(1/alpha)) / 2) + 0.3 z(POWER)) / delta)**2)``.

    Raises
    ------
    ValueError
        An argument is outside its interval, or the law is none.

    Notes
    -----
    For the bound ``TV_hat + sqrt((m ln 2 + ln(1/alpha)) / (2 n))``, which pools dependent tokens. The first term is the mean of
    ``TV_hat`` when nothing is wrong, times sqrt(n); 0.3 is a little above what the standard deviation of ``TV_hat`` was in
    simulations. Held by: tests/stats/test_stats_power.py.
    """
    _check(1, alpha)
    law = np.asarray(cell_probs, dtype=np.float64)
    if law.ndim != 1 or not (law >= 0.0).all() or not abs(float(law.sum()) - 1.0) <= SUM_TOLERANCE:
        raise ValueError(f"cell_probs must be one row, non-negative, with sum 1 within {SUM_TOLERANCE}")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must be in the interval 0 < delta < 1, got {delta}")
    chance = float(np.sqrt(np.maximum(0.0, law * (1.0 - law))).sum()) / math.sqrt(2.0 * math.pi)
    margin = math.sqrt((law.size * math.log(2.0) - math.log(alpha)) / 2.0)
    return math.ceil(((chance + margin + 0.3 * float(norm.ppf(POWER))) / delta) ** 2)


def _check(tokens: int, alpha: float) -> None:
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must be in the interval 0 < alpha < 1, got {alpha}")
