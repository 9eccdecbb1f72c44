"""The battery as a whole: what it computes, how often it is wrong, and that each test sees what it is for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from draftproof.stats.goodness import holm
from draftproof.verify.battery import MIN_STRATUM_TOKENS, NamedResult, examine, strata
from draftproof.verify.log import TokenLog

VOCAB, K = 6, 2
LAWS = np.random.default_rng(1).dirichlet(np.full(VOCAB, 1.0), size=VOCAB)  # after each token, a law
DRAFTS = 0.6 * LAWS + 0.4 * np.random.default_rng(2).dirichlet(np.full(VOCAB, 0.5), size=VOCAB)


def inverted(laws: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    cells: NDArray[np.int64] = (uniform[:, None] >= np.cumsum(laws, axis=1)).sum(axis=1).clip(max=VOCAB - 1)
    return cells


def rounds_of(generator: np.random.Generator, tokens: int) -> tuple[list[str], list[str]]:
    """Places and outcomes as rounds of K = 2 give them, each draft accepted with probability .6."""
    places: list[str] = []
    after: list[str] = []
    before = "start"
    while len(places) < tokens:
        accepted = int((generator.random(K) < 0.6).cumprod().sum())
        names = ["draft 1", "draft 2+", "bonus"][: accepted + 1]
        places += names
        after += [before] * len(names)
        before = "accepted" if accepted == K else "rejected"
    return places[:tokens], after[:tokens]


def simulate(
    seed: int, sequences: int = 120, tokens: int = 8, *, uniform: NDArray[np.float64] | None = None, leak: str = ""
) -> TokenLog:
    """A correct decoder of a Markov target; ``leak`` names the place whose tokens come from the draft's law instead."""
    generator = np.random.default_rng(seed)
    numbers = generator.random((sequences, tokens)) if uniform is None else uniform
    rounds = [rounds_of(generator, tokens) for _ in range(sequences)]
    places, after = np.array([item[0] for item in rounds]), np.array([item[1] for item in rounds])
    cells, contexts = np.zeros((sequences, tokens), dtype=np.int64), np.zeros((sequences, tokens), dtype=np.int64)
    for at in range(tokens):
        laws = LAWS[contexts[:, at]]
        used = np.where((places[:, at] == leak)[:, None], DRAFTS[contexts[:, at]], laws)
        cells[:, at] = inverted(used, numbers[:, at])
        if at + 1 < tokens:
            contexts[:, at + 1] = cells[:, at]
    drafted = np.isin(places.ravel(), ["draft 1", "draft 2+"])
    return TokenLog(
        cells=cells.ravel(),
        laws=LAWS[contexts.ravel()],
        contexts=contexts.ravel(),
        strata=places.ravel().tolist(),
        sequences=np.repeat(np.arange(sequences), tokens),
        positions=np.tile(np.arange(tokens), sequences),
        after=after.ravel().tolist(),
        draft_laws=np.where(drafted[:, None], DRAFTS[contexts.ravel()], np.nan),
        end_cell=VOCAB - 1,
        num_speculative_tokens=K,
    )


def found(log: TokenLog, **where: Any) -> NamedResult:
    """The one result with that name and stratum."""
    (result,) = [item for item in examine(log) if all(getattr(item, key) == value for key, value in where.items())]
    return result


def least(log: TokenLog) -> float:
    return min(item.adjusted for item in examine(log) if item.adjusted is not None)


def test_every_test_is_run_overall_and_in_each_stratum() -> None:
    log = simulate(1)
    results = examine(log)
    overall = [item.name for item in results if item.stratum is None]
    laws = [
        "chi-square over (context, token)", "score of log-probability", "score of top-1", "score of end",
        "score of draft favours it", "score of draft's excess",
    ]  # fmt: skip
    assert overall == [
        "support", *laws, "independence of token and outcome before", *(f"correlation at lag {lag}" for lag in (1, 2, 3)),
        "correlation across rows", "repeated sequences",
    ]  # fmt: skip
    kept = {name for name, chosen in strata(log).items() if chosen.sum() >= MIN_STRATUM_TOKENS}
    assert len(kept) >= 6 and {"'bonus' after 'rejected'", "'draft 1' after 'start'"} <= kept
    for name in kept:
        assert [item.name for item in results if item.stratum == name] == laws


def test_strata_share_the_tokens_out_and_small_ones_are_left_out_and_said() -> None:
    log = simulate(1, sequences=40)
    parts = strata(log)
    assert (sum(part.astype(int) for part in parts.values()) == 1).all()
    small = {name: int(part.sum()) for name, part in parts.items() if part.sum() < MIN_STRATUM_TOKENS}
    said = {item.stratum: item.n for item in examine(log) if item.name == "too few tokens"}
    assert small and said == small


def test_p_values_are_adjusted_for_their_number() -> None:
    results = [item for item in examine(simulate(2)) if item.p_value is not None]
    assert [item.adjusted for item in results] == pytest.approx(holm([item.p_value for item in results]).tolist())


def test_what_a_log_does_not_know_is_not_tested() -> None:
    log = replace(simulate(3), sequences=None, positions=None, after=None, draft_laws=None, end_cell=None)
    names = {item.name for item in examine(log)}
    assert names == {
        "support", "chi-square over (context, token)", "score of log-probability", "score of top-1",
    }  # fmt: skip
    assert {item.stratum for item in examine(log)} == {None, "'draft 1'", "'draft 2+'", "'bonus'"}
    assert {item.stratum for item in examine(replace(log, strata=["unknown"] * len(log.cells)))} == {None}


def test_a_correct_decoder_is_accused_no_more_often_than_alpha_says() -> None:
    """250 runs of some 70 tests each, alpha = .05 for all of them together; false alarm <= 1e-5 (binomial at .05)."""
    count = sum(least(simulate(seed, sequences=60)) <= 0.05 for seed in range(1000, 1250))
    assert count <= binom.ppf(1 - 1e-5, 250, 0.05)


@pytest.mark.parametrize("place", ["draft 2+", "bonus"])
def test_tokens_of_the_draft_at_one_place_are_found_there(place: str) -> None:
    """Total variation .2 at a fifth to a third of the tokens. Adjusted p below 1e-6 at the fixed seed; 1e-3 is needed."""
    results = examine(simulate(4, sequences=500, leak=place))
    named = [item for item in results if item.adjusted is not None and item.adjusted < 1e-3]
    assert named and f"'{place}'" in str(min(named, key=lambda item: item.p_value or 0).stratum)
    assert all(item.stratum is None or f"'{place}'" in item.stratum for item in named)


def test_a_stream_that_starts_again_each_round_shows_at_its_lag() -> None:
    """Numbers repeat after 3 tokens: |z| is about 14 at 100 sequences."""
    numbers = np.tile(np.random.default_rng(5).random((100, 3)), 3)[:, :8]
    log = simulate(5, sequences=100, uniform=numbers)
    result = found(log, name="correlation at lag 3")
    assert result.statistic is not None and result.statistic > 6 and result.adjusted is not None
    assert result.adjusted < 1e-6 and result.n == 500


def test_numbers_shared_by_the_rows_of_a_batch_show_across_rows() -> None:
    numbers = np.repeat(np.random.default_rng(6).random((50, 8)), 2, axis=0)
    result = found(simulate(6, sequences=100, uniform=numbers), name="correlation across rows")
    assert result.statistic is not None and result.statistic > 6 and result.adjusted is not None
    assert result.adjusted < 1e-6 and result.n == 99 * 8


def test_a_seed_that_never_changes_shows_as_repeated_sequences() -> None:
    numbers = np.tile(np.random.default_rng(7).random((10, 8)), (6, 1))  # neighbours differ
    result = found(simulate(7, sequences=60, uniform=numbers), name="repeated sequences")
    assert result.n == 60 and result.adjusted is not None and result.adjusted < 1e-6


def test_sequences_with_a_token_that_is_not_known_repeat_none() -> None:
    """
    Fixed numbers again, and each sequence alike in cells; where each holds the cell of all other tokens, nothing is said.

    Without such a cell the same log is condemned: so it is the cell that makes the difference.
    """
    log = simulate(7, sequences=60, uniform=np.tile(np.random.default_rng(7).random((1, 8)), (60, 1)))
    assert found(log, name="repeated sequences").adjusted == pytest.approx(0.0, abs=1e-6)
    merged = replace(log, other_cell=int(log.cells[0]))
    assert found(merged, name="repeated sequences").p_value is None


def test_a_law_that_is_wrong_after_rejections_alone_shows_as_dependence() -> None:
    """As with keys that were not taken back: after a rejection, tokens follow the law of another context."""
    log = simulate(8, sequences=600)
    wrong = np.array(log.after) == "rejected"
    other = inverted(np.roll(LAWS, 1, axis=0)[log.contexts], np.random.default_rng(9).random(len(log.cells)))
    log = replace(log, cells=np.where(wrong, other, log.cells), sequences=None)
    result = found(log, name="independence of token and outcome before")
    assert result.adjusted is not None and result.adjusted < 1e-6


def test_an_end_that_comes_too_often_is_found_by_its_own_score() -> None:
    """One token in 25 becomes the end: 8 standard errors."""
    log = simulate(10, sequences=500)
    forced = np.random.default_rng(11).random(len(log.cells)) < 0.04
    log = replace(log, cells=np.where(forced, VOCAB - 1, log.cells))
    result = found(log, name="score of end", stratum=None)
    assert result.statistic is not None and result.statistic > 0
    assert result.adjusted is not None and result.adjusted < 1e-3


def test_a_token_of_probability_zero_is_proof_and_is_named() -> None:
    log = simulate(12)
    laws = log.laws.copy()
    laws[5] = np.eye(VOCAB)[(log.cells[5] + 1) % VOCAB]
    result = examine(replace(log, laws=laws, contexts=np.where(np.arange(len(laws)) == 5, 99, log.contexts)))[0]
    assert result.p_value == result.adjusted == 0.0
    assert result.name == f"support (cell {log.cells[5]} came with probability 0)"


def test_the_same_log_gives_the_same_result() -> None:
    assert examine(simulate(13)) == examine(simulate(13))
