"""
One sum over another, such as accepted tokens over rounds, with an interval over prompts.

The prompt is the unit: its rounds are no draws of their own. Does not know what was counted.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student_t

from draftproof.stats.interval import Interval
from draftproof.stats.ratio import MIN_BOOTSTRAP_CLUSTERS, expanded_tail, resampled_means


def ratio_of_sums(
    numerators: ArrayLike, denominators: ArrayLike, clusters: ArrayLike, confidence: float, seed: int
) -> Interval:
    """
    Return the sum of the numerators over that of the denominators, and its interval.

    Parameters
    ----------
    numerators, denominators : array_like, shape (N,)
        Counts of each request, finite and not negative.
    clusters : array_like, shape (N,), integers or strings
        The prompt of each request.
    confidence : float
        Of the two-sided interval; must be in the interval ``0 < confidence < 1``.
    seed : int
        Of the bootstrap. The same input and seed give the same result; unused below 20 prompts.

    Returns
    -------
    Interval
        All three are ``None`` where the denominators add up to 0. The limits are ``None`` for fewer than 2 prompts, and
        where no prompt differs from the whole (no spread to judge by).

    Raises
    ------
    ValueError
        The shapes differ, a count is negative or not finite, or the confidence is outside its interval.

    Notes
    -----
    Below ``MIN_BOOTSTRAP_CLUSTERS`` prompts: Student t with the linearised standard error of a ratio [1]_, chapter 6. From there
    on: bootstrap over prompts, numerator and denominator of a prompt together, at percentiles that are widened for few of them
    (`stats.ratio.paired_log_ratio`). A resample without denominators counts as the estimate. The lower limit is at least 0.
    Held by: tests/stats/test_stats_ratio_of_sums.py (coverage of both).

    References
    ----------
    .. [1] Cochran, "Sampling Techniques", 3rd edition, 1977.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be in the interval 0 < confidence < 1, got {confidence}")
    above, below = (_counts(name, row) for name, row in (("numerators", numerators), ("denominators", denominators)))
    labels = np.asarray(clusters)
    if not above.shape == below.shape == labels.shape:
        raise ValueError(f"shapes must agree, got {above.shape}, {below.shape} and {labels.shape}")
    if below.sum() == 0:
        return Interval(estimate=None, low=None, high=None)
    _, owner = np.unique(labels, return_inverse=True)
    above, below = (np.bincount(owner, weights=row).astype(np.float64) for row in (above, below))
    n, estimate = above.size, float(above.sum() / below.sum())
    away = above - estimate * below
    if n < 2 or np.allclose(away, 0.0):
        return Interval(estimate=estimate, low=None, high=None)
    tail = (1.0 - confidence) / 2.0
    if n < MIN_BOOTSTRAP_CLUSTERS:
        half_width = float(student_t.isf(tail, n - 1) * np.sqrt(n / (n - 1) * (away**2).sum()) / below.sum())
        low, high = estimate - half_width, estimate + half_width
    else:
        means = resampled_means(above, seed), resampled_means(below, seed)
        ratios = np.divide(*means, out=np.full(means[0].size, estimate), where=means[1] > 0)
        expanded = expanded_tail(tail, n)
        low, high = map(float, np.quantile(ratios, [expanded, 1.0 - expanded]))
    return Interval(estimate=estimate, low=max(0.0, low), high=high)


def _counts(name: str, values: ArrayLike) -> NDArray[np.float64]:
    row = np.asarray(values, dtype=np.float64)
    if not np.isfinite(row).all() or (row < 0).any():
        raise ValueError(f"{name} must be finite and not negative")
    return row
