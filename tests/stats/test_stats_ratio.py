import numpy as np
import pytest
from scipy.stats import binom, ttest_1samp

from draftproof.stats.interval import Interval
from draftproof.stats.ratio import (
    METHOD_BOOTSTRAP,
    METHOD_NONE,
    METHOD_STUDENT_T,
    RatioEstimate,
    cluster_means,
    paired_log_ratio,
)


def test_repeats_of_a_prompt_count_once() -> None:
    means = cluster_means([0.0, 1.0, 2.0, 10.0], ["b", "b", "b", "a"])
    assert means.tolist() == [10.0, 1.0]


def test_cluster_means_of_nothing_are_nothing() -> None:
    assert cluster_means([], []).shape == (0,)


def test_clusters_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="clusters must have the shape of values"):
        cluster_means([1.0, 2.0], [0])


@pytest.mark.parametrize(
    ("num_prompts", "method"), [(2, METHOD_STUDENT_T), (19, METHOD_STUDENT_T), (20, METHOD_BOOTSTRAP)]
)
def test_the_method_switches_at_twenty_prompts(num_prompts: int, method: str) -> None:
    result = paired_log_ratio(np.linspace(0.1, 0.3, num_prompts), confidence=0.95, seed=0)
    assert (result.method, result.n) == (method, num_prompts)
    assert result.interval.estimate == pytest.approx(np.exp(0.2))


def test_student_limits_equal_those_of_scipy() -> None:
    log_ratios = [0.1, 0.25, 0.2, 0.4, 0.05]
    reference = ttest_1samp(log_ratios, 0.0).confidence_interval(0.9)
    interval = paired_log_ratio(log_ratios, confidence=0.9, seed=0).interval
    assert interval.low == pytest.approx(np.exp(reference.low), rel=1e-12)
    assert interval.high == pytest.approx(np.exp(reference.high), rel=1e-12)


def test_no_prompt_gives_no_number() -> None:
    nothing = Interval(estimate=None, low=None, high=None)
    assert paired_log_ratio([], 0.95, seed=0) == RatioEstimate(interval=nothing, n=0, method=METHOD_NONE)


@pytest.mark.parametrize("log_ratios", [[0.0], [0.0] * 5, [0.0] * 40], ids=["one", "five-equal", "forty-equal"])
def test_without_spread_there_are_no_limits(log_ratios: list[float]) -> None:
    result = paired_log_ratio(log_ratios, 0.95, seed=0)
    assert result.interval == Interval(estimate=1.0, low=None, high=None)
    assert result.method == METHOD_NONE


def test_the_same_seed_gives_the_same_limits_and_another_seed_nearly() -> None:
    log_ratios = np.random.default_rng(3).normal(0.2, 0.1, size=200)
    first, again, other = (paired_log_ratio(log_ratios, 0.95, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first.interval.low == pytest.approx(other.interval.low, rel=0.002)


@pytest.mark.parametrize(
    ("num_prompts", "num_samples", "promised"),
    [pytest.param(6, 2000, 0.95, id="student"), pytest.param(40, 400, 0.93, id="bootstrap")],
)
def test_interval_covers_the_true_ratio(num_prompts: int, num_samples: int, promised: float) -> None:
    """
    Normal log ratios around log 1.3.

    The percentile bootstrap of 40 prompts covers about .935 in truth, so .93 is what is promised for it here.
    False alarm <= 1e-4 per case (binomial at the promised coverage; observed at the fixed seed: none); misses a
    coverage above .93 (student) and .88 (bootstrap).
    """
    generator = np.random.default_rng(77)
    num_covered = 0
    for seed in range(num_samples):
        log_ratios = generator.normal(np.log(1.3), 0.15, size=num_prompts)
        interval = paired_log_ratio(log_ratios, 0.95, seed=seed).interval
        assert interval.low is not None and interval.high is not None
        num_covered += interval.low <= 1.3 <= interval.high
    assert num_covered >= binom.ppf(1e-4, num_samples, promised)


def test_a_ratio_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="log_ratios must be finite"):
        paired_log_ratio([0.1, float("-inf")], 0.95, seed=0)


def test_a_confidence_outside_its_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="0 < confidence < 1"):
        paired_log_ratio([0.1, 0.2], 1.0, seed=0)
