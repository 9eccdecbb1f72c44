import numpy as np
import pytest
from scipy.stats import binom, norm

from draftproof.stats.interval import Interval
from draftproof.stats.quantile import min_sample_size, quantile_interval


@pytest.mark.parametrize(
    ("quantile", "size"),
    [
        pytest.param(0.95, 72, id="p95"),
        pytest.param(0.99, 368, id="p99"),
        pytest.param(0.999, 3688, id="p99.9"),
        pytest.param(0.05, 72, id="p5-mirrors-p95"),
        pytest.param(0.5, 6, id="median"),
    ],
)
def test_minimum_sample_size_is_the_published_one(quantile: float, size: int) -> None:
    assert min_sample_size(quantile, 0.95) == size


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95, 0.99, 0.05])
def test_all_is_none_below_the_minimum_and_finite_at_it(quantile: float) -> None:
    size = min_sample_size(quantile, 0.95)
    too_few = np.arange(size - 1, dtype=float)
    enough = quantile_interval(np.arange(size, dtype=float), quantile)
    assert quantile_interval(too_few, quantile) == Interval(estimate=None, low=None, high=None)
    assert enough.estimate is not None and enough.low is not None and enough.high is not None
    assert enough.low <= enough.estimate <= enough.high


@pytest.mark.parametrize(
    ("quantile", "num_values"), [(0.5, 6), (0.5, 20), (0.2, 20), (0.2, 73), (0.9, 73), (0.9, 500), (0.99, 500)]
)
def test_ranks_are_the_tightest_that_the_binomial_law_allows(quantile: float, num_values: int) -> None:
    """Oracle: try every rank."""
    ranks = range(1, num_values + 1)
    low = max(r for r in ranks if binom.cdf(r - 1, num_values, quantile) <= 0.025)
    high = min(s for s in ranks if binom.sf(s - 1, num_values, quantile) <= 0.025)
    found = quantile_interval(np.arange(1.0, num_values + 1.0)[::-1], quantile)
    assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize(("quantile", "num_values"), [(0.5, 50), (0.95, 72), (0.99, 400)])
def test_interval_covers_the_true_quantile_as_often_as_it_says(quantile: float, num_values: int) -> None:
    """
    2,000 samples of a lognormal law.

    False alarm <= 1e-6 per case (binomial, at coverage exactly .95); misses a true coverage above .92 (at .92 it fails
    with probability > .5).
    """
    generator = np.random.default_rng(20240511)
    truth = float(np.exp(norm.ppf(quantile)))
    num_covered = 0
    for _ in range(2000):
        interval = quantile_interval(generator.lognormal(size=num_values), quantile)
        assert interval.low is not None and interval.high is not None
        num_covered += interval.low <= truth <= interval.high
    assert num_covered >= binom.ppf(1e-6, 2000, 0.95)


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="values must be finite"):
        quantile_interval([1.0, float("nan")], 0.5)


@pytest.mark.parametrize("quantile", [0.0, 1.0, -0.1, float("nan")])
def test_a_quantile_outside_its_interval_is_refused(quantile: float) -> None:
    with pytest.raises(ValueError, match="0 < quantile < 1"):
        min_sample_size(quantile, 0.95)


def test_a_confidence_outside_its_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="0 < confidence < 1"):
        quantile_interval([1.0], 0.5, confidence=95.0)


def test_a_hundred_requests_of_many_gaps_are_a_hundred_draws() -> None:
    """Gaps of one request resemble one another: 4,000 of them from 100 requests give a p95 and no p99."""
    gaps = np.arange(4000.0)
    assert quantile_interval(gaps, 0.99).estimate is not None
    assert quantile_interval(gaps, 0.99, num_draws=100) == Interval(estimate=None, low=None, high=None)
    pooled, independent = (quantile_interval(gaps, 0.95, num_draws=count) for count in (100, None))
    assert pooled.estimate == independent.estimate
    assert pooled.low < independent.low < independent.high < pooled.high


@pytest.mark.parametrize(("quantile", "num_draws"), [(0.5, 40), (0.95, 100)])
def test_values_that_come_in_equal_groups_have_the_interval_of_the_groups(quantile: float, num_draws: int) -> None:
    draws = np.random.default_rng(4).lognormal(size=num_draws)
    grouped = quantile_interval(np.repeat(draws, 7), quantile, num_draws=num_draws)
    alone = quantile_interval(draws, quantile)
    assert (grouped.low, grouped.high) == (alone.low, alone.high)
