"""The bound covers, the estimate is the written one, and the planned number of sequences is enough."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from draftproof.stats.two_sample_variation import RankCells, sequences_needed, two_sample_tv

Integers = NDArray[np.int64]
PROMPTS, T, M = 2, 3, 4


def drawn(generator: np.random.Generator, laws: NDArray[np.float64], count: int) -> Integers:
    """``count`` sequences of each prompt, which keep a token with probability .3: positions depend on each other."""
    prompts = np.repeat(np.arange(PROMPTS), count)
    table = np.empty((len(prompts), T), dtype=np.int64)
    for at in range(T):
        edges = laws[prompts].cumsum(axis=1)[:, :-1]
        fresh = (generator.random(len(prompts))[:, None] > edges).sum(axis=1)
        keep = (generator.random(len(prompts)) < 0.3) & (at > 0)
        table[:, at] = np.where(keep, table[:, at - 1], fresh)
    return table


def bound_of(generator: np.random.Generator, one: NDArray[np.float64], two: NDArray[np.float64], count: int) -> float:
    prompts = np.repeat(np.arange(PROMPTS), count)
    found = two_sample_tv(
        drawn(generator, one, count), drawn(generator, two, count), prompts, prompts, num_cells=M, alpha=0.05
    )
    assert found.upper_bound is not None
    return found.upper_bound


def test_the_estimate_is_the_mean_over_prompts_and_positions() -> None:
    one = [[0, 0], [1, 0], [0, 1]]
    two = [[0, 1], [0, 1], [1, 1], [1, 1]]
    found = two_sample_tv(one, two, [0, 0, 1], [0, 0, 1, 1], num_cells=2, alpha=0.05)
    assert found.estimate == pytest.approx(((0.5 + 1.0) / 2 + (1.0 + 0.0) / 2) / 2)
    squares = 2 * (1 / 4) ** 2 + (1 / 2) ** 2 + 4 * (1 / 4) ** 2
    assert found.upper_bound == pytest.approx(min(1.0, found.estimate + math.sqrt(math.log(20) / 2 * squares)))
    assert found.tokens == 14


def test_with_equal_sizes_the_margin_is_the_written_formula() -> None:
    generator = np.random.default_rng(1)
    cells, prompts = generator.integers(0, 3, (800, 5)), np.arange(800) % 4
    found = two_sample_tv(cells[:400], cells[400:], prompts[:400], prompts[400:], num_cells=3, alpha=0.01)
    assert found.estimate is not None and found.upper_bound is not None
    assert found.upper_bound - found.estimate == pytest.approx(math.sqrt((1 / 400 + 1 / 400) * math.log(100) / 2))


@pytest.mark.parametrize("shift", [0.05, 0.2])
def test_the_bound_is_seldom_below_the_truth(shift: float) -> None:
    """
    Mass ``shift`` moved between two cells at every position, 300 sequences, 400 pairs, alpha = .05.

    False alarm: a valid bound is below the truth in at most 5 % of runs, so more than 40 of 400 has probability below 1e-4.
    """
    generator = np.random.default_rng(2)
    base = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.1, 0.3, 0.5]])
    moved = base + shift * np.array([[-1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, -1.0]])
    assert sum(bound_of(generator, base, moved, 150) < shift for _ in range(400)) <= 40


def test_errors_of_opposite_sign_at_two_prompts_do_not_cancel() -> None:
    generator = np.random.default_rng(3)
    base = np.tile([0.5, 0.5, 0.0, 0.0], (2, 1))
    moved = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    assert bound_of(generator, base, moved, 200) > 0.5


def test_the_planned_number_of_sequences_is_enough_for_the_hardest_law_and_not_twice_too_many() -> None:
    """
    Delta .15, power .9, 200 pairs of even laws. Fewer than 165 successes of 200 has probability below .001 at power .9.

    With half as many sequences, hardly any passes.
    """
    generator = np.random.default_rng(4)
    even = np.full((2, M), 1.0 / M)
    count = sequences_needed(num_cells=M, prompts=PROMPTS, delta=0.15, alpha=0.05)
    passed = sum(bound_of(generator, even, even, count) < 0.15 for _ in range(200))
    assert passed >= binom.ppf(1e-3, 200, 0.9)
    assert sum(bound_of(generator, even, even, count // 2) < 0.15 for _ in range(200)) <= 20


def test_more_is_needed_for_more_cells_a_smaller_delta_and_a_smaller_risk() -> None:
    base = sequences_needed(num_cells=8, prompts=4, delta=0.05, alpha=0.05)
    assert base == 2767
    chance = math.sqrt(8 * 7 / (2 * math.pi))
    assert base == math.ceil(((chance + math.sqrt(math.log(20)) + 0.3 * math.sqrt(2) * 1.2815515655) / 0.05) ** 2 / 4)
    assert sequences_needed(num_cells=16, prompts=4, delta=0.05, alpha=0.05) > base
    assert sequences_needed(num_cells=8, prompts=4, delta=0.025, alpha=0.05) == pytest.approx(4 * base, abs=4)
    assert sequences_needed(num_cells=8, prompts=4, delta=0.05, alpha=0.01) > base
    assert sequences_needed(num_cells=8, prompts=1, delta=0.05, alpha=0.05) < 4 * base


def test_the_most_frequent_tokens_of_a_prompt_and_position_have_their_own_cell() -> None:
    seen = np.array([[9, 5], [9, 5], [9, 6], [8, 7], [8, 7], [8, 5]])
    cells = RankCells(seen, np.array([0, 0, 0, 1, 1, 1]), num_cells=2)
    table = np.array([[9, 5], [8, 6], [9, 7], [9, 5], [9, 4]])
    assert cells.of(table, np.array([0, 0, 1, 1, 0])).tolist() == [[0], [1], [0], [1], [1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"alpha": 1.0}, "0 < alpha < 1", id="alpha"),
        pytest.param({"first": [[0, 2]]}, r"integers in \[0, 2\)", id="cell"),
        pytest.param({"first": [[0]]}, "one T", id="length"),
        pytest.param({"first_prompts": [1]}, "same prompts", id="prompts"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, object], message: str) -> None:
    values = {"first": [[0, 1]], "second": [[0, 1]], "first_prompts": [0], "second_prompts": [0]} | changes
    options = {"num_cells": 2, "alpha": values.pop("alpha", 0.05)}
    with pytest.raises(ValueError, match=message):
        two_sample_tv(*values.values(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"num_cells": 1}, {"prompts": 0}, {"delta": 0.0}, {"alpha": 1.0}])
def test_a_plan_outside_its_intervals_is_refused(changes: dict[str, float]) -> None:
    values = {"num_cells": 4, "prompts": 2, "delta": 0.05, "alpha": 0.05} | changes
    with pytest.raises(ValueError, match=next(iter(changes))):
        sequences_needed(**values)  # type: ignore[arg-type]
