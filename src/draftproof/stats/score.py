"""
A score test whose p value also holds far from the centre and for scores that are rarely other than 0.

Where a score is skewed (a rare token), the normal law is too small in its tail by orders of magnitude, and a family of many
tests is decided in the tail.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from draftproof.stats.variation import SUM_TOLERANCE

CENTRAL_Z = 2.0

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """A martingale score test; ``None`` when the score cannot vary."""

    z: float | None  # standard normal under the null, for large n
    p_value: float | None  # two-sided
    n: int  # tokens


def tilted_score_test(scores: ArrayLike, probs: ArrayLike, cells: ArrayLike) -> ScoreResult:
    """
    Test whether a score has, on average, the value that the target's law gives it.

    Parameters
    ----------
    scores : array_like, shape (N, m)
        The score that each cell would have at each token, fixed before the token is seen; finite.
    probs : array_like, shape (N, m)
        The target's probability of each cell at that token; rows sum to 1 within ``SUM_TOLERANCE`` and are normalised.
    cells : array_like, shape (N,), integers
        The cell of each emitted token, in ``[0, m)``.

    Returns
    -------
    ScoreResult
        ``z = sum(h - E h) / sqrt(sum Var h)``. ``z`` and ``p_value`` are ``None`` when the score cannot vary.

    Raises
    ------
    ValueError
        The shapes do not fit, a score is not finite, a cell is out of range, or a row is not a distribution.

    Notes
    -----
    Up to ``|z| = CENTRAL_Z`` the normal law. Beyond it the saddlepoint approximation [1]_ of the tail, from the sum over
    tokens of the cumulant generating functions, ``K(s) = sum_t log E exp(s (h - E h))``: with ``K'(s) = x``,
    ``r = sqrt(2 (s x - K(s)))`` and ``u = s sqrt(K''(s))``, the tail is ``Q(r) + phi(r) (1/u - 1/r)``. For indicators,
    ``u = (1 - exp(-s)) sqrt(K''(s))``, the correction for whole numbers. A sum at its largest possible value has an exact
    probability, and it is used. The smaller tail is doubled.
    The differences are a martingale whatever the rounds were, so tokens need not be independent [2]_.
    Assumes that the sum of the conditional variances varies little from run to run, as the martingale central limit
    theorem does. Cost: O(N m), some thirty times beyond the centre.
    Held by: tests/stats/test_stats_score.py.

    References
    ----------
    .. [1] Lugannani, Rice, "Saddle point approximation for the distribution of the sum of independent random variables",
       Advances in Applied Probability 12, 1980; Daniels, "Tail probability approximations", 1987 (whole numbers).
    .. [2] Hall, Heyde, "Martingale Limit Theory and Its Application", 1980, chapter 3.
    """
    values, laws, observed = _checked(scores, probs, cells)
    if observed.size == 0:
        return ScoreResult(z=None, p_value=None, n=0)
    laws = laws / laws.sum(axis=1, keepdims=True)
    deviations = values - (laws * values).sum(axis=1, keepdims=True)
    total_variance = float((laws * deviations**2).sum())
    if total_variance == 0.0:
        return ScoreResult(z=None, p_value=None, n=observed.size)
    x = float(deviations[np.arange(observed.size), observed].sum())
    z = x / math.sqrt(total_variance)
    if abs(z) <= CENTRAL_Z:
        p_value = float(2.0 * norm.sf(abs(z)))
    else:
        lattice = bool(((values == 0.0) | (values == 1.0)).all())
        p_value = min(1.0, 2.0 * _upper_tail(math.copysign(1.0, z) * deviations, laws, abs(x), lattice))
    return ScoreResult(z=z, p_value=p_value, n=observed.size)


def _upper_tail(deviations: Array, laws: Array, x: float, lattice: bool) -> float:
    possible = laws > 0.0
    deviations = np.where(possible, deviations, 0.0)
    best = np.where(possible, deviations, -np.inf).max(axis=1)
    scale = float(np.abs(deviations).max())
    room = float(best.sum()) - x
    if room < -1e-9 * scale * len(best):
        return 0.0
    if room < 1e-9 * scale * len(best):
        at_best = np.where(possible & (deviations >= best[:, None] - 1e-12 * scale), laws, 0.0).sum(axis=1)
        return math.exp(float(np.log(at_best).sum()))

    def cumulants(s: float) -> tuple[float, float, float]:
        weights = laws * np.exp(s * (deviations - best[:, None]))
        mass = weights.sum(axis=1)
        mean = (weights * deviations).sum(axis=1) / mass
        variance = (weights * deviations**2).sum(axis=1) / mass - mean**2
        return float((np.log(mass) + s * best).sum()), float(mean.sum()), float(variance.sum())

    high = 1.0 / scale
    while cumulants(high)[1] < x:
        high *= 2.0
    s = float(brentq(lambda tilt: cumulants(tilt)[1] - x, 0.0, high, xtol=1e-12 / scale, rtol=1e-10))
    log_mgf, _, variance = cumulants(s)
    r = math.sqrt(max(0.0, 2.0 * (s * x - log_mgf)))
    u = (-math.expm1(-s) if lattice else s) * math.sqrt(max(0.0, variance))
    bound = math.exp(-0.5 * r * r)  # Chernoff's: no tail is larger
    if u == 0.0:
        return bound
    return min(bound, max(0.0, float(norm.sf(r) + norm.pdf(r) * (1.0 / u - 1.0 / r))))


def _checked(scores: ArrayLike, probs: ArrayLike, cells: ArrayLike) -> tuple[Array, Array, NDArray[np.int64]]:
    values, laws = np.asarray(scores, dtype=np.float64), np.asarray(probs, dtype=np.float64)
    observed = np.asarray(cells)
    if laws.ndim != 2 or values.shape != laws.shape or observed.shape != laws.shape[:1]:
        raise ValueError(f"shapes must be (N, m), (N, m) and (N,), got {values.shape}, {laws.shape}, {observed.shape}")
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite, got NaN or infinity")
    if observed.size and (not np.issubdtype(observed.dtype, np.integer) or not _within(observed, laws.shape[1])):
        raise ValueError(f"cells must be integers in [0, {laws.shape[1]})")
    if not (laws >= 0.0).all() or not (np.abs(laws.sum(axis=1) - 1.0) <= SUM_TOLERANCE).all():
        raise ValueError(f"rows of probs must be non-negative and sum to 1 within {SUM_TOLERANCE}")
    return values, laws, observed.astype(np.int64)


def _within(observed: NDArray[np.int64], num_cells: int) -> bool:
    return bool(observed.min() >= 0 and observed.max() < num_cells)
