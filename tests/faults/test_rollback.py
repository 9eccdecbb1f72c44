"""Faults of what is kept between rounds and between requests: blocks taken back, slots used again, prompts copied."""

import random

import pytest

from draftproof.decoding.cache import SlotStore
from draftproof.decoding.loop import roll_back
from draftproof.decoding.model import CachedModel
from draftproof.proposers import DraftModel, EarlyExit, PromptLookup
from support.toy_engines import noisy_copy
from support.toy_models import VOCAB, Scripted, judge, make_decoder, make_row, run, tiny_llama

pytestmark = pytest.mark.usefixtures("short_self_test")

K, COUNT = 4, 16
# of very different lengths, so that a mask or a width taken from one row would not fit another
PROMPTS = [[7], [5, 9, 2, 7], [place % 11 + 2 for place in range(40)], [place % 7 + 20 for place in range(135)]]


@pytest.fixture(scope="module")
def truths() -> list[list[int]]:
    return [judge(tiny_llama(), prompt, COUNT) for prompt in PROMPTS]


class Dice:
    """Drafts of any length from none to K with any number of right tokens; remembers how many of each were right."""

    def __init__(self, truths: list[list[int]], seed: int) -> None:
        self.truths, self.dice, self.right = truths, random.Random(seed), {}

    def __call__(self, row, limit: int) -> list[int]:
        size = self.dice.randrange(limit + 1)
        ahead = self.truths[row.request_id][row.num_generated :][:size]
        right = self.dice.randrange(size + 1)
        self.right.setdefault(row.request_id, []).append(right)
        return [token if at < right else (token + 1) % VOCAB for at, token in enumerate(ahead)]


def one_more(target, slot: int, count: int) -> None:
    roll_back(target, slot, count + bool(count))


def one_less(target, slot: int, count: int) -> None:
    roll_back(target, slot, max(0, count - 1))


def nothing(target, slot: int, count: int) -> None:
    pass


def everything(target, slot: int, count: int) -> None:
    roll_back(target, slot, target.row_len[slot] if count else 0)


TAKE_BACK = {"right": roll_back, "one more": one_more, "one less": one_less, "nothing": nothing, "all": everything}


@pytest.mark.parametrize("name", TAKE_BACK)
def test_any_acceptance_in_any_row_of_a_batch_leaves_what_was_committed(name: str, truths: list[list[int]]) -> None:
    """
    B1, B13, B50, B53, B63, B66, B67: in each row its own number accepted, its own token next, its own length kept.

    Rounds without a draft stand between rounds with one. A roll-back that is off by one, does nothing or starts again at
    0 gives other tokens.
    """
    for seed in range(2):
        script = Dice(truths, seed)
        decoder = make_decoder(tiny_llama(), Scripted(script), K, slots=4, max_len=160, take_back=TAKE_BACK[name])
        rows = [make_row(prompt, COUNT, request_id=index) for index, prompt in enumerate(PROMPTS)]
        for row in rows:
            decoder.submit(row)
        while decoder.step():
            for row in decoder.rows:
                held = decoder.target.row_len[row.slot]
                assert name != "right" or held == len(row.token_ids) - 1
        assert ([row.generated for row in rows] == truths) == (name == "right")
        if name == "right":
            for row in rows:
                right = script.right[row.request_id]
                # where no row has room for a draft, nobody is asked
                right += [0] * (len(row.rounds) - len(right))
                assert [item.num_accepted for item in row.rounds] == right
                assert all(item.emitted == item.num_accepted + 1 for item in row.rounds)


PROPOSERS = {
    "target-only": lambda model: None,
    "prompt-lookup": lambda model: PromptLookup(1, 3),
    "the target as its own draft": DraftModel,
    "another draft": lambda model: DraftModel(noisy_copy(model, 0.1)),
    "early-exit": lambda model: EarlyExit(1),
}


def conversation(model, decoder, *, release: bool = True) -> bool:
    """Three turns in one slot, each with all of the last one before it; whether every answer is the judge's."""
    prompt, right = list(PROMPTS[1]), True
    for turn in range(3):
        truth = judge(model, prompt, COUNT)
        # cut in a block, at its end, and not at all
        eos = {truth[(6, 9, 11)[turn]]} if turn < 2 else set()
        end = next((at + 1 for at, token in enumerate(truth) if token in eos), COUNT)
        row = make_row(prompt, COUNT, request_id=turn, eos=eos)
        right &= run(decoder, row) == [truth[:end]]
        prompt = [*row.token_ids, 8, 3]
    return right


@pytest.mark.parametrize("kind", PROPOSERS)
def test_a_slot_that_is_used_again_is_as_good_as_new(kind: str) -> None:
    """B69: a second turn after a first that ended in a rejection, in full acceptance, in an EOS, or was cancelled."""
    model = tiny_llama()
    decoder = make_decoder(model, PROPOSERS[kind](model), K)
    assert conversation(model, decoder)
    dropped = make_row(PROMPTS[2], COUNT, request_id=9)
    decoder.submit(dropped)
    for _ in range(3):
        decoder.step()
    decoder.cancel(9)
    assert dropped.finish_reason is None and conversation(model, decoder)


def test_a_slot_that_keeps_its_last_request_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """B69: the same conversation over a store that forgets to forget."""
    model = tiny_llama()
    decoder = make_decoder(model, PromptLookup(1, 3), K)
    monkeypatch.setattr(CachedModel, "release", lambda self, slot: None)
    assert not conversation(model, decoder)


@pytest.mark.parametrize("kind", PROPOSERS)
@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_a_copied_prompt_is_the_prompt_whatever_the_source_has_drafted_since(
    kind: str, rounds: int, truths: list[list[int]]
) -> None:
    """B69: requests with one prompt share its prefill; the source has accepted, rejected and gone on in between."""
    model = tiny_llama()
    decoder = make_decoder(model, PROPOSERS[kind](model), K, slots=3, max_len=160)
    rows = [make_row(PROMPTS[2], COUNT, request_id=index) for index in range(3)]
    decoder.submit(rows[0])
    for _ in range(rounds):
        decoder.step()
    decoder.submit(rows[1])
    decoder.submit(rows[2])
    decoder.run()
    assert [row.generated for row in rows] == [truths[2]] * 3


def test_a_copy_that_is_one_token_short_is_seen(truths: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    copy = SlotStore.copy
    monkeypatch.setattr(SlotStore, "copy", lambda self, source, slot, length: copy(self, source, slot, length - 1))
    rows = [make_row(PROMPTS[2], COUNT, request_id=index) for index in range(2)]
    run(make_decoder(tiny_llama(), None, K, slots=2), *rows)
    assert rows[0].generated == truths[2] != rows[1].generated
