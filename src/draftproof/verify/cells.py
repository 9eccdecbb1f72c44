"""Rank cells: the whole vocabulary in a few cells, by the token's rank under the law it is judged by."""

import numpy as np
import numpy.typing as npt

from draftproof.verify.log import Array, Integers

LAST_RANKS = (1, 2, 3, 4, 6, 8, 12)
"""Last rank, counted from 1, of each cell but the open one: 8 cells."""
FIRST_SHARED = 4
"""The first cell that holds more than one token."""
STRATUM_LAST_RANKS = (1, 3, 8)
"""The same for a part of the tokens: 4 cells."""


def rank_cells(laws: npt.ArrayLike, token_ids: npt.ArrayLike, last_ranks: tuple[int, ...]) -> tuple[Integers, Array]:
    """
    Return the cell of each token and the law of the cells.

    Parameters
    ----------
    laws : array_like, shape (N, V)
        Rows sum to 1.
    token_ids : array_like, shape (N,), integers
    last_ranks : tuple of int
        See `LAST_RANKS`.

    Returns
    -------
    cells : ndarray, shape (N,), int64
    probs : ndarray, shape (N, len(last_ranks) + 1), float64

    Notes
    -----
    A token's rank is known before it is drawn, so that the cells are fixed beforehand; equal probabilities are ranked by id.
    Cost: O(N V). Held by: tests/verify/test_verify_cells.py.
    """
    rows, chosen = np.asarray(laws), np.asarray(token_ids)
    most = min(last_ranks[-1], rows.shape[1])
    top = -np.sort(np.partition(-rows, most - 1, axis=1)[:, :most], axis=1)
    own = rows[np.arange(len(rows)), chosen][:, None]
    before = np.arange(rows.shape[1]) < chosen[:, None]
    ranks = 1 + (rows > own).sum(axis=1) + ((rows == own) & before).sum(axis=1)
    up_to = np.cumsum(top.astype(np.float64), axis=1)[:, [min(last, most) - 1 for last in last_ranks]]
    total = rows.sum(axis=1, dtype=np.float64)[:, None]
    probs = np.diff(np.concatenate([np.zeros_like(total), up_to, total], axis=1), axis=1)
    return np.searchsorted(last_ranks, ranks), np.maximum(probs, 0.0)


def coarser(cells: Integers, laws: Array) -> tuple[Integers, Array]:
    """Return cells of `LAST_RANKS` as those of `STRATUM_LAST_RANKS`: (N,) and (N, 8) become (N,) and (N, 4)."""
    group = np.searchsorted(STRATUM_LAST_RANKS, [*LAST_RANKS, LAST_RANKS[-1] + 1])
    merged = np.stack([laws[:, group == cell].sum(axis=1) for cell in range(len(STRATUM_LAST_RANKS) + 1)], axis=1)
    return group[cells], merged
