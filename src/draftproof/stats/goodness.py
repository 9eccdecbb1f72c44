"""
Tests of the null "every token was drawn from the target's law".

Fixed-sample tests: looking at the data several times invalidates them (``evalue`` does not mind). Does not judge
support: a token of probability zero is for the caller to refuse.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2

from draftproof.stats.variation import SUM_TOLERANCE

MIN_EXPECTED = 5.0


@dataclass(frozen=True, slots=True)
class Chi2Result:
    """A chi-square test pooled over contexts; ``None`` when no context was visited often enough."""

    statistic: float | None
    df: int
    p_value: float | None
    tokens: int = 0  # in the contexts that were used


def pooled_chi2(contexts: ArrayLike, cells: ArrayLike, probs: ArrayLike) -> Chi2Result:
    """
    Test the frequencies of the cells in every context that was visited often enough.

    Parameters
    ----------
    contexts : array_like, shape (N,), integers
        The context of each token; tokens of one context share one law.
    cells : array_like, shape (N,), integers
        The cell of each emitted token, in ``[0, m)``.
    probs : array_like, shape (N, m)
        The target's probability of each cell. The first row of a context is used for all of it; rows sum to 1 within
        ``SUM_TOLERANCE`` and are normalised.

    Returns
    -------
    Chi2Result
        Pearson's statistic and degrees of freedom summed over contexts. ``statistic`` and ``p_value`` are ``None`` when
        ``df`` is 0.

    Raises
    ------
    ValueError
        The shapes do not fit, a cell is out of range, or a row is not a distribution.

    Notes
    -----
    Within a context, cells with an expected count below ``MIN_EXPECTED`` become one cell; if that one is still below,
    it joins the smallest cell kept. A context with fewer than two cells left is dropped; the others add ``cells - 1``
    to ``df``. Cells of probability zero are merged like any other, so support is not tested here.
    Cost: O(N m). Held by: tests/stats/test_stats_goodness.py.

    References
    ----------
    .. [1] Cochran, "Some methods for strengthening the common chi-square tests", Biometrics 10, 1954.
    """
    context_row = np.asarray(contexts)
    cell_row = np.asarray(cells)
    prob_rows = np.asarray(probs, dtype=np.float64)
    if context_row.ndim != 1 or context_row.shape != cell_row.shape:
        raise ValueError(f"contexts and cells must have one shape (N,), got {context_row.shape} and {cell_row.shape}")
    if prob_rows.ndim != 2 or prob_rows.shape[0] != cell_row.size:
        raise ValueError(f"probs must have shape ({cell_row.size}, m), got {prob_rows.shape}")
    if cell_row.size == 0:
        return Chi2Result(statistic=None, df=0, p_value=None)
    num_cells = prob_rows.shape[1]
    if not np.issubdtype(cell_row.dtype, np.integer) or cell_row.min() < 0 or cell_row.max() >= num_cells:
        raise ValueError(f"cells must be integers in [0, {num_cells})")
    _, first, inverse, visits = np.unique(context_row, return_index=True, return_inverse=True, return_counts=True)
    laws = prob_rows[first]
    sums = laws.sum(axis=1)
    if not (laws >= 0.0).all() or not (np.abs(sums - 1.0) <= SUM_TOLERANCE).all():
        raise ValueError(f"rows of probs must be non-negative and sum to 1 within {SUM_TOLERANCE}")
    expected = visits[:, None] * laws / sums[:, None]
    counts = np.bincount(inverse * num_cells + cell_row, minlength=visits.size * num_cells)
    return _pearson(counts.reshape(expected.shape).astype(np.float64), expected)


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """
    Return p values adjusted for their number, in the given order.

    Parameters
    ----------
    p_values : array_like, shape (m,)
        In the interval ``[0, 1]``; they may depend on each other in any way.

    Returns
    -------
    ndarray, shape (m,), float64
        Rejecting where ``adjusted <= alpha`` keeps the chance of any false rejection at most ``alpha``.

    Raises
    ------
    ValueError
        The p values are not one-dimensional, or one is outside its interval.

    Notes
    -----
    Source: [1]_.

    References
    ----------
    .. [1] Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979.

    Examples
    --------
    >>> holm([0.5, 0.25])
    array([0.5, 0.5])
    """
    given = np.asarray(p_values, dtype=np.float64)
    if given.ndim != 1:
        raise ValueError(f"p_values must have shape (m,), got {given.shape}")
    if not ((given >= 0.0) & (given <= 1.0)).all():
        raise ValueError("p_values must be in the interval [0, 1]; leave out tests that gave none")
    order = np.argsort(given, kind="stable")
    factors = np.arange(given.size, 0, -1)
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * given[order]))
    return adjusted


def _pearson(counts: NDArray[np.float64], expected: NDArray[np.float64]) -> Chi2Result:
    """Return the summed statistic of (C, m) counts after merging cells that are expected too seldom."""
    kept = expected >= MIN_EXPECTED
    other_expected = np.where(kept, 0.0, expected).sum(axis=1)
    other_counts = np.where(kept, 0.0, counts).sum(axis=1)
    has_other = other_expected >= MIN_EXPECTED
    num_left = kept.sum(axis=1) + has_other
    usable = num_left >= 2
    df = int((num_left[usable] - 1).sum())
    if df == 0:
        return Chi2Result(statistic=None, df=0, p_value=None)
    smallest = np.where(kept, expected, np.inf).argmin(axis=1)
    joins = np.where(has_other, 0.0, 1.0)
    rows = np.arange(counts.shape[0])
    cell_expected = np.where(kept, expected, 1.0)
    cell_counts = np.where(kept, counts, 1.0)  # cells not kept add (1 - 1)**2 / 1 = 0
    cell_expected[rows, smallest] += joins * other_expected
    cell_counts[rows, smallest] += joins * other_counts
    per_context = ((cell_counts - cell_expected) ** 2 / cell_expected).sum(axis=1)
    per_context += (other_counts - other_expected) ** 2 / np.where(has_other, other_expected, np.inf)
    statistic = float(per_context[usable].sum())
    tokens = int(counts[usable].sum())
    return Chi2Result(statistic=statistic, df=df, p_value=float(chi2.sf(statistic, df)), tokens=tokens)
