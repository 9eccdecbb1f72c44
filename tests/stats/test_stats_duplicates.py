import numpy as np
import pytest
from scipy.stats import binom

from draftproof.stats.duplicates import duplicate_test

LAW = np.random.default_rng(1).dirichlet(np.full(2000, 0.5))


def test_independent_sequences_are_flagged_as_often_as_alpha_says() -> None:
    """1,000 runs of 150 draws out of 2,000 sequences, alpha = .05; binomial band, 1e-5 on each side, for .03 to .06."""
    generator = np.random.default_rng(2)
    prompts = np.arange(150) % 2
    count = 0
    for _ in range(1000):
        names = generator.choice(2000, size=150, p=LAW)
        p_value = duplicate_test(names, LAW[names], prompts).p_value
        assert p_value is not None
        count += p_value <= 0.05
    assert binom.ppf(1e-5, 1000, 0.03) <= count <= binom.ppf(1 - 1e-5, 1000, 0.06)


def test_the_expected_repeats_are_those_of_the_sequences_seen() -> None:
    """Chances known before each draw: 0, .1, .3 and .3; the third and the fourth are repeats."""
    result = duplicate_test([7, 8, 7, 8], [0.1, 0.2, 0.1, 0.2], [0, 0, 0, 0])
    assert result.z == pytest.approx((2 - 0.1 - 0.3 - 0.3) / (0.1 * 0.9 + 2 * 0.3 * 0.7) ** 0.5)


def test_a_fixed_seed_is_found() -> None:
    """The same 20 sequences again: a chance below 1e-6 for any of the likelier ones."""
    names = np.tile(np.random.default_rng(3).choice(2000, size=20, p=LAW), 2)
    result = duplicate_test(names, LAW[names], np.zeros(40, int))
    assert result.z is not None and result.z > 0 and result.p_value is not None and result.p_value < 1e-6


def test_other_prompts_do_not_count() -> None:
    assert duplicate_test([1, 1], [0.5, 0.5], [0, 1]).p_value is None


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        duplicate_test([1], [0.5, 0.5], [0])
    with pytest.raises(ValueError, match=r"interval \[0, 1\]"):
        duplicate_test([1], [1.5], [0])
