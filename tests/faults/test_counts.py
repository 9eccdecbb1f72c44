"""Faults of what is counted and shown where one chunk is many tokens, and of text whose tokens are not whole characters."""

import itertools

import pytest

from draftproof.decoding.stopping import StopRule
from draftproof.measure.compare import distribution, summarise_acceptance
from draftproof.measure.times import inter_chunk_gaps, inter_token_gaps
from draftproof.records import Round, summarise_rounds


def round_of(proposed: int, accepted: int) -> dict:
    source = "target" if not proposed else "bonus" if accepted == proposed else "correction"
    return {"num_proposed": proposed, "num_accepted": accepted, "emitted": accepted + 1, "next_token": source}


def test_independent_acceptance_is_flat_given_that_a_place_was_reached() -> None:
    """B111, B112, B115: 625 rounds of four drafts, of which each is right in four cases of five."""
    counts = {0: 125, 1: 100, 2: 80, 3: 64, 4: 256}
    rounds = [round_of(4, accepted) for accepted, count in counts.items() for _ in range(count)]
    found = summarise_acceptance(rounds, 4)
    assert found.by_position_conditional == pytest.approx([0.8] * 4)
    assert found.by_position == pytest.approx([0.8, 0.64, 0.512, 0.4096])
    assert (found.corrections, found.bonuses) == (369, 256)
    assert found.emitted_per_round == pytest.approx(found.accepted_per_round + 1)
    assert found.rate == pytest.approx(found.accepted_per_round / 4)


def test_what_was_not_proposed_is_in_no_denominator() -> None:
    """B114, B122: short drafts and rounds without one, and none at all, which is no number and not 0."""
    rounds = [Round(**round_of(*each), propose_ms=0.0, score_ms=1.0) for each in ((4, 4), (1, 0), (0, 0), (2, 1))]
    numbers = summarise_rounds(rounds, 4)
    assert (numbers.num_draft_tokens, numbers.num_accepted_draft_tokens, numbers.num_spec_steps) == (7, 5, 3)
    assert numbers.draft_acceptance_rate == 5 / 7 and numbers.mean_acceptance_length == 1 + 5 / 3
    assert numbers.acceptance_histogram == (1, 1, 0, 0, 1)
    nothing = summarise_rounds(rounds[2:3], 4)
    assert nothing.draft_acceptance_rate is None and nothing.mean_acceptance_length is None


def test_neither_a_late_first_token_nor_a_stall_hides() -> None:
    """B117, B118, B119: the first token's wait is no gap between tokens; stalls in 2 of 100 gaps are the 99th percentile."""
    steps = [510.0 if place % 50 == 25 else 10.0 for place in range(1000)]
    record = {"chunks": [[1, 9000.0], *([3, 9000.0 + at] for at in itertools.accumulate(steps))]}
    gaps = distribution(inter_chunk_gaps(record))
    assert gaps.n == 1000 and gaps.mean == pytest.approx(20.0)
    assert (gaps.p50.estimate, gaps.p99.estimate) == (pytest.approx(10.0), pytest.approx(510.0))
    tokens = inter_token_gaps(record)
    assert len(tokens) == 3000 and max(tokens) == pytest.approx(170.0) and min(tokens) == pytest.approx(10 / 3)


TEXT = "aé漢😀 stop é"


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (5,), (1, 4, 2), (99,)], ids=str)
@pytest.mark.parametrize("stop", [(), ("é",), ("😀 s",), ("stop",)], ids=str)
def test_a_stream_of_bytes_shows_whole_characters_and_the_same_end_in_any_chunks(sizes, stop) -> None:
    """B76, B93: a token may be a part of a character; chunks of any size give the same tokens, text and end."""
    data = list(TEXT.encode())
    held = StopRule(max_tokens=100, decode=lambda ids: bytes(ids).decode(errors="replace"), stop=stop)
    generated, shown, reason, at = [], [], None, 0
    for size in itertools.cycle(sizes):
        kept, reason = held.cut(generated, data[at : at + size])
        generated, at = generated + kept, at + size
        shown.append(held.text(generated, ended=reason is not None))
        if reason is not None or at >= len(data):
            break
    final = held.text(generated)
    assert final == (TEXT[: TEXT.index(stop[0])] if stop else TEXT)
    assert (reason == "stop") == bool(stop)
    assert all(final.startswith(text) for text in shown)
    whole, _ = held.cut([], data)
    assert generated == whole
