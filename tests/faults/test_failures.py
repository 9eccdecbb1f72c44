"""Faults on the ways out: whatever raises, wherever in a round, costs what it must and nothing that comes later."""

import pytest

from draftproof.decoding.loop import MAX_DRAFT_FAILURES, roll_back
from draftproof.proposers import DraftModel
from draftproof.sampling.accept import rejection
from draftproof.sampling.noise import KeyedNoise
from support.toy_engines import ask, make_engine, noisy_copy
from support.toy_models import Scripted, judge, make_decoder, make_row, run, tiny_llama

pytestmark = pytest.mark.usefixtures("short_self_test")

PROMPTS = [[3, 4, 5, 3, 4], [9], [8, 8, 6, 8]]
COUNT, SLOTS = 10, 2


@pytest.fixture(scope="module")
def truths() -> list[list[int]]:
    return [judge(tiny_llama(), prompt, COUNT) for prompt in PROMPTS]


class Fuse:
    """Wraps a function; once it is lit, its call number ``at`` raises, and only that one."""

    def __init__(self, inner, at: int, error: type[BaseException]) -> None:
        self.inner, self.left, self.error, self.lit = inner, at, error, False

    def __call__(self, *args, **options):
        self.left -= self.lit
        if self.lit and self.left == -1:
            raise self.error("blown")
        return self.inner(*args, **options)


def engine_with_a_fuse(part: str, at: int, error: type[BaseException]):
    """Return an engine whose draft is good but not perfect, and the fuse in one part of its round."""
    model = tiny_llama()
    proposer, parts = DraftModel(noisy_copy(model)), {}
    fuse = Fuse({"accept": rejection, "take_back": roll_back}.get(part), at, error)
    if part in ("accept", "take_back"):
        parts[part] = fuse
    elif part == "noise":
        parts["noise"] = noise = KeyedNoise()
        fuse.inner, noise.uniform = noise.uniform, fuse
    elif part == "target":
        fuse.inner, model.forward = model.forward, fuse
    elif part == "release":
        fuse.inner, proposer.release = proposer.release, fuse
    engine = make_engine(model, proposer=proposer, max_batch=SLOTS, **parts)
    if part == "decode":
        fuse.inner, engine.tokenizer.decode = engine.tokenizer.decode, fuse
    return engine, fuse


@pytest.mark.parametrize(
    ("at", "error"), [(0, RuntimeError), (1, RuntimeError), (3, RuntimeError), (1, KeyboardInterrupt)]
)
@pytest.mark.parametrize("part", ["target", "accept", "noise", "take_back", "decode"])
def test_after_a_round_that_failed_anywhere_no_token_is_wrong(
    part: str, at: int, error: type[BaseException], truths: list[list[int]]
) -> None:
    """
    B27, B131, B133: between draft and verification, and between the tokens and the cache of one row and of the next.

    Who goes on stepping gets for each request its own tokens, up to where it was told of the failure, or all of them.
    """
    engine, fuse = engine_with_a_fuse(part, at, error)
    numbers = [engine.submit(prompt, ask(COUNT, stop="never")) for prompt in PROMPTS]
    ended, failures = dict(engine.step()), 0
    fuse.lit = True
    while engine.num_unfinished:
        try:
            ended.update(engine.step())
        except error as failure:
            failures += 1
            assert str(failure) == "blown"
    # numbers are first asked for by the draft, and what fails there costs a draft and no round
    assert failures == ((part, error) != ("noise", RuntimeError)) and sorted(ended) == numbers
    for number, truth in zip(numbers, truths, strict=True):
        completion = ended[number]
        assert list(completion.token_ids) == truth[: len(completion.token_ids)]
        assert (completion.finish_reason == "error") == (len(completion.token_ids) < COUNT)
        assert completion.error is None or "blown" in completion.error
    assert [item.finish_reason for item in ended.values()].count("error") <= SLOTS
    for completion, truth in zip(engine.generate(PROMPTS, ask(COUNT)), truths, strict=True):
        assert list(completion.token_ids) == truth


@pytest.mark.parametrize("at", [0, 2])
def test_a_proposer_that_cannot_let_go_costs_no_request_and_no_slot(at: int, truths: list[list[int]]) -> None:
    """B127, B131: its slot is used again, and what it still believes of the last request is only a guess."""
    engine, fuse = engine_with_a_fuse("release", at, RuntimeError)
    fuse.lit = True
    for _ in range(2):
        for completion, truth in zip(engine.generate(PROMPTS, ask(COUNT)), truths, strict=True):
            assert (list(completion.token_ids), completion.error) == (truth, None)
    assert fuse.left < 0


def test_a_proposer_that_never_lets_go_is_not_asked_for_ever(truths: list[list[int]]) -> None:
    """B127: the reason is told."""
    proposer = Scripted(lambda row, limit: [1] * limit)

    def fail(slot: int) -> None:
        raise RuntimeError("stuck")

    proposer.release = fail
    decoder = make_decoder(tiny_llama(), proposer)
    for _ in range(MAX_DRAFT_FAILURES):
        assert decoder.draft_stopped is None
        assert run(decoder, make_row(PROMPTS[1], 2)) == [truths[1][:2]]
    assert decoder.draft_stopped is not None and "RuntimeError: stuck" in decoder.draft_stopped


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
@pytest.mark.parametrize("where", ["draft", "processor"])
def test_one_row_that_fails_beside_others_is_the_only_one_that_pays(
    where: str, error: type[Exception], truths: list[list[int]]
) -> None:
    """B128, B131: a draft that has no room costs its round a draft; a request's own processor ends that request."""

    def fails(input_ids, scores):
        if input_ids.shape[1] >= 4:
            raise error("no room")
        return scores

    def script(row, limit):
        if where == "draft" and row.request_id == 1:
            raise error("no room")
        return truths[row.request_id][row.num_generated :][:limit]

    rows = [make_row(prompt, COUNT, request_id=index) for index, prompt in enumerate(PROMPTS)]
    if where == "processor":
        rows[1].processors = (fails,)
    outputs = run(make_decoder(tiny_llama(), Scripted(script), slots=3), *rows)
    assert [outputs[0], outputs[2]] == [truths[0], truths[2]]
    assert all(item.num_accepted == item.num_proposed for row in (rows[0], rows[2]) for item in row.rounds)
    if where == "draft":
        assert outputs[1] == truths[1] and any("no room" in (item.draft_error or "") for item in rows[1].rounds)
    else:
        assert outputs[1] == truths[1][:3] and rows[1].finish_reason == "error" and "no room" in rows[1].error


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_request_that_is_dropped_leaves_its_neighbour_and_its_slot_sound(
    rounds: int, victim: int, truths: list[list[int]]
) -> None:
    """B27, B133: queued, after the prompt, after each round; a new request takes the place beside one that goes on."""
    model = tiny_llama()
    decoder = make_decoder(model, DraftModel(noisy_copy(model)), slots=2)
    rows = [make_row(prompt, COUNT, request_id=index) for index, prompt in enumerate(PROMPTS)]
    for row in rows[:2]:
        decoder.submit(row)
    for _ in range(rounds):
        decoder.step()
    decoder.cancel(victim)
    decoder.submit(rows[2])
    decoder.run()
    assert [rows[1 - victim].generated, rows[2].generated] == [truths[1 - victim], truths[2]]
    assert rows[victim].generated == truths[victim][: rows[victim].num_generated]


@pytest.mark.parametrize("victims", [[0], [1, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("part", ["proposer", "processor", "accept"])
def test_a_request_that_is_cancelled_in_the_middle_of_a_round_leaves_with_it(
    part: str, at: int, victims: list[int], truths: list[list[int]]
) -> None:
    """B27, B133: by a part of the round itself; the others' round goes on, and two run while the third is queued."""
    calls: list[None] = []

    def cancel(*_: object) -> None:
        calls.append(None)
        if len(calls) == at + 1:
            for victim in victims:
                decoder.cancel(victim)

    def script(row, limit):
        if part == "proposer":
            cancel()
        return truths[row.request_id][row.num_generated :][: min(2, limit)]

    def rule(*arguments):
        if part == "accept":
            cancel()
        return rejection(*arguments)

    def processor(input_ids, scores):
        cancel()
        return scores

    decoder = make_decoder(tiny_llama(), Scripted(script), slots=2, accept=rule)
    rows = [make_row(prompt, COUNT, request_id=index) for index, prompt in enumerate(PROMPTS)]
    if part == "processor":
        rows[0].processors = (processor,)
    run(decoder, *rows)
    for index, (row, truth) in enumerate(zip(rows, truths, strict=True)):
        assert row.error is None and row.slot is None
        assert row.generated == (truth[: row.num_generated] if index in victims else truth)
    assert any(row.num_generated < COUNT for row in rows)
    assert run(decoder, make_row(PROMPTS[0], COUNT), make_row(PROMPTS[1], COUNT, request_id=1)) == truths[:2]
