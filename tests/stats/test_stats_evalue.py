import numpy as np
import pytest
from scipy.stats import binom

from draftproof.stats.evalue import (
    DEFAULT_CONCENTRATIONS,
    DEFAULT_LAMBDAS,
    betting_e_value,
    dirichlet_log_e_value,
    log_wealth,
)


def test_running_value_equals_the_mean_of_plain_products() -> None:
    g = np.random.default_rng(1).uniform(-1.0, 1.0, size=50)
    plain = np.mean([np.cumprod(1.0 + stake * g) for stake in DEFAULT_LAMBDAS], axis=0)
    np.testing.assert_allclose(betting_e_value(g), plain, rtol=1e-12)


def test_default_stakes_are_the_registered_ones_on_both_sides() -> None:
    assert sorted(DEFAULT_LAMBDAS) == sorted(s * v for v in (0.02, 0.05, 0.1, 0.2, 0.4) for s in (-1, 1))


def test_looking_after_every_token_keeps_the_false_alarm_rate() -> None:
    """
    2,000 correct sequences of 500 tokens, alpha = .05, looked at after every token.

    Ville: at most 5 % ever reach 20. False alarm <= 1e-6 (binomial at .05); misses a true rate below .075.
    """
    generator = np.random.default_rng(2)
    num_alarms = 0
    for _ in range(2000):
        g = np.where(generator.random(500) < 0.3, 0.7, -0.3)  # indicator of probability .3 minus its mean
        num_alarms += bool((betting_e_value(g) >= 20.0).any())
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
        g = np.where(generator.random(5000) < rate, 0.7, -0.3)
        assert betting_e_value(g)[-1] >= 1e4


def test_overwhelming_evidence_stays_finite() -> None:
    running = betting_e_value(np.ones(10_000))
    assert np.isfinite(running).all()
    assert running[-1] > 1e300


def test_no_tokens_are_no_evidence() -> None:
    assert betting_e_value([]).shape == (0,)


@pytest.mark.parametrize("value", [1.01, -1.01, float("nan")])
def test_scores_outside_their_interval_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"g must be in the interval \[-1, 1\]"):
        betting_e_value([0.0, value])


@pytest.mark.parametrize("stakes", [(), (1.0,), (-1.5, 0.1)], ids=["none", "one", "below"])
def test_stakes_that_can_ruin_are_refused(stakes: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="-1 < lambda < 1"):
        betting_e_value([0.0], stakes)


# --- blocks and mixtures ----------------------------------------------------------------------------------------------


def test_log_wealth_of_blocks_adds_up_to_the_running_value() -> None:
    g = np.random.default_rng(4).uniform(-1.0, 1.0, size=60)
    added = log_wealth(g[:25]) + log_wealth(g[25:])
    assert np.exp(added).mean() == pytest.approx(betting_e_value(g)[-1])
    assert log_wealth([]).tolist() == [0.0] * len(DEFAULT_LAMBDAS)


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


@pytest.mark.parametrize("concentration", DEFAULT_CONCENTRATIONS)
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
