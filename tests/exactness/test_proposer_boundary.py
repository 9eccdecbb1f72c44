"""A proposer that fails costs its row a draft, never the request, and the reason is in the record."""

from collections.abc import Callable

import pytest
import torch

from draftproof.decoding.loop import MAX_DRAFT_FAILURES
from draftproof.decoding.proposers.base import Proposal
from support.toy_models import VOCAB, Scripted, judge, make_decoder, make_row, run, tiny_llama

PROMPTS = [[5, 9, 2, 7], [1], [8, 8, 1, 8, 8, 1]]
COUNT = 12


def soft(mass: float, token_id: int = 3, width: int = 2) -> Callable[[int], Proposal]:
    def make(rows: int) -> Proposal:
        probs = torch.full((rows, width, VOCAB), mass / VOCAB, dtype=torch.float64)
        return Proposal(
            token_ids=torch.full((rows, width), token_id), num_tokens=torch.full((rows,), width), probs=probs
        )

    return make


def no_probability(rows: int) -> Proposal:
    probs = torch.zeros(rows, 1, VOCAB, dtype=torch.float64)
    probs[..., 4] = 1.0
    return Proposal(token_ids=torch.full((rows, 1), 3), num_tokens=torch.ones(rows, dtype=torch.int64), probs=probs)


def hard(token_ids: list[int], count: int) -> Callable[[int], Proposal]:
    return lambda rows: Proposal(
        token_ids=torch.tensor([token_ids] * rows), num_tokens=torch.full((rows,), count, dtype=torch.int64)
    )


BAD: dict[str, Callable[[int], Proposal]] = {
    "not a number": soft(float("nan")),
    "mass of two": soft(2.0),
    "no mass": soft(0.0),
    "a token that the distribution excludes": no_probability,
    "more tokens than asked": hard([1] * 9, 9),
    "fewer than none": hard([1], -1),
    "counted beyond its width": hard([1], 2),
    "an id beyond the vocabulary": hard([1, VOCAB], 2),
    "a negative id": hard([-1, 1], 2),
    "probs of another vocabulary": lambda rows: Proposal(
        token_ids=torch.zeros(rows, 1, dtype=torch.int64),
        num_tokens=torch.ones(rows, dtype=torch.int64),
        probs=torch.full((rows, 1, VOCAB + 1), 1 / (VOCAB + 1), dtype=torch.float64),
    ),
    "a row too many": lambda rows: hard([1], 1)(rows + 1),
}


class Answers(Scripted):
    def __init__(self, make: Callable[[int], Proposal]) -> None:
        self.make = make

    def propose(self, rows, limits):
        return self.make(len(rows))


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bad_answer_changes_no_token_and_is_recorded(name: str, temperature: float) -> None:
    model = tiny_llama()
    rows = [make_row(prompt, COUNT, request_id=index, temperature=temperature) for index, prompt in enumerate(PROMPTS)]
    alone = [make_row(prompt, COUNT, request_id=index, temperature=temperature) for index, prompt in enumerate(PROMPTS)]
    expected = run(make_decoder(model, None), *alone)
    assert run(make_decoder(model, Answers(BAD[name]), slots=2), *rows) == expected
    rounds = [item for row in rows for item in row.rounds]
    assert all(item.num_proposed == 0 for item in rounds)
    assert any(item.draft_error for item in rounds)


def test_a_proposer_that_writes_into_its_rows_puts_nothing_into_the_output() -> None:
    """As a context that is extended in place by what is drafted would; the lists of rows and limits are the round's own too."""

    def extend(rows, limits) -> None:
        rows[-1].token_ids += [3] * 2

    def overwrite(rows, limits) -> None:
        rows[0].token_ids[0] = 3

    def drop(rows, limits) -> None:
        rows.pop()

    def ask_for_more(rows, limits) -> None:
        limits[0] += 5

    def extend_and_raise(rows, limits) -> None:
        extend(rows, limits)
        raise RuntimeError("after it wrote")

    model = tiny_llama()
    expected = [judge(model, prompt, COUNT) for prompt in PROMPTS]
    for write in (extend, overwrite, drop, ask_for_more, extend_and_raise):

        class Writes(Scripted):
            def propose(self, rows, limits, write=write):
                count = len(rows)
                write(rows, limits)
                return hard([1] * 9, max(limits))(count)

        rows = [make_row(prompt, COUNT, request_id=index) for index, prompt in enumerate(PROMPTS)]
        assert run(make_decoder(model, Writes(lambda row, limit: []), slots=2), *rows) == expected
        assert write is drop or any(item.draft_error for row in rows for item in row.rounds)


def test_a_row_that_makes_the_proposer_raise_costs_the_others_nothing() -> None:
    model = tiny_llama()
    truth = {tuple(prompt): judge(model, prompt, COUNT) for prompt in PROMPTS}

    def script(row, limit):
        if row.request_id == 1:
            raise RuntimeError("no draft for this one")
        return truth[tuple(row.token_ids[: row.num_prompt])][row.num_generated :][:limit]

    rows = [make_row(prompt, COUNT, request_id=index) for index, prompt in enumerate(PROMPTS)]
    assert run(make_decoder(model, Scripted(script), slots=3), *rows) == list(truth.values())
    assert [sum(item.num_accepted for item in row.rounds) > 0 for row in rows] == [True, False, True]
    errors = {item.draft_error for item in rows[1].rounds}
    assert "RuntimeError: no draft for this one" in errors
    assert all(item.draft_error is None for row in (rows[0], rows[2]) for item in row.rounds)


def test_drafting_stops_after_too_many_failures_and_says_so() -> None:
    model, calls = tiny_llama(), []

    def fail(row, limit):
        calls.append(row.request_id)
        raise RuntimeError("broken")

    decoder = make_decoder(model, Scripted(fail))
    row = make_row(PROMPTS[0], 60)
    assert run(decoder, row) == [judge(model, PROMPTS[0], 60)]
    assert len(calls) == MAX_DRAFT_FAILURES
    assert decoder.draft_stopped is not None and "RuntimeError: broken" in decoder.draft_stopped


def test_an_interrupt_is_not_a_failure_of_the_proposer() -> None:
    def interrupt(row, limit):
        raise KeyboardInterrupt

    decoder = make_decoder(tiny_llama(), Scripted(interrupt), slots=2)
    decoder.submit(make_row(PROMPTS[0], COUNT))
    with pytest.raises(KeyboardInterrupt):
        decoder.run()
    assert decoder.rows == [] and run(make_decoder(tiny_llama()), make_row(PROMPTS[0], COUNT))
