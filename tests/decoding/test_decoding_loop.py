"""Requests join and leave between rounds, and nobody notices the others."""

import random

import pytest

from draftproof.proposers import PromptLookup
from support.toy_models import Scripted, make_decoder, make_row, run, tiny_llama

PROMPTS = [[5, 9, 2, 7, 5, 9, 2], [4], [8, 8, 6, 8, 8, 6, 8]]
LENGTH = 14


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    model = tiny_llama()
    return [run(make_decoder(model), make_row(prompt, LENGTH))[0] for prompt in PROMPTS]


def three_rows() -> list:
    return [make_row(prompt, LENGTH, request_id=index) for index, prompt in enumerate(PROMPTS)]


def test_a_request_joins_when_a_slot_is_free_and_in_the_order_of_its_coming(expected) -> None:
    decoder, rows = make_decoder(tiny_llama(), slots=2), three_rows()
    rows[1].stop = make_row([4], 3).stop
    for row in rows:
        decoder.submit(row)
    assert decoder.rows == [] and [row.slot for row in rows] == [None] * 3
    for number in range(3):
        assert [row.request_id for row in decoder.step()] == [0, 1], number
    assert rows[1].finish_reason == "length" and rows[1].slot is None and decoder.rows == rows[:1]
    assert [row.request_id for row in decoder.step()] == [0, 2]
    assert {rows[0].slot, rows[2].slot} == {0, 1}
    decoder.run()
    assert [row.generated for row in rows] == [expected[0], expected[1][:3], expected[2]]
    assert decoder.step() == [] and all(row.slot is None for row in rows)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_cancelled_request_leaves_at_once_wherever_it_is(expected, victim: int) -> None:
    """The first two run, the third waits."""
    decoder, rows = make_decoder(tiny_llama(), PromptLookup(1, 3), slots=2), three_rows()
    for row in rows:
        decoder.submit(row)
    decoder.step()
    decoder.step()
    kept = list(rows[victim].generated)
    decoder.cancel(victim)
    decoder.cancel(victim)
    decoder.cancel(99)
    assert rows[victim].slot is None and rows[victim] not in decoder.rows
    assert len(decoder.rows) == (2 if victim == 2 else 1)
    decoder.run()
    assert rows[victim].generated == kept and rows[victim].finish_reason is None
    for index in {0, 1, 2} - {victim}:
        assert rows[index].generated == expected[index]


def test_a_proposer_is_told_of_every_slot_that_is_left(expected) -> None:
    released: list[int] = []
    proposer = Scripted(lambda row, limit: [])
    proposer.release = released.append
    decoder, rows = make_decoder(tiny_llama(), proposer, slots=2), three_rows()
    for row in rows:
        decoder.submit(row)
    decoder.step()
    slot = rows[0].slot
    decoder.cancel(0)
    assert released == [slot]
    decoder.run()
    assert sorted(released) == [0, 0, 1] or sorted(released) == [0, 1, 1]


def test_two_hundred_requests_with_cancellations_are_none_lost_and_none_mixed_up() -> None:
    """Random lengths, eight at a time, every fifth cancelled at some round; each of the others is its solo run."""
    rng = random.Random(9)
    model, rows = tiny_llama(), []
    for number in range(200):
        prompt = [rng.randrange(2, 9) for _ in range(rng.choice([1, 3, 8]))]
        rows.append(make_row(prompt, rng.randrange(1, 7), request_id=number))
    decoder, cancelled = make_decoder(model, PromptLookup(1, 3), slots=8), set()
    for row in rows:
        decoder.submit(row)
    while any(row.finish_reason is None and row.request_id not in cancelled for row in rows):
        assert len(decoder.rows) <= 8
        decoder.step()
        number = rng.randrange(200)
        if rng.random() < 0.5:
            decoder.cancel(number)
            cancelled.add(number)
    assert 20 < len(cancelled) < 100 and decoder.step() == []
    solo: dict[tuple, list[int]] = {}
    plain = make_decoder(model)
    for row in rows:
        key = tuple(row.token_ids[: row.num_prompt])
        if key not in solo:
            solo[key] = run(plain, make_row(list(key), 6))[0]
        truth = solo[key][: row.params.max_tokens]
        assert (
            row.generated == truth if row.request_id not in cancelled else row.generated == truth[: row.num_generated]
        )
        assert row.slot is None
