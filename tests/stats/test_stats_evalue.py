import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom

from draftproof.stats.evalue import CONCENTRATIONS, STAKES, dirichlet_log_e_value, log_wealth


def running(hits: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The e-value after each token, for the indicator of something of probability .3 minus its mean."""
    steps = np.where(hits[:, None], log_wealth([0.7]), log_wealth([-0.3]))
    return np.exp(logsumexp(steps.cumsum(axis=0), axis=1) - np.log(len(STAKES)))


def test_the_wealth_is_the_plain_product_and_blocks_add_up() -> None:
    g = np.random.default_rng(1).uniform(-1.0, 1.0, size=50)
    plain = [np.prod(1.0 + stake * g) for stake in STAKES]
    np.testing.assert_allclose(np.exp(log_wealth(g)), plain, rtol=1e-12)
    np.testing.assert_allclose(np.exp(log_wealth(g[:20]) + log_wealth(g[20:])), plain, rtol=1e-12)
    assert log_wealth([]).tolist() == [0.0] * len(STAKES)


def test_the_stakes_are_the_registered_ones_on_both_sides() -> None:
    assert sorted(STAKES) == sorted(s * v for v in (0.02, 0.05, 0.1, 0.2, 0.4) for s in (-1, 1))


def test_looking_after_every_token_keeps_the_false_alarm_rate() -> None:
    """
    2,000 correct sequences of 500 tokens, alpha = .05, looked at after every token.

    Ville: at most 5 % ever reach 20. False alarm <= 1e-6 (binomial at .05); misses a true rate below .075.
    """
    generator = np.random.default_rng(2)
    num_alarms = sum(bool((running(generator.random(500) < 0.3) >= 20.0).any()) for _ in range(2000))
    assert num_alarms <= binom.ppf(1 - 1e-6, 2000, 0.05)


@pytest.mark.parametrize("rate", [0.2, 0.4], ids=["too-seldom", "too-often"])
def test_a_wrong_rate_is_found_from_either_side(rate: float) -> None:
    """
    True rate .1 away from .3, 5,000 tokens, threshold 1 / alpha = 10,000, 20 runs.

    The best stake grows the log wealth by .022 a token or more, so by 110, with standard deviation 13; 11.5 is needed.
    False alarm (one of the 40 runs of a correct implementation falls short) below 1e-11; misses an implementation
    whose log wealth grows at least a fifth as fast.
    """
    generator = np.random.default_rng(3)
    for _ in range(20):
        assert running(generator.random(5000) < rate)[-1] >= 1e4


@pytest.mark.parametrize("value", [1.01, -1.01, float("nan")])
def test_scores_outside_their_interval_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"g must be in the interval \[-1, 1\]"):
        log_wealth([0.0, value])


def test_the_mixture_is_the_product_of_its_predictions() -> None:
    """Cells one after the other: (A p_c + n_c) / (A + n) over p_c, in plain arithmetic; order does not matter."""
    law, concentration = np.array([0.5, 0.3, 0.2]), 7.0
    cells = np.random.default_rng(5).integers(0, 3, size=40)
    value, counts = 1.0, np.zeros(3)
    for cell in cells:
        value *= (concentration * law[cell] + counts[cell]) / (concentration + counts.sum()) / law[cell]
        counts[cell] += 1
    assert dirichlet_log_e_value([counts], [law], concentration)[0] == pytest.approx(np.log(value))
    assert dirichlet_log_e_value([[0, 0, 0]], [law], concentration)[0] == 0.0


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_looking_at_the_mixture_after_every_token_keeps_the_false_alarm_rate(concentration: float) -> None:
    """4,000 correct runs of 300 tokens, alpha = .05. Ville: at most 5 % ever reach 20; false alarm <= 1e-6."""
    law = np.array([0.6, 0.25, 0.1, 0.05])
    runs = np.random.default_rng(6).choice(4, size=(4000, 300), p=law)
    alarms, counts = np.zeros(4000, dtype=bool), np.zeros((4000, 4))
    for cells in runs.T:
        counts[np.arange(4000), cells] += 1
        alarms |= dirichlet_log_e_value(counts, np.tile(law, (4000, 1)), concentration) >= np.log(20.0)
    assert alarms.sum() <= binom.ppf(1 - 1e-6, 4000, 0.05)


def test_the_mixture_finds_a_wrong_law() -> None:
    """Evenly drawn cells of an uneven law: Kullback-Leibler .13 per token, so log e of about 130 at 1,000 tokens."""
    counts = np.random.default_rng(7).multinomial(1000, [0.25] * 4)
    assert dirichlet_log_e_value([counts], [[0.4, 0.3, 0.2, 0.1]], 20.0)[0] > 80


def test_a_cell_of_probability_zero_is_proof() -> None:
    found = dirichlet_log_e_value([[3, 1], [4, 0]], [[1.0, 0.0], [1.0, 0.0]], 20.0)
    assert found[0] == np.inf and found[1] == pytest.approx(0.0, abs=1e-12)


def test_bad_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        dirichlet_log_e_value([[1, 2]], [[1.0]], 20.0)
    with pytest.raises(ValueError, match="must not be negative"):
        dirichlet_log_e_value([[-1, 2]], [[0.5, 0.5]], 20.0)
    with pytest.raises(ValueError, match="above 0"):
        dirichlet_log_e_value([[1, 2]], [[0.5, 0.5]], 0.0)
