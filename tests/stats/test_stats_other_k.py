"""Rounds replayed with another k are the rounds that this k would have had."""

import random

import pytest

from draftproof.stats.other_k import RoundCount, Rounds, trace


def rounds_of(good: list[bool], k: int) -> list[RoundCount]:
    """The rounds of an output whose draft is right at the places that are ``good``, cut at the output's length."""
    rounds, place = [], 0
    while place < len(good):
        drafted = min(k, len(good) - place - 1)
        accepted = 0
        while accepted < drafted and good[place + accepted]:
            accepted += 1
        rounds.append(RoundCount(drafted, accepted, accepted + 1))
        place += accepted + 1
    return rounds


def counted(rounds: list[RoundCount]) -> Rounds:
    drafting = [item for item in rounds if item.proposed]
    return Rounds(len(rounds) - len(drafting), len(drafting), sum(item.proposed for item in rounds))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 3, 7])
def test_at_the_k_that_was_run_the_rounds_are_those_that_were_seen(seed: int, k: int) -> None:
    dice = random.Random(seed)
    good = [dice.random() < 0.7 for _ in range(60)]
    seen = rounds_of(good, k)
    assert trace(seen, k, 0.123, cut=True).at(k) == pytest.approx(counted(seen))


@pytest.mark.parametrize("seed", range(5))
def test_a_smaller_k_is_replayed_exactly_where_no_draft_was_accepted_whole(seed: int) -> None:
    """Runs of at most 5 good places and K = 8: every place was seen, so nothing has to be guessed."""
    dice = random.Random(seed)
    good = [place for _ in range(12) for place in [*[True] * dice.randint(0, 5), False]]
    replayed = trace(rounds_of(good, 8), 8, 0.5, cut=True)
    for k in range(1, 9):
        assert replayed.at(k) == pytest.approx(counted(rounds_of(good, k))), k


def test_where_the_bonus_token_hides_a_place_the_expectation_is_right() -> None:
    """400 outputs of 80 places, each good with 0.8: the mean number of rounds has a standard error below 0.2 %, allowed is 1 %."""
    dice = random.Random(1)
    outputs = [[dice.random() < 0.8 for _ in range(80)] for _ in range(400)]
    for k in (1, 2, 3, 6):
        guessed = sum(sum(trace(rounds_of(good, 3), 3, 0.8, cut=True).at(k)[:2]) for good in outputs)
        true = sum(len(rounds_of(good, k)) for good in outputs)
        assert guessed == pytest.approx(true, rel=0.01), k


def test_rounds_that_drafted_nothing_stay_and_end_a_longer_draft() -> None:
    rounds = [RoundCount(0, 0, 1), RoundCount(2, 2, 3), RoundCount(0, 0, 1), RoundCount(1, 0, 1), RoundCount(0, 0, 1)]
    replayed = trace(rounds, 2, 1.0, cut=True)
    assert replayed.acceptance == (0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    assert replayed.at(2) == Rounds(3, 2, 3)
    # one by one: an accepted token and one of the target; then the place of the bonus token, which no draft reaches
    assert replayed.at(1) == Rounds(3, 3, 3)


def test_an_output_that_ended_by_itself_may_be_overshot() -> None:
    rounds = [RoundCount(3, 3, 4), RoundCount(3, 2, 2)]
    replayed = trace(rounds, 3, 1.0, cut=False)
    assert replayed.at(3) == Rounds(0, 2, 6) and replayed.at(8) == Rounds(0, 1, 8)
