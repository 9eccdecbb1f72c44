"""Whether tokens of one context depend on something that happened before them and that the law does not know."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2

from draftproof.stats.goodness import MIN_EXPECTED, Chi2Result

Array = NDArray[np.float64]


def conditional_independence(contexts: ArrayLike, cells: ArrayLike, groups: ArrayLike, probs: ArrayLike) -> Chi2Result:
    """
    Test whether, within each context, the cell of the token is independent of a group that was fixed before it.

    Parameters
    ----------
    contexts, cells : array_like, shape (N,), integers
        As for `goodness.pooled_chi2`.
    groups : array_like, shape (N,), integers from 0 or strings
        What is to be irrelevant, such as the outcome of the round before.
    probs : array_like, shape (N, m)
        The target's probability of each cell, used only to choose which cells are merged, so that the choice does not
        depend on what was drawn.

    Returns
    -------
    Chi2Result
        Pearson's statistic of the tables (group, cell) and its degrees of freedom, summed over contexts. ``None`` when no
        context has two groups and two cells that are expected often enough.

    Raises
    ------
    ValueError
        The shapes do not fit.

    Notes
    -----
    The frequencies are compared between groups, with the margins estimated from the table [1]_, so a wrong law that is the
    same in every group does not show here: that is `goodness.pooled_chi2`'s. In each context, groups with fewer than
    ``2 * MIN_EXPECTED`` tokens are left out, and cells that the smallest group is expected to hold fewer than
    ``MIN_EXPECTED`` times become one. Cost: O(N m) and a step per context.
    Held by: tests/stats/test_stats_independence.py.

    References
    ----------
    .. [1] Agresti, "Categorical Data Analysis", 3rd edition, 2013, section 3.2.
    """
    context_row, cell_row, group_row = np.asarray(contexts), np.asarray(cells), np.asarray(groups)
    laws = np.asarray(probs, dtype=np.float64)
    if laws.ndim != 2 or not context_row.shape == cell_row.shape == group_row.shape == laws.shape[:1]:
        shapes = f"{context_row.shape}, {cell_row.shape}, {group_row.shape} and {laws.shape}"
        raise ValueError(f"shapes must be (N,) three times and (N, m), got {shapes}")
    if cell_row.size == 0:
        return Chi2Result(statistic=None, df=0, p_value=None)
    names, group_ids = np.unique(group_row, return_inverse=True)
    _, first, context_ids = np.unique(context_row, return_index=True, return_inverse=True)
    shape = (first.size, names.size, laws.shape[1])
    tables = np.bincount((context_ids * names.size + group_ids) * shape[2] + cell_row, minlength=int(np.prod(shape)))
    statistic, df, tokens = 0.0, 0, 0
    sizes = tables.reshape(shape).sum(axis=2)
    for context in np.flatnonzero((sizes >= 2 * MIN_EXPECTED).sum(axis=1) >= 2):
        large = sizes[context] >= 2 * MIN_EXPECTED
        table = tables.reshape(shape)[context][large].astype(np.float64)
        merged = _merged(table, float(table.sum(axis=1).min()) * laws[first[context]])
        if merged.shape[1] < 2:
            continue
        expected = merged.sum(axis=1, keepdims=True) * merged.sum(axis=0) / merged.sum()
        statistic += float(((merged - expected) ** 2 / expected).sum())
        df += (merged.shape[0] - 1) * (merged.shape[1] - 1)
        tokens += int(merged.sum())
    if df == 0:
        return Chi2Result(statistic=None, df=0, p_value=None)
    return Chi2Result(statistic=statistic, df=df, p_value=float(chi2.sf(statistic, df)), tokens=tokens)


def _merged(table: Array, expected: Array) -> Array:
    """Return (groups, cells) with the rare cells as one; that one joins the smallest kept if it is rare too."""
    kept = expected >= MIN_EXPECTED
    columns = [table[:, cell] for cell in np.flatnonzero(kept)]
    if not kept.all():
        rest = table[:, ~kept].sum(axis=1)
        if expected[~kept].sum() >= MIN_EXPECTED or not columns:
            columns.append(rest)
        else:
            columns[int(np.argmin(expected[kept]))] = columns[int(np.argmin(expected[kept]))] + rest
    merged = np.stack(columns, axis=1)
    return merged[:, merged.sum(axis=0) > 0]
