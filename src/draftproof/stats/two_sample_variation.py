"""
Total variation between the next-token laws of two groups of sequences, with an upper bound, and how many it needs.

Knows neither engines nor the target. The cells must come from other sequences than those compared.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from draftproof.stats.power import POWER
from draftproof.stats.variation import TVResult

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankCells:
    """
    The most frequent tokens of each prompt and position, a cell each, and one cell for all others.

    Parameters
    ----------
    tokens : array_like, shape (S, T), integers
        Sequences that are compared with nothing; ends are tokens. The first column is context only.
    prompts : array_like, shape (S,), integers
        From 0 to P - 1.
    num_cells : int, 2 or more
        m.
    """

    tokens: ArrayLike
    prompts: ArrayLike
    num_cells: int

    def of(self, tokens: ArrayLike, prompts: ArrayLike) -> Integers:
        """Return the cell, 0 to m - 1, of each token of (S, T) but the first column, shape (S, T - 1)."""
        table, owners = np.asarray(tokens), np.asarray(prompts)
        seen, of_seen = np.asarray(self.tokens), np.asarray(self.prompts)
        cells = np.full((len(table), table.shape[1] - 1), self.num_cells - 1)
        for owner in np.unique(of_seen):
            rows = np.flatnonzero(owners == owner)
            for at in range(1, table.shape[1]):
                names, counts = np.unique(seen[of_seen == owner, at], return_counts=True)
                for rank, name in enumerate(names[np.argsort(-counts, kind="stable")][: self.num_cells - 1]):
                    cells[rows[table[rows, at] == name], at - 1] = rank
        return cells


def two_sample_tv(
    first: ArrayLike,
    second: ArrayLike,
    first_prompts: ArrayLike,
    second_prompts: ArrayLike,
    *,
    num_cells: int,
    alpha: float,
) -> TVResult:
    """
    Return the total variation between both groups' next-token laws, averaged over prompts and positions, and its bound.

    Parameters
    ----------
    first, second : array_like, shape (S1, T) and (S2, T), integers in [0, m)
        The cell of each token, of sequences drawn independently of each other; the cells were fixed beforehand.
    first_prompts, second_prompts : array_like, shape (S1,) and (S2,), integers
        Both groups have sequences of the same prompts.
    num_cells : int
        m.
    alpha : float
        The probability that the bound is below the truth; must be in the interval ``0 < alpha < 1``.

    Returns
    -------
    TVResult
        The estimate is the mean over prompts and positions of the distance of both groups' frequencies there.

    Raises
    ------
    ValueError
        The shapes do not fit, a cell is out of range, or the prompts differ.

    Notes
    -----
    The bound is ``estimate + sqrt(ln(1/alpha) / 2 * sum c**2)``. Proof: total variation is convex, so the estimate's mean is
    at least the truth; replacing one sequence of a prompt moves each of that prompt's frequencies at every position by at
    most ``1 / n`` in total variation, so the estimate by ``c = 1 / (P n)`` with ``n`` sequences of that prompt in its group;
    McDiarmid's inequality [1]_ does the rest. With equal sizes ``sum c**2`` is ``1/S1 + 1/S2``. No asymptotics, and nothing
    is assumed of how tokens of a sequence depend on each other.

    It compares the laws at a position, whatever came before it: errors after different prefixes can cancel, so it must never
    stand alone. Merging tokens into cells hides what happens within one.
    Cost: O(S T). Held by: tests/stats/test_stats_two_sample_variation.py.

    References
    ----------
    .. [1] McDiarmid, "On the method of bounded differences", 1989.
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must be in the interval 0 < alpha < 1, got {alpha}")
    tables = [np.asarray(first), np.asarray(second)]
    owners = [np.asarray(first_prompts), np.asarray(second_prompts)]
    for table, owner in zip(tables, owners, strict=True):
        if table.ndim != 2 or owner.shape != table.shape[:1] or table.shape[1] != tables[0].shape[1]:
            raise ValueError(f"shapes must be (S, T) and (S,), with one T, got {table.shape} and {owner.shape}")
        if not np.issubdtype(table.dtype, np.integer) or (table < 0).any() or (table >= num_cells).any():
            raise ValueError(f"cells must be integers in [0, {num_cells})")
    prompts = np.unique(owners[0])
    if not np.array_equal(prompts, np.unique(owners[1])):
        raise ValueError("both groups must have sequences of the same prompts")
    if not tables[0].size:
        return TVResult(estimate=None, upper_bound=None, tokens=0)
    estimate = squares = 0.0
    for prompt in prompts:
        chosen = [table[owner == prompt] for table, owner in zip(tables, owners, strict=True)]
        one, two = (_frequencies(part, num_cells) for part in chosen)
        estimate += 0.5 * float(np.abs(one - two).sum(axis=1).mean()) / len(prompts)
        squares += sum((len(prompts) * len(part)) ** -2 * len(part) for part in chosen)
    bound = min(1.0, estimate + math.sqrt(-math.log(alpha) / 2.0 * squares))
    return TVResult(estimate=estimate, upper_bound=bound, tokens=sum(table.size for table in tables))


def sequences_needed(num_cells: int, prompts: int, delta: float, alpha: float) -> int:
    """
    Return how many sequences per prompt and group bring the bound of two equal laws below ``delta`` with probability `POWER`.

    Parameters
    ----------
    num_cells, prompts : int
        m, at least 2, and P, at least 1.
    delta, alpha : float
        In the interval ``(0, 1)``.

    Returns
    -------
    int
        ``n = ((sqrt(2 P) sqrt(m - 1) / sqrt(2 pi) + sqrt(ln(1/alpha)) + sqrt(2) 0.3 z(POWER)) / delta)**2``, over P.

    Raises
    ------
    ValueError
        An argument is outside its interval.

    Notes
    -----
    As `power.tokens_for_pooled_bound`, with the bound of `two_sample_tv` and the variances of both groups added. Nothing is
    known of the laws, so the hardest one is taken: m cells of equal probability, for which ``sum sqrt(p (1 - p))`` is
    ``sqrt(m - 1)``. Other laws need fewer. Held by: tests/stats/test_stats_two_sample_variation.py.

    Examples
    --------
    >>> sequences_needed(num_cells=8, prompts=4, delta=0.05, alpha=0.05)
    2767
    """
    if num_cells < 2 or prompts < 1:
        raise ValueError(f"num_cells must be at least 2 and prompts at least 1, got {num_cells} and {prompts}")
    for name, value in (("delta", delta), ("alpha", alpha)):
        if not 0.0 < value < 1.0:
            raise ValueError(f"{name} must be in the interval 0 < {name} < 1, got {value}")
    chance = math.sqrt(2.0 * prompts * (num_cells - 1)) / math.sqrt(2.0 * math.pi)
    spread = math.sqrt(2.0) * 0.3 * float(norm.ppf(POWER))
    return math.ceil(((chance + math.sqrt(-math.log(alpha)) + spread) / delta) ** 2 / prompts)


def _frequencies(table: Integers, num_cells: int) -> NDArray[np.float64]:
    """Return, for each position, how often each cell came, shape (T, m)."""
    at = np.broadcast_to(np.arange(table.shape[1]), table.shape)
    counts = np.bincount((at * num_cells + table).reshape(-1), minlength=table.shape[1] * num_cells)
    return counts.reshape(table.shape[1], num_cells) / len(table)
