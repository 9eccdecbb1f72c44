"""
A paired ratio, such as a speed-up, with an interval over prompts.

The prompt is the unit: repeats of one prompt are averaged first, by ``cluster_means``. Does not know what was timed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from scipy.stats import t as student_t

from draftproof.stats.interval import Interval

MIN_BOOTSTRAP_CLUSTERS = 20
NUM_RESAMPLES = 10_000
METHOD_STUDENT_T = "student_t"
METHOD_BOOTSTRAP = "cluster_bootstrap_percentile"
METHOD_NONE = "none"

_RESAMPLE_BLOCK = 1 << 20  # indices drawn at once; bounds the memory, about 16 MB


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """A ratio over prompts."""

    interval: Interval  # ratio, no unit; 1 is "no difference"
    n: int  # prompts
    method: str  # how the limits were found: one of the METHOD_ names


def cluster_means(values: ArrayLike, clusters: ArrayLike) -> NDArray[np.float64]:
    """
    Return the mean of the values of each cluster, in the sorted order of the cluster labels.

    Parameters
    ----------
    values : array_like, shape (N,)
        Finite, any unit; for a ratio, the log ratios of single repeats.
    clusters : array_like, shape (N,), integers or strings
        The prompt of each value.

    Returns
    -------
    ndarray, shape (number of different labels,), float64
        In the unit of the values; empty when there are none.

    Raises
    ------
    ValueError
        The shapes differ or are not one-dimensional, or a value is not finite.

    Examples
    --------
    >>> cluster_means([1.0, 3.0, 5.0], ["b", "b", "a"])
    array([5., 2.])
    """
    value_row = _finite_row("values", values)
    labels = np.asarray(clusters)
    if labels.shape != value_row.shape:
        raise ValueError(f"clusters must have the shape of values, {value_row.shape}, got {labels.shape}")
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means: NDArray[np.float64] = np.bincount(inverse, weights=value_row, minlength=counts.size) / counts
    return means


def paired_log_ratio(log_ratios: ArrayLike, confidence: float, seed: int) -> RatioEstimate:
    """
    Return the geometric mean ratio over prompts and its interval.

    Parameters
    ----------
    log_ratios : array_like, shape (n,)
        One natural log ratio per prompt, ``log(baseline time / candidate time)``, averaged over its repeats; finite.
    confidence : float
        Of the two-sided interval; must be in the interval ``0 < confidence < 1``.
    seed : int
        Of the bootstrap. The same input and seed give the same result; unused below 20 prompts.

    Returns
    -------
    RatioEstimate
        ``exp(mean)`` with limits. The limits are ``None`` for fewer than 2 prompts and when all log ratios are equal
        (no spread to judge by); without prompts the estimate is ``None`` too.

    Raises
    ------
    ValueError
        The log ratios are not one-dimensional or not finite, or the confidence is outside its interval.

    Notes
    -----
    Below ``MIN_BOOTSTRAP_CLUSTERS`` prompts: Student t on the log ratios. From there on: percentile bootstrap over
    prompts with ``NUM_RESAMPLES`` resamples [1]_, at percentiles that lie further out for fewer prompts [2]_, since the plain
    ones are too narrow by a factor of about ``sqrt((n - 1) / n) * z / t``. Cost: O(NUM_RESAMPLES * n) time, O(n) memory
    beyond a fixed block.
    Held by: tests/stats/test_stats_ratio.py (coverage of both), tests/measure/test_measure_coverage.py (whole studies).

    References
    ----------
    .. [1] Efron, Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.
    .. [2] Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69, 2015 (the expanded
       percentile interval).
    """
    sample = _finite_row("log_ratios", log_ratios)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be in the interval 0 < confidence < 1, got {confidence}")
    n = sample.size
    if n == 0:
        return RatioEstimate(interval=Interval(estimate=None, low=None, high=None), n=0, method=METHOD_NONE)
    estimate = float(np.exp(sample.mean()))
    if n < 2 or np.ptp(sample) == 0.0:
        return RatioEstimate(interval=Interval(estimate=estimate, low=None, high=None), n=n, method=METHOD_NONE)
    tail = (1.0 - confidence) / 2.0
    if n < MIN_BOOTSTRAP_CLUSTERS:
        method = METHOD_STUDENT_T
        half_width = float(student_t.isf(tail, n - 1)) * float(sample.std(ddof=1)) / float(np.sqrt(n))
        low, high = float(sample.mean()) - half_width, float(sample.mean()) + half_width
    else:
        method = METHOD_BOOTSTRAP
        expanded = expanded_tail(tail, n)
        limits = np.quantile(resampled_means(sample, seed), [expanded, 1.0 - expanded])
        low, high = float(limits[0]), float(limits[1])
    return RatioEstimate(
        interval=Interval(estimate=estimate, low=float(np.exp(low)), high=float(np.exp(high))), n=n, method=method
    )


def expanded_tail(tail: float, n: int) -> float:
    """Return the share to cut off on each side of a bootstrap over ``n`` units, less than ``tail`` for few of them."""
    return float(norm.sf(np.sqrt(n / (n - 1)) * student_t.isf(tail, n - 1)))


def resampled_means(sample: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """
    Return the means of ``NUM_RESAMPLES`` draws with replacement, each of the size of the sample.

    Samples of one size draw the same units with the same seed.
    """
    generator = np.random.default_rng(seed)
    means = np.empty(NUM_RESAMPLES)
    block = max(1, _RESAMPLE_BLOCK // sample.size)
    for start in range(0, NUM_RESAMPLES, block):
        stop = min(start + block, NUM_RESAMPLES)
        chosen = generator.integers(0, sample.size, size=(stop - start, sample.size))
        means[start:stop] = sample[chosen].mean(axis=1)
    return means


def _finite_row(name: str, values: ArrayLike) -> NDArray[np.float64]:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1:
        raise ValueError(f"{name} must have shape (n,), got {row.shape}")
    if not np.isfinite(row).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity; leave out what was not measured")
    return row
