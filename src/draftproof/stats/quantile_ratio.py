"""
The ratio of one quantile between two paired samples, such as p95 latencies of two arms, with an interval over prompts.

Does not know what was timed.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.stats.interval import Interval
from draftproof.stats.quantile import min_sample_size

NUM_RESAMPLES = 2_000
_BLOCK = 1 << 21  # weights held at once; bounds the memory, about 16 MB


def quantile_ratio(
    candidate: ArrayLike, baseline: ArrayLike, clusters: ArrayLike, quantile: float, confidence: float, seed: int
) -> Interval:
    """
    Return the candidate's quantile over the baseline's.

    Parameters
    ----------
    candidate, baseline : array_like, shape (N, any)
        Finite and positive, any one unit; row i of both holds the runs of the same request.
    clusters : array_like, shape (N,), integers or strings
        The prompt of each row.
    quantile, confidence : float
        Must be in the interval ``0 < value < 1``.
    seed : int
        Of the bootstrap; the same input and seed give the same result.

    Returns
    -------
    Interval
        A ratio, no unit. All three are ``None`` below ``min_sample_size(quantile, confidence)`` prompts.

    Notes
    -----
    Percentile bootstrap [1]_: prompts are drawn with replacement, each with all its runs in both samples, so that what the
    two share cancels. The quantile is the smallest value that the wanted share does not exceed. Cost: O(NUM_RESAMPLES * N)
    time, a fixed block of memory.
    Held by: tests/stats/test_stats_quantile_ratio.py (coverage).

    References
    ----------
    .. [1] Efron, Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.
    """
    labels, prompt_of = np.unique(np.asarray(clusters), return_inverse=True)
    if labels.size < min_sample_size(quantile, confidence):
        return Interval(estimate=None, low=None, high=None)
    samples = [np.asarray(values, dtype=np.float64) for values in (candidate, baseline)]
    once = np.ones((1, labels.size), dtype=np.int64)
    estimate = _ratio(samples, prompt_of, once, quantile)[0]
    generator = np.random.default_rng(seed)
    ratios = np.empty(NUM_RESAMPLES)
    block = max(1, _BLOCK // max(sample.size for sample in samples))
    for start in range(0, NUM_RESAMPLES, block):
        stop = min(start + block, NUM_RESAMPLES)
        times_drawn = generator.multinomial(labels.size, np.full(labels.size, 1 / labels.size), size=stop - start)
        ratios[start:stop] = _ratio(samples, prompt_of, times_drawn, quantile)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(ratios, [tail, 1.0 - tail])
    return Interval(estimate=float(estimate), low=float(low), high=float(high))


def _ratio(
    samples: list[NDArray[np.float64]],
    prompt_of: NDArray[np.int64],
    times_drawn: NDArray[np.int64],
    quantile: float,
) -> NDArray[np.float64]:
    """Return one ratio for each row of ``times_drawn``, shape (resamples, prompts)."""
    found = []
    for sample in samples:
        values, owner = sample.ravel(), np.repeat(prompt_of, sample.size // len(sample))
        order = np.argsort(values)
        reached = times_drawn[:, owner[order]].cumsum(axis=1)
        found.append(values[order][(reached >= quantile * reached[:, -1:]).argmax(axis=1)])
    ratio: NDArray[np.float64] = found[0] / found[1]
    return ratio
