import math

import numpy as np
import pytest
from scipy.stats import binom, norm, poisson

from draftproof.stats.score import ScoreResult, tilted_score_test


def indicator(rate: float, count: int, hits: int) -> ScoreResult:
    probs = np.broadcast_to([1 - rate, rate], (count, 2))
    cells = np.repeat([1, 0], [hits, count - hits])
    return tilted_score_test(np.broadcast_to([0.0, 1.0], (count, 2)), probs, cells)


@pytest.mark.parametrize(("rate", "hits"), [(0.02, 12), (0.02, 25), (0.3, 100), (0.3, 30), (0.98, 185)])
def test_the_tail_of_a_count_is_the_binomial_one(rate: float, hits: int) -> None:
    """200 tokens, within 3 %, where the normal law is off by factors: 1e9 for the second."""
    result = indicator(rate, 200, hits)
    assert result.z is not None and result.p_value is not None
    exact = binom.sf(hits - 1, 200, rate) if result.z > 0 else binom.cdf(hits, 200, rate)
    assert result.p_value == pytest.approx(2 * exact, rel=0.03)
    assert result.z == pytest.approx((hits - 200 * rate) / math.sqrt(200 * rate * (1 - rate)))


def test_a_rare_token_that_came_twice_is_no_scandal() -> None:
    """Expected .1 times: the normal law says 2e-9, Poisson's .0047."""
    result = indicator(0.001, 100, 2)
    assert result.z is not None and 2 * norm.sf(result.z) < 1e-8
    assert result.p_value == pytest.approx(2 * poisson.sf(1, 0.1), rel=0.1)


def test_a_sum_at_its_limit_has_its_exact_probability() -> None:
    assert indicator(0.1, 10, 10).p_value == pytest.approx(2 * 0.1**10)
    assert indicator(0.5, 40, 0).p_value == pytest.approx(2 * 0.5**40)


def test_near_the_centre_it_is_the_normal_law() -> None:
    generator = np.random.default_rng(1)
    laws = generator.dirichlet(np.ones(4), size=50)
    values = np.log(laws)
    cells = np.array([generator.choice(4, p=law) for law in laws])
    mean = (laws * values).sum(axis=1)
    variance = (laws * (values - mean[:, None]) ** 2).sum()
    z = (values[np.arange(50), cells] - mean).sum() / math.sqrt(variance)
    result = tilted_score_test(values, laws, cells)
    assert abs(z) < 2
    assert (result.z, result.p_value) == (pytest.approx(z), pytest.approx(2 * norm.sf(abs(z))))


@pytest.mark.parametrize("alpha", [0.05, 1e-3], ids=["centre", "tail"])
def test_p_values_of_a_correct_sampler_are_as_small_as_they_say(alpha: float) -> None:
    """
    20,000 runs of 60 tokens with a skewed score, a log-probability over 5 cells of which one has .005.

    The band is binomial, 1e-5 on each side, widened by a tenth of alpha for the approximation; the normal law has 3 times
    1e-3 here and would fail.
    """
    law = np.array([0.6, 0.25, 0.1, 0.045, 0.005])
    values = np.broadcast_to(np.log(law), (60, 5))
    laws = np.broadcast_to(law, (60, 5))
    runs = np.random.default_rng(2).choice(5, size=(20_000, 60), p=law)
    z = np.log(law)[runs].sum(axis=1) - 60 * float(law @ np.log(law))
    z /= math.sqrt(60 * float(law @ np.log(law) ** 2 - (law @ np.log(law)) ** 2))
    far = np.flatnonzero(np.abs(z) > (1.9 if alpha == 0.05 else 2.5))  # no other p value is near alpha
    p_values = [tilted_score_test(values, laws, runs[index]).p_value for index in far]
    count = sum(p_value is not None and p_value <= alpha for p_value in p_values)
    assert binom.ppf(1e-5, 20_000, 0.9 * alpha) <= count <= binom.ppf(1 - 1e-5, 20_000, 1.1 * alpha)


def test_a_wrong_law_is_found() -> None:
    """Every tenth token is replaced by the likeliest: 5 standard errors at 1,000 tokens, 3.3 are needed; seed fixed."""
    law = np.array([0.4, 0.3, 0.2, 0.1])
    generator = np.random.default_rng(3)
    cells = np.where(generator.random(1000) < 0.15, 0, generator.choice(4, size=1000, p=law))
    result = tilted_score_test(np.broadcast_to(law == law.max(), (1000, 4)), np.broadcast_to(law, (1000, 4)), cells)
    assert result.p_value is not None and result.p_value < 1e-3 and result.n == 1000


def test_what_cannot_vary_gives_no_number() -> None:
    assert tilted_score_test(np.ones((3, 2)), np.full((3, 2), 0.5), [0, 1, 0]) == ScoreResult(None, None, 3)
    assert tilted_score_test(np.ones((0, 2)), np.ones((0, 2)), []) == ScoreResult(None, None, 0)


def test_a_sum_beyond_its_limit_is_impossible() -> None:
    """A cell of probability 0 came, with the largest score."""
    probs = np.broadcast_to([0.5, 0.5, 0.0], (20, 3))
    assert tilted_score_test(np.broadcast_to([0.0, 1.0, 2.0], (20, 3)), probs, [2] * 20).p_value == 0.0


@pytest.mark.parametrize(
    ("scores", "probs", "cells", "message"),
    [
        pytest.param([[0.0, 1.0]], [[0.5, 0.5]], [0, 1], "shapes must be", id="shapes"),
        pytest.param([[0.0, np.inf]], [[0.5, 0.5]], [0], "scores must be finite", id="infinite"),
        pytest.param([[0.0, 1.0]], [[0.5, 0.5]], [2], r"integers in \[0, 2\)", id="cell"),
        pytest.param([[0.0, 1.0]], [[0.5, 0.4]], [0], "sum to 1", id="law"),
    ],
)
def test_bad_input_is_refused(
    scores: list[list[float]], probs: list[list[float]], cells: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tilted_score_test(scores, probs, cells)
