import numpy as np
import pytest
from scipy.stats import binom

from draftproof.stats.interval import Interval
from draftproof.stats.quantile_ratio import quantile_ratio


def test_the_quantiles_are_those_of_single_runs() -> None:
    """Rows of two runs are two values: their mean would have a shorter tail."""
    baseline = np.arange(1.0, 201.0).reshape(100, 2)
    found = quantile_ratio(2 * baseline[:, :1], baseline, np.arange(100), 0.95, 0.95, seed=0)
    assert found.estimate == 2 * 189.0 / 190.0  # the 95th of 100 odd numbers, the 190th of 200


def test_below_the_minimum_of_prompts_there_is_no_number() -> None:
    """71 prompts, each four times, are 71 draws of a p95 that needs 72."""
    times, nothing = np.ones((284, 1)), Interval(estimate=None, low=None, high=None)
    assert quantile_ratio(times, times, np.arange(284) % 71, 0.95, 0.95, seed=0) == nothing
    assert quantile_ratio(times, times, np.arange(284) % 72, 0.95, 0.95, seed=0).estimate == 1.0


def test_what_both_samples_share_cancels() -> None:
    times = np.random.default_rng(5).lognormal(sigma=1.0, size=(100, 1))
    found = quantile_ratio(0.8 * times, times, np.arange(100), 0.95, 0.95, seed=1)
    assert (found.estimate, found.low, found.high) == pytest.approx((0.8, 0.8, 0.8))


def test_interval_covers_the_true_ratio() -> None:
    """
    200 samples of 120 prompts, lengths lognormal, one arm 0.9 of the other with noise of its own; the truth from 2e6 draws.

    False alarm <= 1e-4 (binomial, at a coverage of .93); misses a coverage above .86.
    """
    generator = np.random.default_rng(11)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        length = generator.lognormal(sigma=0.5, size=count)
        return 0.9 * length * generator.lognormal(sigma=0.1, size=count), length

    truth = np.divide(*(np.quantile(arm, 0.95) for arm in drawn(2_000_000)))
    covered = 0
    for seed in range(200):
        after, before = (arm[:, None] for arm in drawn(120))
        found = quantile_ratio(after, before, np.arange(120), 0.95, 0.95, seed)
        assert found.low is not None and found.high is not None
        covered += found.low <= truth <= found.high
    assert covered >= binom.ppf(1e-4, 200, 0.93)
