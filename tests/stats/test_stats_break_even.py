"""The break-even acceptance is where a round's tokens and its cost are equal."""

import numpy as np
import pytest

from draftproof.stats.break_even import break_even, expected_emitted


@pytest.mark.parametrize("k", [1, 2, 5, 15])
@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9, 1.0])
def test_expected_tokens_are_the_sum_over_the_outcomes_of_a_round(k: int, acceptance: float) -> None:
    """i tokens accepted and one rejected, or all K: each outcome's tokens times its probability."""
    outcomes = [(i + 1) * acceptance**i * (1 - acceptance) for i in range(k)] + [(k + 1) * acceptance**k]
    assert expected_emitted(acceptance, k) == pytest.approx(sum(outcomes))


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("acceptance", np.linspace(0.01, 1.0, 7))
def test_break_even_gives_back_the_acceptance_of_an_equal_cost(k: int, acceptance: float) -> None:
    assert break_even(expected_emitted(acceptance, k), k) == pytest.approx(acceptance)


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, 0.0), (1.0, 0.0), (6.0, 1.0), (6.01, None)])
def test_the_ends_of_the_range(ratio: float, expected: float | None) -> None:
    assert break_even(ratio, 5) == expected
