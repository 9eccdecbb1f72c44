"""Given times and acceptance, the speed-up is the one of the paper."""

import pytest

from draftproof.stats.by_acceptance import expected_by_k


@pytest.mark.parametrize("a", [0.2, 0.7, 0.95])
@pytest.mark.parametrize("c", [0.0, 0.1, 0.5])
def test_one_acceptance_everywhere_gives_the_published_factor(a: float, c: float) -> None:
    """Leviathan et al., arXiv:2211.17192, theorem 3.8: (1 - a^(k+1)) / ((1 - a) (k c + 1))."""
    for row in expected_by_k([a] * 8, draft_ms=40 * c, target_ms=40, score_ms=40):
        k = row.num_speculative_tokens
        assert row.speedup == pytest.approx((1 - a ** (k + 1)) / ((1 - a) * (k * c + 1)))
        assert row.ms_per_token == pytest.approx(40 / row.speedup)


def test_positions_count_one_by_one() -> None:
    rows = expected_by_k([0.5, 0.2, 0.0], draft_ms=1, target_ms=10, score_ms=12)
    assert [row.tokens_per_round for row in rows] == pytest.approx([1.5, 1.6, 1.6])
    assert [row.speedup for row in rows] == pytest.approx([15 / 13, 16 / 14, 16 / 15])


def test_a_draft_that_no_acceptance_pays_for_says_so() -> None:
    rows = expected_by_k([1.0], draft_ms=30, target_ms=10, score_ms=10)
    assert rows[0].break_even is None and rows[0].speedup == pytest.approx(0.5)
