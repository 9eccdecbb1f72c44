"""
The tests that a log of sampled tokens goes through, and what they say together.

Each asks whether the tokens were drawn from the target's law, and each sees another way in which they might not be. For
a fixed number of tokens: a run that stops by what it saw is `eprocess`'s.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.stats.duplicates import duplicate_test
from draftproof.stats.goodness import Chi2Result, holm, pooled_chi2
from draftproof.stats.independence import conditional_independence
from draftproof.stats.score import ScoreResult, tilted_score_test
from draftproof.stats.uniform import randomised_pit, uniform_correlation
from draftproof.verify.log import TokenLog
from draftproof.verify.scores import scores

MIN_STRATUM_TOKENS = 50
DEFAULT_LAGS = 6  # where K is not known
PIT_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedResult:
    """One test; ``None`` for all tokens as the stratum, for a number that there was too little to compute."""

    name: str
    stratum: str | None
    statistic: float | None
    p_value: float | None
    n: int  # what it was computed from: tokens, pairs or sequences
    adjusted: float | None = None  # by Holm, over all tests that gave a p value

    @property
    def title(self) -> str:
        """The test and where it looked."""
        return self.name if self.stratum is None else f"{self.name} at {self.stratum}"

    @property
    def row(self) -> dict[str, Any]:
        """As the evidence has it."""
        return {
            "test": self.name,
            "tokens of": self.stratum or "all",
            "n": self.n,
            "statistic": self.statistic,
            "p value": self.p_value,
            "adjusted": self.adjusted,
        }


def least(tests: Iterable[NamedResult]) -> tuple[float, str]:
    """Return the smallest adjusted p value and the title of its test."""
    found = min((item for item in tests if item.adjusted is not None), key=lambda item: (item.adjusted, item.p_value))
    return found.adjusted or 0.0, found.title


def examine(log: TokenLog) -> list[NamedResult]:
    """
    Run every test that the log allows.

    Returns
    -------
    list of NamedResult
        With p values adjusted for their number, so that the smallest is at most alpha with probability alpha, or less,
        for tokens that were drawn from the target's law. A stratum with fewer than ``MIN_STRATUM_TOKENS`` tokens is one
        result without numbers.
    """
    results = [_support(log), *_laws(log, None), *_dependence(log)]
    for name, chosen in strata(log).items():
        count = int(chosen.sum())
        if count < MIN_STRATUM_TOKENS:
            results.append(NamedResult(name="too few tokens", stratum=name, statistic=None, p_value=None, n=count))
        else:
            results.extend(_laws(select(log, chosen), name))
    adjusted = iter(holm([item.p_value for item in results if item.p_value is not None]))
    return [item if item.p_value is None else replace(item, adjusted=float(next(adjusted))) for item in results]


def strata(log: TokenLog) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which tokens each stratum holds: place in the round by outcome of the one before. None if there is one."""
    keys = [f"'{place}'" for place in log.strata]
    if log.after is not None:
        keys = [f"{place} after '{before}'" for place, before in zip(keys, log.after, strict=True)]
    names = np.array(keys)
    different = sorted(set(keys))
    return {name: names == name for name in different} if len(different) > 1 else {}


def select(log: TokenLog, chosen: npt.NDArray[np.bool_]) -> TokenLog:
    """Return what `_laws` reads of the chosen tokens."""
    return replace(
        log,
        cells=log.cells[chosen],
        laws=log.laws[chosen],
        contexts=log.contexts[chosen],
        draft_laws=None if log.draft_laws is None else log.draft_laws[chosen],
    )


def _support(log: TokenLog) -> NamedResult:
    """A token of probability zero cannot come by chance."""
    impossible = np.flatnonzero(log.laws[np.arange(len(log.cells)), log.cells] == 0.0)
    name, p_value = "support", 1.0
    if impossible.size:
        name, p_value = f"support (cell {log.cells[impossible[0]]} came with probability 0)", 0.0
    return NamedResult(name=name, stratum=None, statistic=float(impossible.size), p_value=p_value, n=len(log.cells))


def _laws(log: TokenLog, stratum: str | None) -> Iterator[NamedResult]:
    yield _of_table("chi-square over (context, token)", stratum, pooled_chi2(log.contexts, log.cells, log.laws))
    for name, values in scores(log).items():
        known = ~np.isnan(values[:, 0])
        found = tilted_score_test(values[known], log.laws[known], log.cells[known])
        yield _of_score(f"score of {name}", stratum, found)


def _dependence(log: TokenLog) -> Iterator[NamedResult]:
    if log.after is not None:
        found = conditional_independence(log.contexts, log.cells, log.after, log.laws)
        yield _of_table("independence of token and outcome before", None, found)
    if log.sequences is None or log.positions is None or not len(log.cells):
        return
    uniform = randomised_pit(log.cells, log.laws, PIT_SEED)
    table, prompts = _by_sequence(log, uniform), _by_sequence(log, log.contexts.astype(np.float64))
    lags = DEFAULT_LAGS if log.num_speculative_tokens is None else log.num_speculative_tokens + 1
    for lag in range(1, min(lags, table.shape[1] - 1) + 1):
        yield _of_score(f"correlation at lag {lag}", None, _correlation(table[:, :-lag], table[:, lag:]))
    yield _of_score("correlation across rows", None, _correlation(table[:-1], table[1:]))
    at = np.arange(len(log.cells))
    chances = np.exp(np.nansum(_by_sequence(log, np.log(np.maximum(log.laws[at, log.cells], 1e-300))), axis=1))
    tokens = np.nan_to_num(_by_sequence(log, log.cells.astype(np.float64)), nan=-1.0)
    _, same = np.unique(tokens, axis=0, return_inverse=True)
    if log.other_cell is not None:
        # which token it was is not known, so such a sequence repeats none and none repeats it
        unknown = (tokens >= log.other_cell).any(axis=1)
        chances[unknown] = 0.0
        same[unknown] = len(tokens) + np.arange(int(unknown.sum()))
    found_twice = duplicate_test(same, chances, prompts[:, 0].astype(np.int64))
    yield _of_score("repeated sequences", None, found_twice)


def _by_sequence(log: TokenLog, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return (sequences, positions), NaN after a sequence's end."""
    assert log.sequences is not None and log.positions is not None
    _, rows = np.unique(log.sequences, return_inverse=True)
    table = np.full((int(rows.max()) + 1, int(log.positions.max()) + 1), np.nan)
    table[rows, log.positions] = values
    return table


def _correlation(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> ScoreResult:
    both = ~np.isnan(left) & ~np.isnan(right)
    return uniform_correlation(left[both], right[both])


def _of_score(name: str, stratum: str | None, found: ScoreResult) -> NamedResult:
    return NamedResult(name=name, stratum=stratum, statistic=found.z, p_value=found.p_value, n=found.n)


def _of_table(name: str, stratum: str | None, found: Chi2Result) -> NamedResult:
    return NamedResult(name=name, stratum=stratum, statistic=found.statistic, p_value=found.p_value, n=found.tokens)
