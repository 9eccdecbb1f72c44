import numpy as np
import pytest
from scipy.stats import binom, kstest

from draftproof.stats.score import ScoreResult
from draftproof.stats.uniform import randomised_pit, uniform_correlation


def test_tokens_of_their_law_become_uniform() -> None:
    """Kolmogorov-Smirnov over 20,000 tokens of 20,000 laws; p is below 1e-3 with probability 1e-3, not at this seed."""
    generator = np.random.default_rng(1)
    laws = generator.dirichlet(np.full(6, 0.4), size=20_000)
    cells = (generator.random(20_000)[:, None] >= np.cumsum(laws, axis=1)).sum(axis=1).clip(max=5)
    places = randomised_pit(cells, laws, seed=2)
    assert kstest(places, "uniform").pvalue > 1e-3
    ends = np.cumsum(laws, axis=1)[np.arange(20_000), cells]
    assert (places <= ends + 1e-12).all() and (places >= ends - laws[np.arange(20_000), cells] - 1e-12).all()


def test_the_randomisation_is_seeded() -> None:
    laws = np.full((10, 2), 0.5)
    assert (randomised_pit([0] * 10, laws, 1) == randomised_pit([0] * 10, laws, 1)).all()
    assert (randomised_pit([0] * 10, laws, 1) != randomised_pit([0] * 10, laws, 2)).all()


def test_independent_numbers_are_flagged_as_often_as_alpha_says() -> None:
    """4,000 runs of 99 overlapping pairs, alpha = .05 and .001; binomial bands, 1e-5 on each side."""
    numbers = np.random.default_rng(3).random((4000, 100))
    p_values = np.array([uniform_correlation(row[:-1], row[1:]).p_value for row in numbers], dtype=np.float64)
    for alpha in (0.05, 1e-3):
        count = int((p_values <= alpha).sum())
        assert binom.ppf(1e-5, 4000, alpha) <= count <= binom.ppf(1 - 1e-5, 4000, alpha)


def test_a_random_stream_that_is_used_twice_is_found() -> None:
    """
    Tokens of different laws drawn by inversion from the same 300 numbers.

    The numbers' own correlation is 1, z = 17; the randomisation leaves about .7 of it, and 4.9 are needed for 1e-6.
    """
    generator = np.random.default_rng(4)
    shared = generator.random(300)
    places = []
    for seed in (5, 6):
        laws = generator.dirichlet(np.full(6, 1.0), size=300)
        cells = (shared[:, None] >= np.cumsum(laws, axis=1)).sum(axis=1).clip(max=5)
        places.append(randomised_pit(cells, laws, seed))
    result = uniform_correlation(*places)
    assert result.z is not None and result.z > 0 and result.p_value is not None and result.p_value < 1e-6


def test_no_pairs_give_no_number() -> None:
    assert uniform_correlation([], []) == ScoreResult(z=None, p_value=None, n=0)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        uniform_correlation([0.1], [0.1, 0.2])
    with pytest.raises(ValueError, match=r"interval \[0, 1\]"):
        uniform_correlation([1.5], [0.5])
    with pytest.raises(ValueError, match="shapes must be"):
        randomised_pit([0, 1], [[0.5, 0.5]], 1)
