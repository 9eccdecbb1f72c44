import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, chisquare

from draftproof.stats.goodness import Chi2Result, holm, pooled_chi2
from draftproof.stats.score import tilted_score_test

TARGET = np.array([0.5, 0.3, 0.2])
DRAFT = np.array([0.2, 0.2, 0.6])
NUM_DRAWS = 20_000

# law wanted, law produced by a known wrong sampler; fractions where they have one
MUTANTS = [
    pytest.param(TARGET, np.array([0.5, 1 / 6, 1 / 3]), id="greedy-draft-soft-law"),
    pytest.param(TARGET, np.array([0.4, 0.32, 0.28]), id="resample-from-target"),
    pytest.param(TARGET, np.array([0.35, 0.25, 0.4]), id="absolute-residual"),
    pytest.param(TARGET, np.array([0.2, 0.2, 0.6]), id="every-draft-accepted"),
    pytest.param(np.array([25, 9, 4]) / 38, np.array([0.5, 5 / 22, 3 / 11]), id="temperature-on-one-side"),
]
WANTED_TOP2 = np.array([0.625, 0.375, 0.0])
PRODUCED_TOP2 = np.array([7 / 12, 5 / 12, 0.0])


def _chi2_p(law: NDArray[np.float64], produced: NDArray[np.float64], seed: int, size: int = NUM_DRAWS) -> float:
    cells = np.random.default_rng(seed).choice(law.size, size=size, p=produced)
    p_value = pooled_chi2(np.zeros(size, dtype=int), cells, np.broadcast_to(law, (size, law.size))).p_value
    assert p_value is not None
    return p_value


def _score_p(law: NDArray[np.float64], produced: NDArray[np.float64], seed: int) -> float:
    """The efficient score toward the draft, h3 of the protocol."""
    cells = np.random.default_rng(seed).choice(law.size, size=NUM_DRAWS, p=produced)
    score = np.clip(DRAFT / np.maximum(law, 1e-9) - 1.0, -1.0, 3.0)
    wide = (NUM_DRAWS, law.size)
    p_value = tilted_score_test(np.broadcast_to(score, wide), np.broadcast_to(law, wide), cells).p_value
    assert p_value is not None
    return p_value


@pytest.mark.parametrize(("wanted", "produced"), MUTANTS)
def test_both_tests_reject_every_wrong_law_of_the_power_table(
    wanted: NDArray[np.float64], produced: NDArray[np.float64]
) -> None:
    """
    n = 20,000, alpha = 1e-3, seed fixed.

    Miss rate below 1e-100: under the mildest of these laws, TV .1, the chi-square has non-centrality 1,067 and the
    score lies 30 standard errors from its mean; 3.3 are needed. False alarm: see the test of the correct law.
    """
    assert _chi2_p(wanted, produced, seed=11) < 1e-3
    assert _score_p(wanted, produced, seed=12) < 1e-3


def test_both_tests_reject_the_smallest_wrong_law_of_the_power_table() -> None:
    """
    TV = .0417 between two cells, n = 20,000, alpha = 1e-3.

    The score lies 12 standard errors from its mean and the chi-square has non-centrality 148: miss rate below 1e-15.
    """
    assert _chi2_p(WANTED_TOP2, PRODUCED_TOP2, seed=13) < 1e-3
    assert _score_p(WANTED_TOP2, PRODUCED_TOP2, seed=14) < 1e-3


@pytest.mark.parametrize("law", [TARGET, WANTED_TOP2], ids=["full", "top2"])
def test_neither_test_rejects_the_correct_law(law: NDArray[np.float64]) -> None:
    """
    A sampled draft treated as a point mass has this law too.

    False alarm 1e-3 per assertion by definition, none at the fixed seeds; misses what the tests above do not reject.
    """
    assert _chi2_p(law, law, seed=15) > 1e-3
    assert _score_p(law, law, seed=16) > 1e-3


def test_p_values_of_a_correct_sampler_are_as_small_as_they_say() -> None:
    """
    1,000 runs of 3 contexts with sparse cells, nominal .05, both tests.

    False alarm <= 2e-5 in all (binomial, 23 to 83 of 1,000 allowed, if the asymptotic law were exact); misses a true
    rate between .03 and .075.
    """
    generator = np.random.default_rng(17)
    laws = generator.dirichlet(np.full(16, 0.5), size=3)
    score = np.log(laws)
    contexts = np.repeat(np.arange(3), 400)
    num_chi2 = num_score = 0
    for _ in range(1000):
        cells = np.concatenate([generator.choice(16, size=400, p=law) for law in laws])
        chi2_p = pooled_chi2(contexts, cells, laws[contexts]).p_value
        score_p = tilted_score_test(score[contexts], laws[contexts], cells).p_value
        assert chi2_p is not None and score_p is not None
        num_chi2 += chi2_p < 0.05
        num_score += score_p < 0.05
    low, high = binom.ppf(5e-6, 1000, 0.05), binom.ppf(1 - 5e-6, 1000, 0.05)
    assert low <= num_chi2 <= high
    assert low <= num_score <= high


def test_statistic_of_one_context_equals_that_of_scipy() -> None:
    cells = np.repeat([0, 1, 2], [48, 35, 17])
    reference = chisquare([48, 35, 17], [50, 30, 20])
    result = pooled_chi2(np.zeros(100, dtype=int), cells, np.broadcast_to(TARGET, (100, 3)))
    assert result.df == 2
    assert result.statistic == pytest.approx(reference.statistic)
    assert result.p_value == pytest.approx(reference.pvalue)


def test_contexts_add_up_and_rare_contexts_are_dropped() -> None:
    contexts = np.repeat([7, 3, 9], [100, 100, 6])
    cells = np.concatenate([np.repeat([0, 1, 2], [48, 35, 17]), np.repeat([0, 1, 2], [52, 30, 18]), np.zeros(6, int)])
    statistic = chisquare([48, 35, 17], [50, 30, 20]).statistic + chisquare([52, 30, 18], [50, 30, 20]).statistic
    result = pooled_chi2(contexts, cells, np.broadcast_to(TARGET, (206, 3)))
    assert result.df == 4
    assert result.statistic == pytest.approx(statistic)


def test_cells_expected_below_five_become_one() -> None:
    law = np.array([0.5, 0.38, 0.04, 0.04, 0.04])
    cells = np.repeat(np.arange(5), [45, 40, 9, 2, 4])
    result = pooled_chi2(np.zeros(100, dtype=int), cells, np.broadcast_to(law, (100, 5)))
    assert result.df == 2
    assert result.statistic == pytest.approx(chisquare([45, 40, 15], [50, 38, 12]).statistic)


def test_a_merged_cell_still_below_five_joins_the_smallest_kept() -> None:
    law = np.array([0.5, 0.46, 0.02, 0.02])
    cells = np.repeat(np.arange(4), [45, 47, 5, 3])
    result = pooled_chi2(np.zeros(100, dtype=int), cells, np.broadcast_to(law, (100, 4)))
    assert result.df == 1
    assert result.statistic == pytest.approx(chisquare([45, 55], [50, 50]).statistic)


@pytest.mark.parametrize("num_tokens", [0, 9])
def test_too_few_visits_give_no_number(num_tokens: int) -> None:
    zeros = np.zeros(num_tokens, dtype=int)
    result = pooled_chi2(zeros, zeros, np.broadcast_to(TARGET, (num_tokens, 3)))
    assert result == Chi2Result(statistic=None, df=0, p_value=None)


def test_score_is_the_standardised_sum() -> None:
    result = tilted_score_test([[0.0, 1.0]] * 4, [[0.5, 0.5]] * 4, [1, 1, 1, 1])
    assert result.z == pytest.approx(2.0)
    assert result.p_value == pytest.approx(0.04550026389635842)
    assert result.n == 4


def test_cells_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"integers in \[0, 3\)"):
        pooled_chi2([0], [3], TARGET[None, :])


def test_rows_that_are_no_distribution_are_refused() -> None:
    with pytest.raises(ValueError, match="sum to 1 within"):
        pooled_chi2([0], [0], [[0.5, 0.3, 0.1]])


def test_holm_equals_the_example_worked_by_hand() -> None:
    """Sorted .005 .01 .03 .04 times 4 3 2 1 is .02 .03 .06 .04; the running maximum is .02 .03 .06 .06."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_never_exceeds_one_and_accepts_nothing() -> None:
    assert holm([0.6, 0.7]).tolist() == [1.0, 1.0]
    assert holm([]).shape == (0,)


@pytest.mark.parametrize("bad", [1.2, -0.1, float("nan")])
def test_holm_refuses_what_is_no_p_value(bad: float) -> None:
    with pytest.raises(ValueError, match=r"interval \[0, 1\]"):
        holm([0.1, bad])
