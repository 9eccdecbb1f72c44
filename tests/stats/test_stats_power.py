import math

import numpy as np
import pytest
from scipy.stats import binom, chi2

from draftproof.stats.goodness import pooled_chi2
from draftproof.stats.power import (
    smallest_tv_of_chi2,
    smallest_tv_of_score,
    tokens_for_pooled_bound,
)
from draftproof.stats.variation import pooled_tv

ALPHA, RUNS = 1e-3, 4000


def test_the_score_finds_that_deviation_with_that_power() -> None:
    """4,000 runs of an even coin of 2,000 tokens; binomial band, 1e-5 on each side, widened by .01 for the lattice."""
    tv = smallest_tv_of_score(2000, ALPHA)
    counts = np.random.default_rng(1).binomial(2000, 0.5 + tv, size=RUNS)
    found = int((np.abs(counts - 1000) / math.sqrt(500) > 3.2905).sum())
    assert binom.ppf(1e-5, RUNS, 0.89) <= found <= binom.ppf(1 - 1e-5, RUNS, 0.91)


def test_chi_square_finds_the_hardest_deviation_with_that_power_and_others_more_often() -> None:
    """8 even cells, 3,000 tokens, the mass moved evenly from four to four; then from one to one."""
    tv = smallest_tv_of_chi2(3000, 7, ALPHA)
    generator = np.random.default_rng(2)
    found = []
    for moved in (np.repeat([1, -1], 4) * tv / 4, np.array([1, -1] + [0] * 6) * tv):
        counts = generator.multinomial(3000, 1 / 8 + moved, size=RUNS)
        found.append(int((chi2.sf(((counts - 375) ** 2 / 375).sum(axis=1), 7) <= ALPHA).sum()))
    assert binom.ppf(1e-5, RUNS, 0.89) <= found[0] <= binom.ppf(1 - 1e-5, RUNS, 0.91)
    assert found[1] == RUNS
    counts = generator.multinomial(3000, np.full(8, 1 / 8))
    assert pooled_chi2(np.zeros(3000, int), np.repeat(np.arange(8), counts), np.full((3000, 8), 1 / 8)).tokens == 3000


@pytest.mark.parametrize("cells", [4, 8, 32])
def test_a_correct_sampler_of_that_size_is_bounded_below_delta_with_that_power(cells: int) -> None:
    """2,000 runs: .85 to .99 of them, as the constants are from simulations; a third of the tokens gives .02 at most."""
    law, delta = np.full(cells, 1 / cells), 0.05
    generator = np.random.default_rng(3)
    size, log_sets = tokens_for_pooled_bound(law, delta, 0.05), cells * math.log(2)
    shares = []
    for tokens in (size, size // 3):
        counts = generator.multinomial(tokens, law, size=2000)
        estimates = 0.5 * np.abs(counts / tokens - law).sum(axis=1)
        shares.append((estimates + math.sqrt((log_sets + math.log(20)) / (2 * tokens)) < delta).mean())
    assert 0.85 <= shares[0] <= 0.99 and shares[1] <= 0.02
    counts = generator.multinomial(size, law)
    bound = pooled_tv(np.repeat(np.arange(cells), counts), np.broadcast_to(law, (size, cells))).upper_bound
    margin = math.sqrt((log_sets + math.log(20)) / (2 * size))
    assert bound == pytest.approx(0.5 * np.abs(counts / size - law).sum() + margin)


def test_golden_values() -> None:
    """
    From tables made with other code.

    Non-centrality 47.6 for 16 cells at alpha 1e-4; 17,000 tokens for one direction at TV .02.
    """
    assert smallest_tv_of_chi2(30_000, 15, 1e-4) == pytest.approx(math.sqrt(47.6 / 120_000), rel=1e-3)
    assert smallest_tv_of_score(16_700, 1e-4) == pytest.approx(0.02, rel=5e-3)


def test_tiny_runs_see_nothing_smaller_than_one() -> None:
    assert smallest_tv_of_score(1, ALPHA) == smallest_tv_of_chi2(1, 7, ALPHA) == 1.0


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens must be at least 1"):
        smallest_tv_of_score(0, 0.1)
    with pytest.raises(ValueError, match="0 < alpha < 1"):
        smallest_tv_of_score(5, 0.0)
    with pytest.raises(ValueError, match="df must be at least 1"):
        smallest_tv_of_chi2(5, 0, 0.1)
    with pytest.raises(ValueError, match="0 < delta < 1"):
        tokens_for_pooled_bound([0.5, 0.5], 1.0, 0.05)
    with pytest.raises(ValueError, match="sum 1"):
        tokens_for_pooled_bound([0.5, 0.4], 0.1, 0.05)
