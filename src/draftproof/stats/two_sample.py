"""
Were two groups of token sequences drawn from the same law? Tests that need no probabilities.

Sequences are exchanged whole, and only with those of the same prompt, so tokens may depend on those before them in any
way. The first token of a sequence is context only. For a fixed number of sequences: looking several times invalidates
them. Knows neither engines nor the target.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from draftproof.stats.goodness import MIN_EXPECTED, holm

END = -1
NUM_TESTS = 3
BATCH = 250
ROUNDING = 1e-9  # an exchange that gives the same counts must not seem smaller
_BASE = 2**31  # above every token's number

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSampleResult:
    """One test; ``None`` where no context was visited often enough."""

    name: str
    statistic: float | None
    p_value: float | None  # at least 1 / (permutations + 1)
    adjusted: float | None  # by Holm, over the tests that gave a p value
    n: int  # sequences


def two_sample_tests(
    tokens: ArrayLike, second: ArrayLike, prompts: ArrayLike, *, permutations: int, seed: int
) -> list[TwoSampleResult]:
    """
    Test whether both groups' sequences follow one law, given the prompt.

    Parameters
    ----------
    tokens : array_like, shape (S, T), integers
        Token ids, not negative; ``END`` after a sequence's end. T at least 2.
    second : array_like, shape (S,), bool
        Whether a sequence is of the second group. Each prompt has sequences of both.
    prompts : array_like, shape (S,), integers
        Which prompt a sequence continues.
    permutations : int, 1 or more
        Random exchanges.
    seed : int, 0 or more
        Of the exchanges.

    Returns
    -------
    list of TwoSampleResult
        "bigram chi-square", "chi-square by position" and "MMD, Hamming kernel". The smallest adjusted p value is at most
        alpha with probability alpha, or less, if the sequences of a prompt are exchangeable.

    Raises
    ------
    ValueError
        The shapes do not fit, a value is out of range, or a prompt lacks a group.

    Notes
    -----
    A p value is ``(1 + exchanges with at least the observed statistic) / (1 + permutations)``, which is exact at any
    number of sequences [1]_.

    Chi-square: in each context, 2 x m frequencies of the next token, Pearson's statistic summed over contexts. Contexts are
    (prompt, token before) and (prompt, position). Tokens that either group is expected to show fewer than ``MIN_EXPECTED``
    times become one cell; if that one is still below, it joins the smallest cell kept. Merging looks at both groups together,
    so an exchange does not change it.

    MMD: the kernel is the number of positions at which two sequences of one prompt agree [2]_. Its squared mean discrepancy is
    the sum over positions of the squared distance of both groups' frequencies, which is how it is computed here: O(S T)
    for each exchange, with no table of pairs. The end counts as a token.

    The chi-squares see more of what goes wrong in a speculative decoder; the MMD is there for what they merge.
    Cost: O(S T permutations). Held by: tests/stats/test_stats_two_sample.py.

    References
    ----------
    .. [1] Phipson, Smyth, "Permutation p-values should never be zero", 2010, arXiv:1603.05766.
    .. [2] Gao, Liang, Guestrin, "Model equality testing: which model is this API serving?", 2024, arXiv:2410.20247.
    """
    table, groups, owners = _checked(tokens, second, prompts)
    if permutations < 1:
        raise ValueError(f"permutations must be at least 1, got {permutations}")
    shares = np.array([groups[owners == owner].mean() for owner in range(owners.max() + 1)])
    least = float(np.minimum(shares, 1.0 - shares).min())
    statistics = {
        "bigram chi-square": _chi2(*_transitions(table, owners), len(table), least),
        "chi-square by position": _chi2(*_by_position(table, owners), len(table), least),
        "MMD, Hamming kernel": _mmd(table, groups, owners),
    }
    observed = {name: float(of(groups[:, None].astype(np.float64))[0]) for name, of in statistics.items() if of}
    reached = dict.fromkeys(observed, 0)
    for labels in _exchanges(groups, owners, permutations, np.random.default_rng(seed)):
        for name, of in statistics.items():
            if of:
                reached[name] += int((of(labels) >= observed[name] * (1.0 - ROUNDING)).sum())
    p_values = {name: (1 + count) / (1 + permutations) for name, count in reached.items()}
    adjusted = dict(zip(p_values, holm(list(p_values.values())).tolist(), strict=True))
    return [
        TwoSampleResult(
            name=name,
            statistic=observed.get(name),
            p_value=p_values.get(name),
            adjusted=adjusted.get(name),
            n=len(table),
        )
        for name in statistics
    ]


# from labels, shape (S, R), 1 for the second group, to statistics, shape (R,)
_Statistic = Callable[[Array], Array]


def _exchanges(groups: Flags, owners: Integers, permutations: int, generator: np.random.Generator) -> Iterator[Array]:
    """Yield labels, shape (S, R), shuffled within each prompt."""
    rows = [np.flatnonzero(owners == owner) for owner in range(owners.max() + 1)]
    for start in range(0, permutations, BATCH):
        width = min(BATCH, permutations - start)
        labels = np.empty((len(groups), width))
        for chosen in rows:
            labels[chosen] = generator.permuted(np.tile(groups[chosen], (width, 1)), axis=1).T
        yield labels


def _transitions(table: Integers, owners: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the sequence, the context (prompt, token before) and the token, of each token but first ones."""
    sequence, at = np.nonzero(table[:, :-1] != END)
    before = table[sequence, at]
    return sequence, owners[sequence] * (table.max() + 1) + before, table[sequence, at + 1]


def _by_position(table: Integers, owners: Integers) -> tuple[Integers, Integers, Integers]:
    sequence, at = np.nonzero(table[:, :-1] != END)
    return sequence, owners[sequence] * table.shape[1] + at, table[sequence, at + 1]


def _chi2(
    sequence: Integers, context: Integers, token: Integers, num_sequences: int, least: float
) -> _Statistic | None:
    """Return the statistic as a function of labels, or None if no context has two cells."""
    cell_of, cells = _merged(context, token, least)
    kept = cell_of >= 0
    if not kept.any():
        return None
    counted = _counter(cell_of[kept], sequence[kept], len(cells), num_sequences)
    first = np.flatnonzero(np.diff(cells, prepend=-1))
    lengths = np.diff(first, append=len(cells))
    both = counted(np.ones((num_sequences, 1)))[:, 0]
    visits = np.add.reduceat(both, first)

    def statistic(labels: Array) -> Array:
        of_second = counted(labels)
        visits_of_second = np.add.reduceat(of_second, first, axis=0)
        expected = both[:, None] * np.repeat(visits_of_second / visits[:, None], lengths, axis=0)
        by_context = np.add.reduceat((of_second - expected) ** 2 / both[:, None], first, axis=0)
        scale = visits_of_second * (visits[:, None] - visits_of_second) / visits[:, None] ** 2
        found: Array = np.divide(by_context, scale, out=np.zeros_like(by_context), where=scale > 0.0).sum(axis=0)
        return found

    return statistic


def _merged(context: Integers, token: Integers, least: float) -> tuple[Integers, Integers]:
    """
    Return each observation's cell, -1 where its context is dropped, and each cell's context, in ascending order.

    ``least`` is the smaller group's share of the sequences.
    """
    pairs, member, count = np.unique(_joint(context, token), return_inverse=True, return_counts=True)
    contexts, tokens = pairs // _BASE, pairs % _BASE
    needed = MIN_EXPECTED / least
    rare = count < needed
    _, first, which = np.unique(contexts, return_index=True, return_inverse=True)
    # what the rare ones of a context become: a cell of their own, or its smallest kept one
    smallest = np.minimum.reduceat(np.where(rare, np.iinfo(np.int64).max, count), first)[which]
    host = np.maximum.reduceat(np.where(~rare & (count == smallest), tokens, -1), first)[which]
    enough = np.add.reduceat(np.where(rare, count, 0), first)[which] >= needed
    name = np.where(rare, np.where(enough, _BASE - 2, host), tokens)
    joint, cell_of = np.unique(_joint(contexts, name), return_inverse=True)
    cells = joint // _BASE
    _, which, size = np.unique(cells, return_inverse=True, return_counts=True)
    usable = size[which] >= 2
    numbers = np.where(usable, np.cumsum(usable) - 1, -1)
    return numbers[cell_of][member], cells[usable]


def _counter(cell_of: Integers, sequence: Integers, num_cells: int, num_sequences: int) -> Callable[[Array], Array]:
    """Return what counts the labelled sequences' tokens in each cell: from (S, R) to (cells, R)."""
    counts = csr_array((np.ones(len(cell_of)), (cell_of, sequence)), shape=(num_cells, num_sequences))
    return lambda labels: np.asarray(counts @ labels)


def _joint(high: Integers, low: Integers) -> Integers:
    """Return one number for two; -1 and up for the second."""
    return high * _BASE + low + 1


def _mmd(table: Integers, groups: Flags, owners: Integers) -> _Statistic:
    later = table[:, 1:]
    sequence, at = np.indices(later.shape).reshape(2, -1)
    places = owners[sequence] * later.shape[1] + at
    cells, cell_of = np.unique(_joint(places, later.reshape(-1)), return_inverse=True)
    counted = _counter(cell_of, sequence, len(cells), len(table))
    owner = cells // _BASE // later.shape[1]
    sizes = np.bincount(owners).astype(np.float64)
    in_second = np.bincount(owners, weights=groups)
    weight = (sizes / sizes.sum())[owner, None] ** 2
    both = counted(np.ones((len(table), 1)))
    size_one, size_two = (sizes - in_second)[owner, None], in_second[owner, None]

    def statistic(labels: Array) -> Array:
        of_second = counted(labels)
        found: Array = (weight * (of_second / size_two - (both - of_second) / size_one) ** 2).sum(axis=0)
        return found

    return statistic


def _checked(tokens: ArrayLike, second: ArrayLike, prompts: ArrayLike) -> tuple[Integers, Flags, Integers]:
    table, groups, owners = np.asarray(tokens), np.asarray(second), np.asarray(prompts)
    if table.ndim != 2 or table.shape[1] < 2 or groups.shape != owners.shape or groups.shape != table.shape[:1]:
        raise ValueError(
            f"shapes must be (S, T) with T at least 2, (S,) and (S,), got {table.shape}, {groups.shape}, {owners.shape}"
        )
    if not np.issubdtype(table.dtype, np.integer) or (table < END).any():
        raise ValueError(f"tokens must be integers from 0, or {END} after the end")
    ended = table == END
    if (ended[:, :-1] & ~ended[:, 1:]).any():
        raise ValueError(f"a token stands after the end ({END}) of its sequence")
    groups = groups.astype(bool)
    _, owners = np.unique(owners, return_inverse=True)
    in_second = np.bincount(owners, weights=groups)
    if not len(table) or (in_second == 0).any() or (in_second == np.bincount(owners)).any():
        raise ValueError("each prompt needs sequences of both groups")
    # tokens by number, so that a pair fits into 64 bits whatever the ids are
    numbers = np.searchsorted(np.unique(table[~ended]), table)
    return np.where(ended, END, numbers), groups, owners
