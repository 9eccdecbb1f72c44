"""Our own engine: what a request asks for is what comes back, alone or among others, with speculation or without."""

import contextlib
import functools
import gc
import itertools
import random
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from draftproof import Completion, Engine, SamplingParams
from draftproof.decoding.loop import Decoder, roll_back
from draftproof.decoding.proposers.draft_cache import CATCH_UP
from draftproof.engines.base import EngineProtocol
from draftproof.engines.digest import describe_files
from draftproof.errors import InputError, ModelError, PromptError
from draftproof.proposers import (
    CrossTokenizer,
    DraftModel,
    EarlyExit,
    FirstOf,
    PromptLookup,
    Proposal,
    point_masses,
)
from draftproof.records import summarise_rounds
from draftproof.sampling.accept import Decision, rejection
from draftproof.sampling.draw import draw
from draftproof.sampling.noise import KeyedNoise, Purpose
from support.constant_noise import Constant
from support.toy_engines import EOS, UNKNOWN, K, ask, make_engine, noisy_copy, numbered_words, text_of
from support.toy_models import VOCAB, Scripted, judge, tiny_llama
from support.toy_tokenizers import spelt_words

pytestmark = pytest.mark.usefixtures("short_self_test")

PROMPT = [3, 4, 5, 3, 4, 5, 3, 4]
PROMPTS = [PROMPT, [9], [*range(10, 50)], [8, 8, 6, 8, 8, 6, 8]]
LENGTH = 20
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
PROPOSERS = {
    "target-only": lambda model: None,
    "prompt-lookup": lambda model: PromptLookup(1, 3),
    "draft-model": lambda model: DraftModel(noisy_copy(model)),
}
BOTH_ARMS = pytest.mark.parametrize("speculate", [False, True], ids=["target-only", "speculative"])
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_proposer = pytest.mark.parametrize("kind", PROPOSERS)


@pytest.fixture(scope="module")
def truth() -> list[int]:
    """What the judge says after `PROMPT`."""
    return judge(tiny_llama(), PROMPT, LENGTH)


def perfect(truth: list[int]) -> Scripted:
    """Drafts that the target accepts whole, so that every block is full."""
    return Scripted(lambda row, limit: truth[row.num_generated : row.num_generated + limit])


@pytest.fixture(scope="module")
def full_blocks(truth: list[int]) -> Engine:
    """An engine whose drafts are always accepted, used by one test after the other."""
    return make_engine(proposer=perfect(truth))


def one(engine: Engine, params: SamplingParams, speculate: bool = True, prompt=PROMPT) -> Completion:
    return engine.generate([prompt], params, speculate=speculate)[0]


def tokens(completions) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


def bitwise(engine: Engine) -> Engine:
    if engine.capabilities.claim != "bitwise":
        pytest.skip("on this machine the engine claims identity up to ties only")
    return engine


# what comes back


def test_text_chat_and_ids_become_the_same_completion() -> None:
    engine = make_engine(max_batch=3)
    chat = [{"role": "user", "content": "w03 w04"}]
    text, messages, ids = engine.generate(["w03 w04 w05", chat, (3, 4, 5)], ask())
    assert text.token_ids == messages.token_ids == ids.token_ids == tuple(judge(tiny_llama(), [3, 4, 5], 24))
    assert text.num_prompt_tokens == messages.num_prompt_tokens == 3
    assert text.text == text_of(text.token_ids)
    assert text.finish_reason == "length" and text.error is None and text.logprobs is None


@functools.cache
def solo_runs(dtype: str) -> list[tuple[int, ...]]:
    """Target-only, one at a time."""
    model = tiny_llama(3, DTYPES[dtype])
    solo = bitwise(make_engine(model))
    expected = [one(solo, ask(LENGTH), prompt=prompt).token_ids for prompt in PROMPTS]
    if dtype == "float64":
        assert expected == [tuple(judge(model, prompt, LENGTH)) for prompt in PROMPTS]
    return expected


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("float64", kind) for kind in PROPOSERS]
    + [("float32", "prompt-lookup")]
    + [("bfloat16", kind) for kind in PROPOSERS],
)
def test_greedy_batches_and_drafts_equal_the_solo_target_only_arm(dtype: str, kind: str) -> None:
    """Five requests for two slots; a prompt repeats, so that one copies another's keys."""
    model, expected = tiny_llama(3, DTYPES[dtype]), solo_runs(dtype)
    engine = bitwise(make_engine(model, proposer=PROPOSERS[kind](model), max_batch=2))
    prompts, expected = [PROMPT, *PROMPTS], [expected[0], *expected]
    completions = engine.generate(prompts, ask(LENGTH))
    assert tokens(completions) == expected
    assert tokens(engine.generate(prompts, ask(LENGTH), speculate=False)) == expected
    assert [completion.num_prompt_tokens for completion in completions] == [len(prompt) for prompt in prompts]
    rounds = [item for completion in completions for item in completion.rounds]
    accepted, proposed = (sum(getattr(item, name) for item in rounds) for name in ("num_accepted", "num_proposed"))
    assert 0 < accepted < proposed if engine.proposer else proposed == 0


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float64", "draft-model"),
        ("float64", "prompt-lookup"),
        ("bfloat16", "draft-model"),
        ("bfloat16", "target-only"),
    ],
)
def test_a_seeds_tokens_do_not_depend_on_batch_mates_nor_on_the_slot(dtype: str, kind: str) -> None:
    model = tiny_llama(3, DTYPES[dtype])
    wanted = ask(LENGTH, temperature=0.8, top_p=0.95, seed=7)
    expected = one(bitwise(make_engine(model, proposer=PROPOSERS[kind](model))), wanted)
    assert len(set(expected.token_ids)) > 5
    engine = bitwise(make_engine(model, proposer=PROPOSERS[kind](model), max_batch=4))
    mates = [
        ([9], ask(9)),
        ([*range(10, 50)], ask(17, temperature=1.5, seed=8)),
        ([2], ask(26, temperature=1.0, seed=7)),
    ]
    for place in (0, 1, 3):
        prompts, params = map(list, zip(*mates[:place], (PROMPT, wanted), *mates[place:], strict=True))
        again = engine.generate(prompts, params)[place]
        assert again.token_ids == expected.token_ids
        assert [item.num_accepted for item in again.rounds] == [item.num_accepted for item in expected.rounds]


def test_a_seed_fixes_a_sampled_output_and_means_nothing_to_a_greedy_one() -> None:
    engine = make_engine(proposer=PromptLookup())
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second = (one(engine, ask(temperature=1.0, seed=seed)).token_ids for seed in (1, 2**63 - 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first != second
    torch.manual_seed(2)
    assert one(engine, ask(temperature=1.0, seed=1)).token_ids == first
    assert one(engine, ask(seed=1)).token_ids == one(engine, ask(seed=2)).token_ids


@pytest.mark.parametrize(
    ("size", "temperature"), [(1, 0.0), (1, 1.0), (7, 0.0), (8, 0.0), (9, 1.0), (64, 0.0), (65, 0.0), (65, 1.0)]
)
def test_the_target_as_its_own_draft_accepts_everything_whatever_the_prompts_length(
    size: int, temperature: float
) -> None:
    """The very same model object. A float64 ratio can miss 1 by rounding only: false alarm below 30 x 1e-12."""
    model = tiny_llama()
    engine = make_engine(model, proposer=DraftModel(model))
    prompt = [(7 * place) % VOCAB for place in range(size)]
    completion = one(engine, ask(30, temperature=temperature), prompt=prompt)
    assert completion.speculation.draft_acceptance_rate == 1.0
    assert completion.speculation.mean_acceptance_length == K + 1
    if temperature == 0.0:
        assert list(completion.token_ids) == judge(model, prompt, 30)


def test_a_draft_in_another_dtype_changes_nothing(truth: list[int]) -> None:
    model = tiny_llama()
    for dtype in (torch.float32, torch.bfloat16):
        completion = one(make_engine(model, proposer=DraftModel(noisy_copy(model, dtype=dtype))), ask(LENGTH))
        assert list(completion.token_ids) == truth and completion.speculation.num_accepted_draft_tokens > 0


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_prompt_of_one_word_48_times_over(size: int) -> None:
    model, prompt = tiny_llama(), [11] * 48
    completion = one(make_engine(model, proposer=PromptLookup(size, 5)), ask(LENGTH), prompt=prompt)
    assert list(completion.token_ids) == judge(model, prompt, LENGTH)
    assert completion.rounds[0].num_proposed > 0


def test_of_two_tokens_that_tie_the_first_is_taken_whatever_is_drafted() -> None:
    """Ids 2i and 2i + 1 always have equal logits."""
    model = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight[1::2] = model.lm_head.weight[::2]
    plain = one(make_engine(model), ask()).token_ids
    assert all(token_id % 2 == 0 for token_id in plain) and len(set(plain)) > 3
    second = Scripted(lambda row, limit: [token + 1 for token in plain[row.num_generated :][:limit]])
    first = Scripted(lambda row, limit: list(plain[row.num_generated :][:limit]))
    for proposer, rate in ((second, 0.0), (first, 1.0)):
        completion = one(make_engine(model, proposer=proposer), ask())
        assert completion.token_ids == plain and completion.speculation.draft_acceptance_rate == rate


def test_under_the_coupled_rule_a_seeds_tokens_do_not_depend_on_speculation() -> None:
    """The target as its own draft, drawing with the target's numbers, is accepted whole; in a sibling too."""
    model = tiny_llama()
    params = [ask(temperature=1.0, seed=seed, top_k=9) for seed in range(4)]
    engine = make_engine(model, proposer=DraftModel(model), max_batch=2, verification="coupled")
    expected = tokens(make_engine(model, verification="coupled").generate(PROMPTS, params))
    for each in (engine, engine.sibling(max_batch=4, max_len=100)):
        assert tokens(each.generate(PROMPTS, params, speculate=False)) == expected
        completions = each.generate(PROMPTS, params)
        assert tokens(completions) == expected
        assert {completion.speculation.draft_acceptance_rate for completion in completions} == {1.0}
    lookup = make_engine(model, proposer=PromptLookup(1, 3), verification="coupled", num_speculative_tokens=2)
    assert tokens(lookup.generate(PROMPTS, params)) == expected


def test_fast_numerics_take_any_pass_and_claim_less(truth: list[int]) -> None:
    model = tiny_llama()
    engine = make_engine(model, proposer=PromptLookup(1, 3), max_batch=3, numerics="fast")
    assert engine.capabilities.claim == "up_to_ties" and "fast" in engine.capabilities.claim_basis
    for speculate in (False, True):
        completions = engine.generate(PROMPTS, ask(LENGTH), speculate=speculate)
        assert tokens(completions) == [tuple(judge(model, prompt, LENGTH)) for prompt in PROMPTS]


def test_thirty_requests_of_all_kinds_equal_their_solo_runs() -> None:
    """Random lengths and parameters, four at a time, some streams closed in between; greedy and sampled."""
    rng = random.Random(5)
    model = tiny_llama()
    requests = []
    for seed in range(30):
        prompt = [rng.randrange(2, 12) for _ in range(rng.choice([1, 2, 5, 20, 40]))]
        options = {"stop": f"w{rng.randrange(VOCAB):02}"} if rng.random() < 0.3 else {}
        params = ask(rng.randrange(1, 30), temperature=rng.choice([0.0, 0.7, 1.0]), seed=seed, **options)
        requests.append((prompt, params, rng.random() < 0.8))
    solo = make_engine(model, proposer=PromptLookup(1, 3))
    expected = [one(solo, params, speculate, prompt) for prompt, params, speculate in requests]
    engine = make_engine(model, proposer=PromptLookup(1, 3), max_batch=4)
    for speculate in (True, False):
        chosen = [index for index, request in enumerate(requests) if request[2] is speculate]
        prompt, params, _ = requests[chosen[0]]
        opened = engine.stream(prompt, params)
        next(opened)
        opened.close()
        prompts, params = zip(*((requests[index][0], requests[index][1]) for index in chosen), strict=True)
        for index, completion in zip(chosen, engine.generate(prompts, params, speculate=speculate), strict=True):
            same = ("token_ids", "text", "finish_reason", "num_prompt_tokens", "error")
            for name in same:
                assert getattr(completion, name) == getattr(expected[index], name), (index, name)


# where a request ends


@pytest.mark.parametrize("at", range(2 * K + 3))
def test_an_eos_ends_the_output_at_every_offset_of_a_block_unless_it_is_ignored(truth: list[int], at: int) -> None:
    model = tiny_llama()
    model.generation_config.eos_token_id = [truth[at], 63]
    engine = make_engine(model, proposer=perfect(truth))
    end = truth.index(truth[at]) + 1
    for speculate in (False, True):
        stopped = one(engine, ask(LENGTH, ignore_eos=False), speculate)
        assert (list(stopped.token_ids), stopped.finish_reason) == (truth[:end], "stop")
        assert sum(chunk.num_tokens for chunk in stopped.chunks) == end == sum(item.emitted for item in stopped.rounds)
        # a block that was cut has no token of the target's own
        assert (stopped.rounds[-1].next_token is None) == bool(speculate and end % (K + 1))
        ignored = one(engine, ask(LENGTH), speculate)
        assert (list(ignored.token_ids), ignored.finish_reason) == (truth, "length")


def test_the_tokenizers_eos_counts_too_and_is_not_in_the_text(truth: list[int]) -> None:
    model = tiny_llama()
    model.generation_config.eos_token_id = None
    engine = make_engine(model)
    completion = one(engine, ask(9, ignore_eos=False, allowed_token_ids=(EOS,)))
    assert (completion.token_ids, completion.text, completion.finish_reason) == ((EOS,), "", "stop")
    assert one(engine, ask(9, allowed_token_ids=(EOS,))).token_ids == (EOS,) * 9


def test_ignoring_the_eos_bans_no_token() -> None:
    last = one(make_engine(), ask(5, allowed_token_ids=(VOCAB - 1,)))
    assert last.token_ids == (VOCAB - 1,) * 5


@pytest.mark.parametrize("size", [1, 2, 3, K + 3])
def test_a_stop_string_is_found_at_every_offset_and_across_blocks(
    full_blocks: Engine, truth: list[int], size: int
) -> None:
    for at, speculate in itertools.product(range(2 * K + 2), (False, True)):
        stop = text_of(truth[at : at + size])
        end = text_of(truth).index(stop) // 4 + size  # each word and its space are 4 characters
        completion = one(full_blocks, ask(LENGTH, stop=("never", stop)), speculate)
        assert (list(completion.token_ids), completion.finish_reason) == (truth[:end], "stop")
        assert completion.text.rstrip() == text_of(truth[: end - size])
        assert sum(chunk.num_tokens for chunk in completion.chunks) == end


def test_a_stop_string_that_is_only_begun_ends_nothing(full_blocks: Engine, truth: list[int]) -> None:
    begun = text_of([*truth[3:5], (truth[5] + 1) % VOCAB])
    completion = one(full_blocks, ask(LENGTH, stop=begun))
    assert (list(completion.token_ids), completion.finish_reason) == (truth, "length")


@BOTH_ARMS
def test_a_stop_string_that_is_a_special_token_ends_the_request_at_that_token(
    truth: list[int], speculate: bool
) -> None:
    def unknown_is_sixth(input_ids, scores):
        scores[:, UNKNOWN] = 1e4 if input_ids.shape[1] == len(PROMPT) + 5 else -1e4
        return scores

    engine = make_engine(proposer=PromptLookup(1, 3))
    completion = one(engine, ask(LENGTH, stop="<unk>", logits_processors=(unknown_is_sixth,)), speculate)
    assert (list(completion.token_ids), completion.finish_reason) == ([*truth[:5], UNKNOWN], "stop")
    assert completion.text == text_of(truth[:5])
    with pytest.raises(InputError, match="stop = 'w03 <unk>' holds the special token '<unk>', which is no text"):
        one(engine, ask(stop="w03 <unk>"))


def test_the_last_tokens_that_are_allowed(full_blocks: Engine, truth: list[int]) -> None:
    for max_tokens, speculate in itertools.product(range(1, K + 4), (False, True)):
        completion = one(full_blocks, ask(max_tokens), speculate)
        assert (list(completion.token_ids), completion.finish_reason) == (truth[:max_tokens], "length")
        assert all(item.num_proposed < max_tokens for item in completion.rounds)


@pytest.mark.parametrize("left", [1, 2, K, K + 1, K + 2])
def test_output_ends_exactly_at_the_context_limit(truth: list[int], left: int) -> None:
    limit = len(PROMPT) + left
    by_argument = make_engine(proposer=perfect(truth), max_len=limit)
    model = tiny_llama()
    model.config.max_position_embeddings = limit
    by_model = make_engine(model, proposer=perfect(truth))
    for engine, speculate in itertools.product((by_argument, by_model), (False, True)):
        assert engine.capabilities.max_len == limit
        completion = one(engine, ask(LENGTH), speculate)
        assert (list(completion.token_ids), completion.finish_reason) == (truth[:left], "length")


@pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
def test_only_allowed_ids_are_generated_whatever_is_drafted(temperature: float) -> None:
    allowed = (3, 4, 5, 40)
    forbidden = Scripted(
        lambda row, limit: [3 if at != row.num_generated % K else 9 for at in range(limit)]  # at each offset in turn
    )
    for proposer in (forbidden, PromptLookup(1, 3), DraftModel(tiny_llama(1))):
        engine = make_engine(proposer=proposer)
        params = [ask(24, temperature=temperature, allowed_token_ids=allowed, seed=seed) for seed in range(2)]
        prompts = [[3, 9, 4, 9, 3, 9], [9]]
        completions = engine.generate(prompts, params)
        assert all(set(completion.token_ids) <= set(allowed) for completion in completions)
        assert all(len(completion.token_ids) == 24 for completion in completions)
        if temperature == 0.0:
            assert tokens(completions) == tokens(engine.generate(prompts, params, speculate=False))


# streams, and requests that are dropped


@BOTH_ARMS
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}, {"stop": "w03 w04"}], ids=str)
def test_a_stream_grows_to_what_generate_returns(speculate: bool, options: dict) -> None:
    engine = make_engine(proposer=PromptLookup(1, 3))
    whole = one(engine, ask(LENGTH, **options), speculate)
    parts = list(engine.stream(PROMPT, ask(LENGTH, **options), speculate=speculate))
    assert len(parts) == len(whole.rounds)
    for part, longer in itertools.pairwise(parts):
        assert 0 < len(part.token_ids) < len(longer.token_ids)
        assert longer.token_ids[: len(part.token_ids)] == part.token_ids
        assert longer.rounds[:-1] == part.rounds and longer.chunks[:-1] == part.chunks
        assert part.finish_reason is None
    for name in ("token_ids", "text", "finish_reason", "num_prompt_tokens", "speculation", "error"):
        assert getattr(parts[-1], name) == getattr(whole, name)


def test_what_a_stream_showed_is_never_taken_back(truth: list[int]) -> None:
    parts = [part.text for part in make_engine().stream(PROMPT, ask(LENGTH, stop=text_of(truth[8:11])))]
    assert all(parts[-1].startswith(part) for part in parts)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one with every round of any engine."""
    counted: list[None] = []
    step = Decoder.step
    monkeypatch.setattr(Decoder, "step", lambda self: counted.append(None) or step(self))
    return counted


def test_a_stream_closed_early_frees_its_slot(truth: list[int], steps: list[None]) -> None:
    engine = make_engine(proposer=PromptLookup(1, 3))

    def runs_alone() -> bool:
        """Every round is one of the request's own: nobody is waited for."""
        steps.clear()
        completion = one(engine, ask(LENGTH))
        return list(completion.token_ids) == truth and len(steps) == len(completion.rounds)

    for rounds in (1, 3):
        opened = engine.stream([9, 2, 9, 2], ask(LENGTH))
        for _ in range(rounds):
            next(opened)
        opened.close()
        assert runs_alone()
    abandoned = engine.stream([9], ask(LENGTH))
    next(abandoned)
    del abandoned
    assert runs_alone()


def test_a_stream_that_was_never_read_takes_no_slot(truth: list[int]) -> None:
    engine = make_engine()
    engine.stream([9], ask(LENGTH)).close()
    waiting = engine.stream([9], ask(3))
    assert list(one(engine, ask(LENGTH)).token_ids) == truth
    assert len(list(waiting)[-1].token_ids) == 3


def test_two_streams_that_are_read_in_turn_are_their_solo_runs() -> None:
    engine = make_engine(proposer=PromptLookup(1, 3), max_batch=2)
    expected = [one(engine, ask(LENGTH), prompt=prompt).token_ids for prompt in PROMPTS[:2]]
    first, second = (engine.stream(prompt, ask(LENGTH)) for prompt in PROMPTS[:2])
    assert len(next(first).token_ids) < LENGTH
    assert list(second)[-1].token_ids == expected[1]


def test_a_stream_that_ends_while_another_is_read_still_has_its_last_part() -> None:
    engine = make_engine(max_batch=2)
    first, second = engine.stream(PROMPT, ask(3)), engine.stream([9], ask(12))
    next(first)
    assert len(list(second)[-1].token_ids) == 12
    assert len(list(first)[-1].token_ids) == 3


def test_generate_may_run_beside_an_open_stream(truth: list[int]) -> None:
    engine = make_engine(max_batch=2)
    opened = engine.stream([9], ask(5))
    next(opened)
    assert list(one(engine, ask(12)).token_ids) == truth[:12]
    assert list(list(opened)[-1].token_ids) == judge(tiny_llama(), [9], 5)


def test_a_stream_first_shows_what_another_call_has_run_for_it(steps: list[None]) -> None:
    engine = make_engine(max_batch=2)
    opened = engine.stream([9], ask(LENGTH))
    next(opened)
    one(engine, ask(5))
    steps.clear()
    assert len(next(opened).token_ids) == 6 and steps == []
    assert len(next(opened).token_ids) == 7 and len(steps) == 1


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 300 rounds, so that waiting for a request that is gone fails instead of hanging."""
    step, left = Decoder.step, itertools.count(300, -1)

    def counted(self):
        assert next(left) > 0, "waits for ever"
        return step(self)

    monkeypatch.setattr(Decoder, "step", counted)


def test_a_callback_may_ask_the_engine_again(patience: None, truth: list[int]) -> None:
    engine, inner, seen = make_engine(max_batch=2), [], []

    def again(index: int, completion: Completion) -> None:
        seen.append(index)
        if index == 1:
            inner.append(one(engine, ask(20)))

    outer = engine.generate([[9], [8]], [ask(12), ask(3)], on_completion=again)
    assert [len(completion.token_ids) for completion in outer] == [12, 3] and sorted(seen) == [0, 1]
    assert list(inner[0].token_ids) == truth[:20]


def test_a_stream_whose_round_failed_in_another_call_ends_with_the_reason(patience: None) -> None:
    model = tiny_llama()
    engine = make_engine(model, max_batch=2)
    opened = engine.stream([9], ask(LENGTH))
    first = next(opened)
    with fails_at(model, 0), pytest.raises(RuntimeError, match="out of memory"):
        one(engine, ask())
    (last,) = opened
    assert last.finish_reason == "error" and "RuntimeError: out of memory" in last.error
    assert last.token_ids == first.token_ids


# requests that are submitted and stepped


def drain(engine: Engine) -> dict[int, Completion]:
    ended: dict[int, Completion] = {}
    while engine.num_unfinished:
        for number, completion in engine.step():
            assert number not in ended
            ended[number] = completion
    return ended


def test_submitted_requests_are_what_generate_returns() -> None:
    engine = make_engine(proposer=PromptLookup(1, 3), max_batch=2)
    params = [ask(LENGTH), ask(7), ask(12, temperature=1.0, seed=4), ask(LENGTH, stop="w03")]
    expected = engine.generate(PROMPTS, params)
    numbers = [engine.submit(prompt, item) for prompt, item in zip(PROMPTS, params, strict=True)]
    assert len(set(numbers)) == 4 == engine.num_unfinished
    ended = drain(engine)
    assert set(ended) == set(numbers) and engine.num_unfinished == 0 and engine.step() == []
    for number, completion in zip(numbers, expected, strict=True):
        for name in ("token_ids", "text", "finish_reason", "num_prompt_tokens", "speculation"):
            assert getattr(ended[number], name) == getattr(completion, name)
    quiet = engine.submit(PROMPT, ask(5), speculate=False)
    assert all(item.next_token == "target" for item in drain(engine)[quiet].rounds)


def test_a_submitted_request_may_join_late_and_be_cancelled(truth: list[int]) -> None:
    engine = make_engine(max_batch=2)
    first, gone = engine.submit(PROMPT, ask(20)), engine.submit([9], ask(20))
    assert engine.step() == []
    waiting = engine.submit([8], ask(20))
    late = engine.submit(PROMPT, ask(LENGTH))
    engine.cancel(gone)
    engine.cancel(waiting)
    engine.cancel(12345)
    assert engine.num_unfinished == 2
    ended = drain(engine)
    assert {number: list(completion.token_ids) for number, completion in ended.items()} == {
        first: truth[:20],
        late: truth,
    }


def test_what_ends_during_another_call_is_told_at_the_next_step(truth: list[int]) -> None:
    """While generate runs, while a stream is read, and in the very round after which a stream is closed."""
    engine, expected = make_engine(max_batch=3), judge(tiny_llama(), [9], 3)

    def told(number: int) -> None:
        ((found, completion),) = engine.step()
        assert (found, list(completion.token_ids), completion.finish_reason) == (number, expected, "length")
        assert engine.step() == []

    number, gone = engine.submit([9], ask(3)), engine.submit([9], ask(3))
    assert list(one(engine, ask(12)).token_ids) == truth[:12]
    engine.cancel(gone)
    told(number)
    number = engine.submit([9], ask(3))
    assert list(list(engine.stream(PROMPT, ask(12)))[-1].token_ids) == truth[:12]
    told(number)
    number, opened = engine.submit([9], ask(3)), engine.stream(PROMPT, ask(12))
    for _ in range(3):
        next(opened)
    opened.close()
    told(number)


def test_a_loop_while_something_is_unfinished_is_told_of_everything() -> None:
    engine = make_engine(max_batch=2)
    number = engine.submit([9], ask(3))
    one(engine, ask(12))
    assert list(drain(engine)) == [number]


def test_a_failing_round_is_told_to_every_request_of_it(truth: list[int]) -> None:
    model = tiny_llama()
    engine = make_engine(model, max_batch=2)
    numbers = [engine.submit(prompt, ask(9)) for prompt in PROMPTS[:3]]
    engine.step()
    with fails_at(model, 0), pytest.raises(RuntimeError, match="out of memory"):
        engine.step()
    ended = drain(engine)
    assert [ended[number].finish_reason for number in numbers] == ["error", "error", "length"]
    assert ended[numbers[0]].token_ids == (truth[0],) and "out of memory" in ended[numbers[0]].error


def test_samples_of_one_request_are_its_solo_runs_in_order() -> None:
    """Sample j has its own numbers; the first is what a request for one gets, wherever it runs."""
    engine = make_engine(proposer=PromptLookup(1, 3), max_batch=3)
    params = ask(12, temperature=1.0, seed=5, n=3)
    seen: list[int] = []
    completions = engine.generate(PROMPTS[:2], params, on_completion=lambda index, _: seen.append(index))
    assert len(completions) == 6 and sorted(seen) == list(range(6)) and len(set(tokens(completions[:3]))) == 3
    for at, prompt in ((0, PROMPTS[0]), (3, PROMPTS[1])):
        assert one(engine, ask(12, temperature=1.0, seed=5), prompt=prompt).token_ids == completions[at].token_ids
        assert completions[at].num_prompt_tokens == len(prompt)
    assert len(set(tokens(engine.generate([PROMPT], ask(n=3))))) == 1
    with pytest.raises(InputError, match=r"n = 3: submit takes one"):
        engine.submit(PROMPT, params)


# failures


@contextlib.contextmanager
def fails_at(model, at: int, error: type[BaseException] = RuntimeError) -> Iterator[None]:
    """Inside, the model's forward number ``at`` raises."""
    passes = itertools.count()

    def fail(*_: object) -> None:
        if next(passes) == at:
            raise error("out of memory")

    handle = model.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [1, 4])
def test_an_exception_in_the_targets_forward_leaves_the_engine_usable(
    truth: list[int], at: int, error: type[BaseException]
) -> None:
    model = tiny_llama()
    engine = make_engine(model, proposer=PromptLookup(1, 3), max_batch=2)
    with fails_at(model, at, error), pytest.raises(error, match="out of memory"):
        engine.generate(PROMPTS, ask(LENGTH))
    assert tokens(engine.generate([PROMPT, PROMPT], ask(LENGTH))) == [tuple(truth)] * 2


@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_exception_in_a_proposer_costs_its_own_round_a_draft(truth: list[int], at: int) -> None:
    calls = itertools.count()

    def script(row, limit):
        if row.request_id == 1 and next(calls) in (at, at + 1):  # the batch, and then the row alone
            raise MemoryError("no room for the draft")
        return truth[row.num_generated : row.num_generated + limit]

    engine = make_engine(proposer=Scripted(script), max_batch=2)
    for completion in engine.generate([PROMPT] * 3, ask(LENGTH)):
        assert list(completion.token_ids) == truth
    first = engine.generate([PROMPT], ask(LENGTH))[0]
    assert list(first.token_ids) == truth and first.speculation.draft_acceptance_rate == 1.0


@pytest.mark.parametrize("at", [0, 1, 4])
def test_an_exception_in_the_drafts_forward_is_recorded_and_forgotten(truth: list[int], at: int) -> None:
    """A long prompt, so that it may fail between two parts of the prompt; a draft that lost its place is rejected."""
    model, prompt = tiny_llama(), PROMPT * 18
    draft = tiny_llama()
    engine = make_engine(model, proposer=DraftModel(draft), max_batch=2, max_len=200)
    expected = judge(model, prompt, LENGTH)
    with fails_at(draft, at):
        first = one(engine, ask(LENGTH), prompt=prompt)
    assert list(first.token_ids) == expected
    assert [item.draft_error for item in first.rounds if item.draft_error] == ["RuntimeError: out of memory"]
    assert first.speculation.draft_acceptance_rate == 1.0
    again = one(engine, ask(LENGTH), prompt=prompt)
    assert list(again.token_ids) == expected and again.speculation.draft_acceptance_rate == 1.0


@pytest.mark.parametrize("victim", ["target", "draft"])
def test_an_interrupt_leaves_the_engine_usable(truth: list[int], victim: str) -> None:
    models = {"target": tiny_llama(), "draft": noisy_copy(tiny_llama())}
    engine = make_engine(models["target"], proposer=DraftModel(models["draft"]), max_batch=2)
    with fails_at(models[victim], 5, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, ask(LENGTH))
    assert tokens(engine.generate([PROMPT, PROMPT], ask(LENGTH))) == [tuple(truth)] * 2


def test_an_exception_in_a_callback_leaves_the_engine_usable(truth: list[int], steps: list[None]) -> None:
    engine = make_engine(max_batch=2)

    def fail(index: int, completion: Completion) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, [ask(3), ask(20), ask(20), ask(20)], on_completion=fail)
    steps.clear()
    assert tokens(engine.generate([PROMPT, PROMPT], ask(LENGTH))) == [tuple(truth)] * 2
    assert len(steps) == LENGTH  # and the requests that were given up cost nothing


@BOTH_ARMS
def test_logits_that_are_not_finite_end_their_own_request_only(truth: list[int], speculate: bool) -> None:
    model = tiny_llama()
    assert 7 not in truth
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = torch.nan
    engine = make_engine(model, proposer=perfect(truth), max_batch=2)
    good, bad, again = engine.generate([PROMPT, [*PROMPT, 7, 4], PROMPT], ask(LENGTH), speculate=speculate)
    assert (bad.finish_reason, bad.error) == ("error", "the target's logits are not finite")
    assert (bad.token_ids, bad.text, bad.chunks, bad.latency_ms) == ((), "", (), None)
    assert list(good.token_ids) == list(again.token_ids) == truth


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_whose_logits_are_not_finite_does_not_end_a_healthy_request(temperature: float) -> None:
    draft = tiny_llama(1)
    with torch.no_grad():
        draft.model.embed_tokens.weight[4] = torch.nan
    engine = make_engine(proposer=DraftModel(draft))
    completion = one(engine, ask(temperature=temperature))
    assert (completion.finish_reason, len(completion.token_ids)) == ("length", 24)
    if temperature == 0.0:
        assert list(completion.token_ids) == judge(tiny_llama(), PROMPT, 24)


# records


def test_completions_arrive_once_each_as_they_end() -> None:
    seen: list[tuple[int, Completion]] = []
    engine = make_engine(max_batch=2)
    lengths = [30, 3, 12, 1, 5]
    params = [ask(length) for length in lengths]
    completions = engine.generate(
        [*PROMPTS, PROMPT], params, on_completion=lambda index, completion: seen.append((index, completion))
    )
    assert [len(completion.token_ids) for completion in completions] == lengths
    assert sorted(index for index, _ in seen) == list(range(5)) and seen[0][0] == 1 and seen[-1][0] == 0
    assert all(completions[index] is completion for index, completion in seen)
    assert engine.generate([], ask()) == []


@every_proposer
def test_rounds_and_chunks_add_up_to_the_tokens(kind: str) -> None:
    model = tiny_llama()
    engine = make_engine(model, proposer=PROPOSERS[kind](model), max_batch=2)
    began = engine.now_ms()
    params = [ask(LENGTH), ask(7), ask(20, temperature=1.0), ask(20, stop="w03")]
    completions = engine.generate(PROMPTS, params)
    took = engine.now_ms() - began
    for completion in completions:
        rounds, chunks = completion.rounds, completion.chunks
        assert sum(item.emitted for item in rounds) == len(completion.token_ids)
        assert [chunk.num_tokens for chunk in chunks] == [item.emitted for item in rounds]
        times = [0.0, *(chunk.at_ms for chunk in chunks), took]
        assert all(earlier < later for earlier, later in itertools.pairwise(times))
        assert completion.latency_ms == times[-2]
        assert sum(item.propose_ms + item.score_ms for item in rounds) <= took
        for item in rounds:
            assert 0 <= item.num_accepted <= item.num_proposed <= K and 1 <= item.emitted <= item.num_accepted + 1
            whole = (
                "correction" if item.num_accepted < item.num_proposed else "bonus" if item.num_proposed else "target"
            )
            assert item.next_token == (whole if item.emitted == item.num_accepted + 1 else None)
            assert item.propose_ms >= 0.0 and item.score_ms > 0.0
        assert all(item.next_token is not None for item in rounds[:-1])
        expected = summarise_rounds(rounds, K) if engine.proposer else None
        assert completion.speculation == expected


def test_the_wait_for_a_slot_is_part_of_a_requests_time() -> None:
    first, second = make_engine().generate([PROMPT, PROMPT], ask(8))
    assert second.chunks[0].at_ms > first.chunks[-1].at_ms


def test_acceptance_counts_neither_what_follows_a_mismatch_nor_the_targets_own_token(truth: list[int]) -> None:
    """Right, wrong, right, right: one accepted of four. Then short drafts, and a round without any."""
    drafts = {0: [0, 1, 0, 0], 2: [0, 0], 5: [1], 6: []}  # by the round's first position; 1 marks a wrong token

    def script(row, limit):
        marks = drafts.get(row.num_generated, [])
        ahead = truth[row.num_generated :]
        return [(token + mark) % VOCAB for token, mark in zip(ahead, marks, strict=False)]

    completion = one(make_engine(proposer=Scripted(script)), ask(7))
    assert list(completion.token_ids) == truth[:7]
    assert [(item.num_proposed, item.num_accepted, item.next_token, item.emitted) for item in completion.rounds] == [
        (4, 1, "correction", 2),
        (2, 2, "bonus", 3),
        (1, 0, "correction", 1),
        (0, 0, "target", 1),
    ]
    numbers = completion.speculation
    assert (numbers.num_spec_steps, numbers.num_draft_tokens, numbers.num_accepted_draft_tokens) == (3, 7, 3)
    assert numbers.draft_acceptance_rate == 3 / 7 and numbers.mean_acceptance_length == 2.0
    assert numbers.acceptance_histogram == (1, 1, 1, 0, 0) and numbers.num_spec_tokens == K


def test_nothing_proposed_is_none_and_not_zero() -> None:
    engine = make_engine(proposer=Scripted(lambda row, limit: []))
    numbers = one(engine, ask(3)).speculation
    assert numbers.draft_acceptance_rate is None and numbers.mean_acceptance_length is None
    assert numbers.num_spec_steps == numbers.num_draft_tokens == 0
    assert one(engine, ask(3), speculate=False).speculation is None
    assert one(make_engine(), ask(3)).speculation is None


@every_dtype
def test_scores_are_the_plain_models_logits(dtype: str) -> None:
    """Its own kernel and no cache of ours: the very bits, also after the engine has run."""
    model, tails = tiny_llama(0, DTYPES[dtype]), [[9, 2, 7], [5, 5, 5]]
    engine = make_engine(model, proposer=PromptLookup())
    sequences = torch.tensor([[*PROMPT, *tail] for tail in tails])
    with torch.no_grad():
        plain = model(input_ids=sequences, use_cache=False).logits[:, len(PROMPT) - 1 : -1].float().numpy()
    before = engine.score(PROMPT, tails)
    engine.generate(PROMPTS, ask(5))
    for scores in (before, engine.score(PROMPT, tails)):
        assert scores.shape == (2, 3, VOCAB) and scores.dtype == np.float32
        assert np.array_equal(scores, plain)


# parts that can be replaced


def accept_nothing(target_probs, proposal, keys, positions, noise) -> Decision:
    """Exact for a greedy request: the first row's own token."""
    uniform = noise.uniform(keys, positions, Purpose.TARGET, 1)[:, 0]
    none = torch.zeros(len(keys), dtype=torch.int64)
    return Decision(num_accepted=none, next_token_ids=draw(target_probs[:, 0], uniform))


def forget(target, slot: int, num_tokens: int) -> None:
    """A roll-back that does nothing."""


def test_the_noise_is_where_every_number_comes_from() -> None:
    """At 0 the first token of the vocabulary is drawn each time, from the draft and from the target."""
    for proposer in (None, DraftModel(tiny_llama(1))):
        engine = make_engine(proposer=proposer, noise=Constant(0.0))
        assert one(engine, ask(12, temperature=1.0)).token_ids == (0,) * 12
    allowed = ask(12, temperature=100.0, allowed_token_ids=(3, 5, 9))
    assert one(make_engine(noise=Constant(1 - 2**-53)), allowed).token_ids == (9,) * 12


def test_the_accept_rule_is_the_one_that_was_given(truth: list[int]) -> None:
    completion = one(make_engine(proposer=perfect(truth), accept=accept_nothing), ask(LENGTH))
    assert list(completion.token_ids) == truth
    assert completion.speculation.num_draft_tokens > 0 == completion.speculation.num_accepted_draft_tokens


def test_a_roll_back_that_forgets_is_seen_in_the_output(truth: list[int]) -> None:
    wrong = Scripted(lambda row, limit: [(token + 1) % VOCAB for token in truth[row.num_generated :][:limit]])
    assert list(one(make_engine(proposer=wrong, take_back=roll_back), ask(LENGTH)).token_ids) == truth
    assert list(one(make_engine(proposer=wrong, take_back=forget), ask(LENGTH)).token_ids) != truth
    assert list(one(make_engine(proposer=perfect(truth), take_back=forget), ask(LENGTH)).token_ids) == truth


def test_a_sibling_keeps_the_parts_and_has_its_own_slots(truth: list[int]) -> None:
    taken: list[int] = []

    def counted(target, slot: int, num_tokens: int) -> None:
        taken.append(num_tokens)
        roll_back(target, slot, num_tokens)

    engine = make_engine(
        proposer=PromptLookup(2, 2),
        accept=accept_nothing,
        noise=Constant(0.0),
        take_back=counted,
        numerics="fast",
        num_speculative_tokens=3,
    )
    sibling: EngineProtocol = engine.sibling(max_batch=3, max_len=50)
    assert (sibling.capabilities.max_batch, sibling.capabilities.max_len) == (3, 50)
    assert sibling.capabilities.num_speculative_tokens == 3 and sibling.capabilities.claim == "up_to_ties"
    assert (sibling.proposer.prompt_lookup_min, sibling.proposer.prompt_lookup_max) == (2, 2)
    sampled = one(sibling, ask(20, temperature=1.0))
    assert sampled.token_ids == (0,) * 20
    assert sampled.speculation.num_draft_tokens > 0 == sampled.speculation.num_accepted_draft_tokens
    assert sum(taken) == sampled.speculation.num_draft_tokens
    other = engine.sibling(max_batch=1, max_len=50, accept=lambda own: rejection)
    assert one(other, ask(20, temperature=1.0)).speculation.num_accepted_draft_tokens > 0
    assert list(one(engine, ask(20)).token_ids) == truth[:20]
    assert (engine.capabilities.max_batch, engine.max_len) == (1, 160)


def test_a_sibling_with_a_draft_model_does_not_touch_its_parents_cache(truth: list[int]) -> None:
    model = tiny_llama()
    engine = make_engine(model, proposer=DraftModel(noisy_copy(model)))
    opened = engine.stream(PROMPT, ask(LENGTH))
    next(opened)
    sibling = engine.sibling(max_batch=2, max_len=64)
    assert tokens(sibling.generate([PROMPT] * 3, ask(LENGTH))) == [tuple(truth)] * 3
    last = list(opened)[-1]
    assert list(last.token_ids) == truth
    assert last.speculation == one(engine, ask(LENGTH)).speculation


def test_a_processor_that_asks_its_own_engine_ends_its_request_and_no_other(truth: list[int]) -> None:
    """Rounds inside a round would commit tokens of rows that the outer one has already scored."""
    engine = make_engine(proposer=PromptLookup(1, 2), max_batch=3)

    def asks(input_ids, scores):
        if input_ids.shape[1] > len(PROMPT) + 3:
            engine.generate([PROMPT], ask(4))
        return scores

    params = [ask(20), ask(20, logits_processors=(asks,))]
    beside, asking = engine.generate([PROMPT, PROMPT], params)
    assert list(beside.token_ids) == truth[:20]
    assert asking.finish_reason == "error" and "a round is running: an engine serves one thread" in asking.error
    assert list(asking.token_ids) == truth[: len(asking.token_ids)]
    assert list(one(engine, ask(20)).token_ids) == truth[:20]


DERIVABLE = {
    "draft-model": (DraftModel, lambda: (noisy_copy(tiny_llama()), 0.1)),
    "other-vocabulary": (CrossTokenizer, lambda: (tiny_llama(1, vocab=90), spelt_words(), 0.1)),
    "early-exit": (EarlyExit, lambda: (1, 0.1)),
    "first-of": (FirstOf, lambda: (PromptLookup(2, 2), EarlyExit(1))),
}


@pytest.mark.parametrize(("kind", "arguments"), DERIVABLE.values(), ids=DERIVABLE)
def test_a_sibling_keeps_what_a_derived_proposer_changes(kind, arguments) -> None:
    """A check runs on a sibling: it must judge the user's own class, not the one that this is derived from."""

    class Derived(kind):
        asked = 0

        def propose(self, rows, limits):
            self.asked += len(super().propose(rows, limits).token_ids)
            return point_masses([[] for _ in rows], torch.device("cpu"))

    engine = make_engine(proposer=Derived(*arguments()))
    sibling = engine.sibling(max_batch=2, max_len=64)
    done = one(sibling, ask(12))
    assert type(sibling.proposer) is Derived and sibling.proposer.asked > 0 == engine.proposer.asked
    assert all(item.num_proposed == 0 for item in done.rounds)
    for name in ("source", "tokenizer", "confidence_threshold"):
        assert getattr(sibling.proposer, name, None) is getattr(engine.proposer, name, None)


class Remembers:
    """A user's own proposer with its state made in ``__init__``; proposes what it last saw in the slot."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def bind(self, context) -> None:
        self.device = context.device

    def propose(self, rows, limits):
        drafts = [
            [self.seen.get(row.slot, 0)] * min(limit, row.slot in self.seen)
            for row, limit in zip(rows, limits, strict=True)
        ]
        self.seen.update({row.slot: row.token_ids[-1] for row in rows})
        return point_masses(drafts, self.device)

    def release(self, slot: int) -> None:
        self.seen.pop(slot, None)


def test_a_siblings_proposer_shares_no_state_with_its_parents() -> None:
    engine = make_engine(proposer=Remembers())
    sibling = engine.sibling(max_batch=1, max_len=64)
    opened = engine.stream(PROMPT, ask(6))
    next(opened)
    assert sibling.proposer.seen == {} != engine.proposer.seen


class KeepsItsContext:
    """A user's own proposer that keeps what it was told, as any may."""

    def bind(self, context) -> None:
        self.context = context

    def propose(self, rows, limits):
        return point_masses([[3] * limit for limit in limits], self.context.device)

    def release(self, slot: int) -> None:
        pass


def test_a_sibling_copies_no_model_with_a_proposer() -> None:
    model, copied = tiny_llama(), []
    type(model).__deepcopy__ = lambda self, memo: copied.append(type(self)) or self
    try:
        make_engine(model, proposer=KeepsItsContext()).sibling(max_batch=1, max_len=64)
    finally:
        del type(model).__deepcopy__
    assert copied == []


# what the engine says of itself


@pytest.mark.parametrize("tied", [False, True])
def test_memory_is_counted_in_parts(tied: bool) -> None:
    """Two layers, keys and values, 2 key heads of 8, max_len columns and those of a block more for padding."""
    model, draft = tiny_llama(dtype=torch.float32), tiny_llama(1, torch.bfloat16)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    shared = {parameter.data_ptr(): parameter.nbytes for parameter in model.parameters()}
    columns = 2 * 2 * 2 * 8 * (160 + K + 1)
    engine = make_engine(model, max_batch=3)
    assert engine.memory() == {
        "target_weights": sum(shared.values()),
        "target_cache": 3 * columns * 4,
        "draft_weights": None,
        "draft_cache": None,
    }
    draft.config.max_position_embeddings = 100
    memory = make_engine(model, proposer=DraftModel(draft), max_batch=3).memory()
    assert memory["draft_weights"] == sum(parameter.nbytes for parameter in draft.parameters())
    assert memory["draft_cache"] == 3 * columns // (160 + K + 1) * (100 + CATCH_UP) * 2


def test_the_memory_of_a_draft_inside_first_of_is_counted() -> None:
    draft = tiny_llama(1)
    memory = make_engine(proposer=FirstOf(PromptLookup(), DraftModel(draft))).memory()
    assert memory["draft_weights"] == sum(parameter.nbytes for parameter in draft.parameters())
    assert memory["draft_cache"] == memory["target_cache"] // (160 + K + 1) * (160 + CATCH_UP)


def test_the_engine_says_what_it_can_do() -> None:
    engine = make_engine(tiny_llama(dtype=torch.float32), proposer=PromptLookup(), max_batch=2)
    able = engine.capabilities
    assert (able.name, able.max_batch, able.max_len) == ("draftproof", 2, 160)
    assert (able.num_speculative_tokens, make_engine().capabilities.num_speculative_tokens) == (K, None)
    assert able.reports_rounds and able.allowed_token_ids and able.score and able.replaceable_rule
    assert able.details["dtype"] == "float32" and able.details["device"] == "cpu"
    assert able.details["attention"] == "sdpa" and able.details["shape_class"] == engine.shape_class.describe()
    assert able.claim == engine.shape_class.claim
    assert all(shape in able.claim_basis for shape in engine.shape_class.agree)
    assert f"{torch.get_num_threads()} threads" in able.claim_basis
    assert make_engine(max_len=4096).capabilities.max_len == 512  # the model's own limit


def test_a_closed_engine_holds_nothing() -> None:
    model = tiny_llama()
    engine = make_engine(model, proposer=DraftModel(tiny_llama(1)))
    one(engine, ask(3))
    held = [weakref.ref(engine._target.store), weakref.ref(engine.proposer.cached.store)]
    engine.close()
    gc.collect()
    assert [reference() for reference in held] == [None, None]
    assert list(one(make_engine(model), ask(3)).token_ids) == judge(model, PROMPT, 3)


# input that cannot be used


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        pytest.param("", "has no tokens", id="empty-text"),
        pytest.param([], "has no tokens", id="no-ids"),
        pytest.param([3, VOCAB], r"an id outside 0\.\.63", id="id-too-large"),
        pytest.param([-1], r"an id outside 0\.\.63", id="id-below-zero"),
        pytest.param([3] * 160, "has 160 tokens and the context limit is 160", id="too-long"),
    ],
)
def test_a_prompt_that_cannot_run_is_refused_before_anything_runs(prompt: object, message: str) -> None:
    ran: list[int] = []
    engine = make_engine()
    with pytest.raises(PromptError, match=message):
        engine.generate([PROMPT, prompt], ask(), on_completion=lambda index, _: ran.append(index))
    assert ran == []
    with pytest.raises(PromptError, match=message):
        next(engine.stream(prompt, ask()))
    assert len(one(engine, ask(2)).token_ids) == 2


@pytest.mark.parametrize(
    "prompts",
    [
        pytest.param([3, 4, 5], id="ids-of-one-prompt"),
        pytest.param([["w03", "w04"]], id="a-list-of-words"),
        pytest.param([["3", "4"]], id="digits"),
        pytest.param([[3.7]], id="a-fraction"),
    ],
)
def test_prompts_of_the_wrong_kind_are_refused(prompts: object) -> None:
    with pytest.raises(PromptError):
        make_engine().generate(prompts, ask(2))


def test_chat_for_a_tokenizer_without_a_template_is_refused() -> None:
    engine = make_engine()
    engine.tokenizer.chat_template = None
    with pytest.raises(PromptError, match="template"):
        one(engine, ask(2), prompt=[{"role": "user", "content": "w03"}])


def test_other_input_that_cannot_be_used_is_refused() -> None:
    engine = make_engine()
    with pytest.raises(PromptError, match="one string"):
        engine.generate("w03", ask())
    for prompts in ({"role": "user", "content": "w03"}, iter([PROMPT]), None):
        with pytest.raises(PromptError, match=f"prompts is of type {type(prompts).__name__}; give a list"):
            engine.generate(prompts, ask())
    for run in (lambda: engine.generate([PROMPT], {"n": 1}), lambda: engine.submit(PROMPT, {"n": 1})):
        with pytest.raises(InputError, match=r"sampling parameters of type dict; give SamplingParams\(\.\.\.\)"):
            run()
    for params in ([ask()], [ask()] * 3):
        with pytest.raises(InputError, match=f"{len(params)} sampling parameters for 2 prompts"):
            engine.generate([PROMPT, PROMPT], params)
    with pytest.raises(InputError, match=r"holds 64; the model's vocabulary is 0\.\.63"):
        engine.generate([PROMPT, PROMPT], [ask(), ask(allowed_token_ids=(3, 64))])
    with pytest.raises(InputError, match=r"holds 64; the model's vocabulary is 0\.\.63"):
        next(engine.stream(PROMPT, ask(allowed_token_ids=(64,))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"num_speculative_tokens": 0}, "num_speculative_tokens = 0: allowed 1 to 15", id="k-0"),
        pytest.param({"num_speculative_tokens": 99}, "num_speculative_tokens = 99: allowed 1 to 15", id="k-99"),
        pytest.param({"num_speculative_tokens": 2.5}, "num_speculative_tokens = 2.5: allowed are whole", id="k-2.5"),
        pytest.param({"max_batch": True}, "max_batch = True: allowed are whole numbers", id="batch-true"),
        pytest.param({"max_len": "64"}, "max_len = '64': allowed are whole numbers", id="len-text"),
        pytest.param({"proposer": "prompt-lookup"}, "proposer is a str; allowed are objects with bind", id="a-name"),
        pytest.param({"proposer": PromptLookup}, "proposer is the class PromptLookup; allowed are", id="a-class"),
        pytest.param({"model": "path/to/model"}, "names and paths go to Engine.from_pretrained", id="model-name"),
        pytest.param({"max_batch": 0}, "max_batch = 0: allowed 1 or more", id="batch-0"),
        pytest.param({"max_len": 1}, "max_len = 1: allowed 2 or more", id="len-1"),
        pytest.param({"numerics": "exact"}, "numerics = 'exact': allowed 'bitwise' or 'fast'", id="numerics"),
        pytest.param(
            {"verification": "typical"}, "verification = 'typical': allowed 'rejection' or 'coupled'", id="verification"
        ),
    ],
)
def test_options_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_engine(**options)


def test_what_cannot_be_an_option_is_refused_before_a_model_is_looked_for() -> None:
    for options in ({"numerics": "exact"}, {"verification": "typical"}, {"proposer": "prompt-lookup"}):
        with pytest.raises(InputError, match=next(iter(options))):
            Engine.from_pretrained("/no/such/model", **options)
    with pytest.raises(InputError, match="proposer is a int"):
        FirstOf(PromptLookup(), 3)


def test_a_model_in_training_mode_is_put_into_eval_mode() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128)).train()
    completion = one(make_engine(model, proposer=PromptLookup(), max_len=64), ask(12))
    assert not model.training and list(completion.token_ids) == judge(model, PROMPT, 12)


@pytest.mark.parametrize("k", [1, 15])
def test_the_smallest_and_the_largest_k(truth: list[int], k: int) -> None:
    completion = one(make_engine(proposer=perfect(truth), num_speculative_tokens=k), ask(LENGTH))
    assert list(completion.token_ids) == truth
    assert max(item.num_accepted for item in completion.rounds) == k


def test_the_smallest_context(truth: list[int]) -> None:
    engine = make_engine(max_len=2, proposer=PromptLookup())
    assert list(one(engine, ask(), prompt=[9]).token_ids) == judge(tiny_llama(), [9], 1)


class Padded:
    """A user's own proposer that always returns K columns; what it does not propose is padding."""

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def bind(self, context) -> None:
        self.context = context

    def propose(self, rows, limits):
        token_ids = torch.full((len(rows), self.context.num_speculative_tokens), self.padding)
        num_tokens = torch.tensor([min(2, limit) for limit in limits])
        for index, count in enumerate(num_tokens.tolist()):
            token_ids[index, :count] = 3
        return Proposal(token_ids=token_ids, num_tokens=num_tokens)

    def release(self, slot: int) -> None:
        pass


@pytest.mark.parametrize("padding", [0, -1])
def test_a_proposal_may_be_wider_than_what_it_proposes(truth: list[int], padding: int) -> None:
    completion = one(make_engine(proposer=Padded(padding)), ask(LENGTH))
    assert list(completion.token_ids) == truth and completion.speculation.num_draft_tokens > 20
    assert all(item.draft_error is None for item in completion.rounds)


# from names


def test_models_by_name_are_loaded_packed_and_speculate_exactly(tmp_path) -> None:
    target = tiny_llama(3, torch.bfloat16)
    for name, model in (("target", target), ("draft", noisy_copy(target))):
        model.save_pretrained(tmp_path / name)
        numbered_words().save_pretrained(tmp_path / name)
    said: list[str] = []
    engine = Engine.from_pretrained(
        str(tmp_path / "target"),
        proposer=DraftModel(str(tmp_path / "draft")),
        num_speculative_tokens=3,
        max_len=100,
        max_batch=2,
        progress=said.append,
    )
    assert [line.split()[0] for line in said] == ["loading", "loading", "measuring"]
    details = engine.capabilities.details
    assert details["dtype"] == "bfloat16" and engine.capabilities.max_len == 100
    assert details["model"] == {
        "target": describe_files(tmp_path / "target"),
        "drafts": [describe_files(tmp_path / "draft")],
    }
    assert details["model"]["target"]["weights"] != details["model"]["drafts"][0]["weights"]
    plain, speculative = (engine.generate(PROMPTS, ask(LENGTH), speculate=speculate) for speculate in (False, True))
    if engine.capabilities.claim == "bitwise":
        assert tokens(plain) == tokens(speculative)
    assert any(completion.speculation.num_accepted_draft_tokens for completion in speculative)


@pytest.mark.parametrize(
    "nest",
    [
        pytest.param(lambda draft: FirstOf(PromptLookup(), draft), id="first-of"),
        pytest.param(
            lambda draft: FirstOf(PromptLookup(3, 3), FirstOf(PromptLookup(2, 2), draft)),
            id="first-of-first-of",
        ),
    ],
)
def test_a_draft_by_name_is_loaded_wherever_it_stands(tmp_path, nest) -> None:
    model = tiny_llama(3, torch.bfloat16)
    model.save_pretrained(tmp_path)
    numbered_words().save_pretrained(tmp_path)
    engine = Engine.from_pretrained(str(tmp_path), proposer=nest(DraftModel(str(tmp_path))), max_len=64)
    assert engine.memory()["draft_weights"] is not None
    assert one(engine, ask(8), prompt=[9]).speculation.num_accepted_draft_tokens > 0


def test_a_draft_with_another_tokenizer_is_refused_by_the_first_id_that_differs(tmp_path) -> None:
    other = numbered_words()
    vocabulary = other.get_vocab()
    swapped = {word: {30: 31, 31: 30}.get(token_id, token_id) for word, token_id in vocabulary.items()}
    for name, tokenizer in (("target", other), ("draft", numbered_words())):
        tiny_llama(dtype=torch.bfloat16).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    file = tmp_path / "draft" / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    assert swapped["w30"] == 31
    file.write_text(text.replace('"w30": 30', '"w30": 31').replace('"w31": 31', '"w31": 30'), encoding="utf-8")
    with pytest.raises(ModelError, match=r"another tokenizer.*id 30 is 'w30' in one and 'w31' in the other"):
        Engine.from_pretrained(str(tmp_path / "target"), proposer=DraftModel(str(tmp_path / "draft")), max_len=100)


def test_a_draft_by_name_needs_from_pretrained() -> None:
    with pytest.raises(ModelError, match="'some-draft' is not loaded"):
        make_engine(proposer=DraftModel("some-draft"))


def test_keyed_noise_is_what_an_engine_uses_when_none_is_given() -> None:
    params = ask(temperature=1.0, seed=11)
    assert one(make_engine(noise=KeyedNoise()), params).token_ids == one(make_engine(), params).token_ids
