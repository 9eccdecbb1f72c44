import math

import numpy as np
import pytest
from numpy.typing import NDArray

from draftproof.stats.variation import TVResult, pooled_tv, total_variation, tv_upper_bound


def _drawn(laws: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw one cell per row by inversion."""
    edges = np.cumsum(laws, axis=1)
    cells = (generator.random(len(laws))[:, None] >= edges).sum(axis=1)
    clipped: NDArray[np.int64] = np.minimum(cells, laws.shape[1] - 1)
    return clipped


def test_total_variation_is_half_the_absolute_difference() -> None:
    assert total_variation([0.5, 0.3, 0.2], [0.2, 0.2, 0.6]) == pytest.approx(0.4)
    assert total_variation([1.0, 0.0], [0.0, 1.0]) == 1.0
    assert total_variation([0.25, 0.75], [0.25, 0.75]) == 0.0


def test_the_margin_is_the_written_formula() -> None:
    expected = 0.004 + math.sqrt((8 * math.log(2) + math.log(20)) / 64_000)
    assert tv_upper_bound(0.004, cells=8, tokens=32_000, alpha=0.05) == pytest.approx(expected)


def test_the_bound_never_exceeds_one() -> None:
    assert tv_upper_bound(0.9, cells=8, tokens=3, alpha=0.05) == 1.0


def test_no_tokens_give_no_number() -> None:
    assert pooled_tv(np.empty(0, dtype=int), np.empty((0, 4))) == TVResult(estimate=None, upper_bound=None, tokens=0)


def test_pooled_estimate_compares_frequencies_with_mean_probabilities() -> None:
    result = pooled_tv([0, 1, 1, 1], [[1.0, 0.0], [0.5, 0.5], [0.5, 0.5], [0.0, 1.0]], alpha=0.05)
    assert result.estimate == pytest.approx(0.25)
    assert result.upper_bound == tv_upper_bound(0.25, cells=2, tokens=4, alpha=0.05)
    assert result.tokens == 4


def test_a_correct_sampler_seldom_exceeds_the_tolerance_at_the_default_size() -> None:
    """
    Rank cells (each row sorted), another law per token, m = 8, N = 32,000, delta = .02, 200 runs.

    The margin alone is .0116. Simulated beforehand with another seed: mean bound .0162, 8 of 600 runs at or above .02.
    False alarm (more than 12 of 200) below 1e-5 at that rate, below .3 % at .025, its upper 95 % limit; misses a rate
    up to .06. Flat laws exceed more often (measured: 12 of 200), so the tolerance needs more tokens there.
    """
    generator = np.random.default_rng(5)
    num_exceeding = 0
    for _ in range(200):
        laws = -np.sort(-generator.dirichlet(np.full(8, 0.5), size=32_000), axis=1)
        bound = pooled_tv(_drawn(laws, generator), laws).upper_bound
        assert bound is not None
        num_exceeding += bound >= 0.02
    assert num_exceeding <= 12


@pytest.mark.parametrize("shift", [0.02, 0.05])
def test_a_shifted_sampler_is_never_bounded_below_its_true_distance(shift: float) -> None:
    """
    Mass ``shift`` moved between two cells, so TV = ``shift`` in every context, N = 8,000, 400 runs, alpha = .05.

    False alarm: a valid bound is below the truth in at most 5 % of runs, so more than 40 of 400 has probability below
    1e-4. Misses a bound that is too low in less than about 10 % of runs.
    """
    generator = np.random.default_rng(6)
    base = np.array([0.4, 0.3, 0.2, 0.1])
    moved = base + shift * np.array([-1.0, 0.0, 0.0, 1.0])
    laws = np.broadcast_to(base, (8000, 4))
    num_below = 0
    for _ in range(400):
        bound = pooled_tv(generator.choice(4, size=8000, p=moved), laws, alpha=0.05).upper_bound
        assert bound is not None
        num_below += bound < shift
    assert num_below <= 40


def test_opposite_errors_in_two_contexts_cancel() -> None:
    """The known blind spot: the bound alone must never pass a decoder."""
    laws = np.tile([0.5, 0.5], (1000, 1))
    cells = np.repeat([0, 1], 500)  # context 1 always emits cell 0, context 2 always cell 1
    assert pooled_tv(cells, laws).estimate == 0.0


@pytest.mark.parametrize("cells", [[0, 2], [-1, 0], [0.0, 1.0]], ids=["too-large", "negative", "not-integer"])
def test_a_cell_out_of_range_is_refused(cells: list[float]) -> None:
    with pytest.raises(ValueError, match=r"integers in \[0, 2\)"):
        pooled_tv(cells, [[0.5, 0.5], [0.5, 0.5]])


@pytest.mark.parametrize("row", [[0.5, 0.4], [1.2, -0.2], [float("nan"), 1.0]], ids=["sum", "negative", "nan"])
def test_a_row_that_is_no_distribution_is_refused(row: list[float]) -> None:
    with pytest.raises(ValueError, match="sum to 1 within"):
        pooled_tv([0], [row])
    with pytest.raises(ValueError, match="sum to 1 within"):
        total_variation(row, [0.5, 0.5])


@pytest.mark.parametrize(
    ("tv", "cells", "tokens", "alpha", "message"),
    [
        pytest.param(-0.1, 2, 5, 0.05, "tv_estimate", id="estimate"),
        pytest.param(0.1, 0, 5, 0.05, "at least 1", id="cells"),
        pytest.param(0.1, 2, 0, 0.05, "at least 1", id="tokens"),
        pytest.param(0.1, 2, 5, 0.0, "0 < alpha < 1", id="alpha"),
    ],
)
def test_bound_refuses_arguments_outside_their_interval(
    tv: float, cells: int, tokens: int, alpha: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tv_upper_bound(tv, cells=cells, tokens=tokens, alpha=alpha)
