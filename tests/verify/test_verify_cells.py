"""Rank cells: by hand, and coarser ones from finer ones."""

import numpy as np
import pytest

from draftproof.verify.cells import LAST_RANKS, STRATUM_LAST_RANKS, coarser, rank_cells


def test_a_token_is_in_the_cell_of_its_rank_and_the_cells_hold_all_mass() -> None:
    laws = np.array([[0.1, 0.4, 0.05, 0.3, 0.15]] * 5)
    cells, probs = rank_cells(laws, np.arange(5), (1, 3))
    assert cells.tolist() == [2, 0, 2, 1, 1]
    np.testing.assert_allclose(probs, [[0.4, 0.45, 0.15]] * 5)


def test_equal_probabilities_are_ranked_by_id() -> None:
    cells, probs = rank_cells(np.full((4, 4), 0.25), np.arange(4), (1, 2))
    assert cells.tolist() == [0, 1, 2, 2]
    np.testing.assert_allclose(probs[0], [0.25, 0.25, 0.5])


@pytest.mark.parametrize("vocab", [5, 12, 13, 300])
def test_the_mass_of_a_cell_is_that_of_the_tokens_in_it(vocab: int) -> None:
    generator = np.random.default_rng(vocab)
    law = generator.dirichlet(np.full(vocab, 0.5))
    law[: vocab // 4] = law[0]
    law /= law.sum()
    cells, probs = rank_cells(np.tile(law, (vocab, 1)), np.arange(vocab), LAST_RANKS)
    np.testing.assert_allclose(np.bincount(cells, law, minlength=len(LAST_RANKS) + 1), probs[0], atol=1e-12)


def test_coarser_cells_are_those_of_the_coarser_ranks() -> None:
    laws = np.random.default_rng(1).dirichlet(np.ones(40), 200)
    token_ids = np.random.default_rng(2).integers(0, 40, 200)
    cells, probs = coarser(*rank_cells(laws, token_ids, LAST_RANKS))
    expected_cells, expected_probs = rank_cells(laws, token_ids, STRATUM_LAST_RANKS)
    assert (cells == expected_cells).all()
    np.testing.assert_allclose(probs, expected_probs, atol=1e-12)
