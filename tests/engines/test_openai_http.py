"""Servers as an engine: each dialect gives the same completion, each fault the right metric or one clear error, in time."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from draftproof.engines.http.counters import Counts, between
from draftproof.engines.http.dialects import DIALECTS, LLAMACPP, VLLM
from draftproof.engines.http.stream import Answer, WireError
from draftproof.engines.launch import Attached, free_port
from draftproof.engines.openai_http import HttpEngine
from draftproof.errors import InputError, PromptError, ServerError
from draftproof.records import Completion
from draftproof.request import SamplingParams
from support.fake_server import EOS, MAX_LEN, Behaviour, FakeServer, Table, serving, spell
from support.leftovers import no_thread_stays
from support.toy_engines import numbered_words
from support.toy_tokenizers import byte_level

PROMPT = [5, 9, 7]
COUNT = 10
GREEDY = SamplingParams(max_tokens=COUNT, temperature=0.0)
PATIENT_S, TIMEOUT_S = 20.0, 1.0
IMPATIENT = {"timeout_s": TIMEOUT_S}
# a request may be over a little later than it has to be; a hang is much longer
SLACK_S = 8.0
WITH_IDS = ("vllm", "sglang", "tgi", "llamacpp")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    with no_thread_stays():
        yield


def connect(plain: FakeServer | str, drafting: FakeServer | str | None = None, **options: Any) -> HttpEngine:
    urls = [item.url if isinstance(item, FakeServer) else item for item in (plain, drafting) if item is not None]
    defaults: dict[str, Any] = {"target": "", "tokenizer": numbered_words(), "timeout_s": PATIENT_S, "max_batch": 4}
    return HttpEngine.connect(Attached(urls[0], urls[1] if len(urls) > 1 else None), **{**defaults, **options})


@contextmanager
def both(dialect: str = "vllm", *, drafting: dict[str, Any] | None = None, engine: Any = None, **behaviour: Any) -> Any:
    """A target-only server, a speculative one, and the engine over them."""
    with (
        serving(dialect=dialect, **behaviour) as plain,
        serving(dialect=dialect, speculates=True, **behaviour, **(drafting or {})) as other,
    ):
        made = connect(plain, other, **(engine or {}))
        try:
            yield made, plain, other
        finally:
            made.close()


def one(engine: HttpEngine, params: SamplingParams = GREEDY, **options: Any) -> Completion:
    return engine.generate([PROMPT], params, **options)[0]


def truth(count: int = COUNT, prompt: list[int] = PROMPT) -> tuple[int, ...]:
    return tuple(Table(0).generate(prompt, count, 0.0, 0))


# --- each dialect


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_server_is_recognised_and_gives_the_tables_tokens_in_both_arms(dialect: str) -> None:
    with both(dialect) as (engine, _, _):
        plain, drafted = (one(engine, speculate=speculate) for speculate in (False, True))
        assert engine.capabilities.name == dialect and engine.capabilities.claim == "up_to_ties"
        for done in (plain, drafted):
            assert (done.error, done.finish_reason, done.retries) == (None, "length", 0)
            assert done.token_ids == truth() and done.text == spell(truth())
            assert sum(chunk.num_tokens for chunk in done.chunks) == COUNT and done.num_prompt_tokens == len(PROMPT)
            times = [chunk.at_ms for chunk in done.chunks]
            assert times == sorted(times) and times[0] > 0
        assert plain.speculation is None
        # TGI sends each token by itself, whatever it accepted
        assert [chunk.num_tokens for chunk in drafted.chunks] == ([1] * 10 if dialect == "tgi" else [3, 3, 3, 1])


@pytest.mark.parametrize("dialect", WITH_IDS)
def test_log_probabilities_are_the_tables_with_the_likeliest_first(dialect: str) -> None:
    with both(dialect) as (engine, _, _):
        done = one(engine, GREEDY.model_copy(update={"logprobs": 3}))
        assert done.logprobs is not None and done.top_logprobs is not None
        sequence = list(PROMPT)
        for token_id, own, top in zip(done.token_ids, done.logprobs, done.top_logprobs, strict=True):
            law = Table(0).logprobs(sequence)
            assert own == pytest.approx(law[token_id])
            assert list(top) == [int(index) for index in (-law).argsort()[:3]]
            assert list(top.values()) == pytest.approx([law[index] for index in top])
            sequence.append(token_id)
        assert one(engine).logprobs is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_seed_is_heeded(dialect: str) -> None:
    with both(dialect) as (engine, _, _):
        params = [SamplingParams(max_tokens=COUNT, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
        first, again, other = engine.generate([PROMPT] * 3, params)
        assert first.token_ids == again.token_ids != other.token_ids


def test_a_server_with_a_seed_of_its_own_is_shown_as_it_is() -> None:
    with both("vllm", fixed_seed=3) as (engine, plain, _):
        params = [SamplingParams(max_tokens=COUNT, temperature=1.0, seed=seed) for seed in (1, 2)]
        assert len({item.token_ids for item in engine.generate([PROMPT] * 2, params, speculate=False)}) == 1
        assert {request["seed"] for request in plain.requests[-2:]} == {1, 2}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_end_token_is_an_end(dialect: str) -> None:
    with both(dialect, eos_after=6) as (engine, _, _):
        done = one(engine)
        assert (done.error, done.finish_reason) == (None, "stop")
        # a text does not show it
        assert done.token_ids == (truth()[:6] if dialect == "openai" else (*truth()[:6], EOS))
        assert done.text == spell(truth()[:6])


def test_what_is_neutral_is_said_too_since_servers_have_other_defaults() -> None:
    with both("vllm") as (engine, plain, _):
        one(engine, speculate=False)
        assert plain.requests[-1] == {
            "model": "toy", "prompt": PROMPT, "max_tokens": COUNT, "temperature": 0.0, "top_k": 0, "top_p": 1.0,
            "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 0,
            "ignore_eos": False, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }  # fmt: skip


def test_what_a_server_calls_by_another_name_or_takes_in_another_way_is_translated() -> None:
    sampled = SamplingParams(max_tokens=3, temperature=0.5, top_k=0, top_p=1.0, seed=4, stop=("x",), json_schema={})
    with both("sglang") as (engine, plain, _):
        one(engine, sampled, speculate=False)
        inner = plain.requests[-1]["sampling_params"]
        assert plain.requests[-1]["input_ids"] == PROMPT
        assert (inner["max_new_tokens"], inner["top_k"], inner["sampling_seed"]) == (3, -1, 4)
        assert (inner["stop"], inner["json_schema"]) == (["x"], "{}")
    with both("tgi") as (engine, plain, _):
        one(engine, sampled, speculate=False)
        inner = plain.requests[-1]["parameters"]
        assert plain.requests[-1]["inputs"] == "w05 w09 w07"
        assert (inner["do_sample"], inner["temperature"], inner["seed"]) == (True, 0.5, 5)
        # neither 0 nor 1 is taken
        assert not {"top_k", "top_p"} & inner.keys()
        one(engine, speculate=False)
        assert plain.requests[-1]["parameters"]["do_sample"] is False
    with both("llamacpp") as (engine, plain, _):
        one(engine, sampled, speculate=False)
        assert plain.requests[-1]["n_predict"] == 3 and plain.requests[-1]["cache_prompt"] is False
        assert plain.requests[-1]["samplers"].index("temperature") < plain.requests[-1]["samplers"].index("top_p")


@pytest.mark.parametrize(
    ("dialect", "asked", "named"),
    [
        ("tgi", {"min_p": 0.1}, "min_p cannot be honoured by engine 'tgi'"),
        ("sglang", {"allowed_token_ids": (4, 5)}, "allowed_token_ids cannot"),
        ("llamacpp", {"min_tokens": 3}, "min_tokens cannot"),
        ("llamacpp", {"seed": 2**40}, "takes seeds below 4294967295"),
        ("openai", {"logprobs": 2}, "logprobs cannot"),
        ("vllm", {"n": 2}, "n cannot"),
        ("vllm", {"logprobs": 2, "logprobs_mode": "processed"}, "logprobs_mode cannot"),
    ],
)
def test_what_a_server_would_ignore_is_refused_before_anything_is_sent(
    dialect: str, asked: dict[str, Any], named: str
) -> None:
    with both(dialect) as (engine, plain, _):
        sent = len(plain.requests)
        with pytest.raises(InputError, match=named):
            one(engine, GREEDY.model_copy(update=asked), speculate=False)
        assert len(plain.requests) == sent


def test_the_context_limit_is_the_servers_and_cuts_what_is_asked_for() -> None:
    with both("vllm", engine={"max_len": 4096}) as (engine, _, _):
        assert engine.capabilities.max_len == MAX_LEN
        prompt = [5] * (MAX_LEN - 4)
        assert len(engine.generate([prompt], GREEDY, speculate=False)[0].token_ids) == 4
        with pytest.raises(PromptError, match="context limit is 256"):
            engine.encode([5] * MAX_LEN)


def test_several_requests_run_at_once_and_come_back_in_order() -> None:
    with both("vllm", gap_s=0.01) as (engine, _, _):
        prompts = [[5, place] for place in range(2, 12)]
        seen: list[int] = []
        done = engine.generate(prompts, GREEDY, speculate=False, on_completion=lambda index, item: seen.append(index))
        assert [item.token_ids for item in done] == [truth(COUNT, prompt) for prompt in prompts]
        assert sorted(seen) == list(range(10))
        assert engine.sibling(max_batch=2, max_len=64).capabilities.max_batch == 2


# --- counting tokens and time


def test_a_chunk_of_three_tokens_is_three_tokens_and_one_gap() -> None:
    with both("vllm", chunk=3) as (engine, _, _):
        done = one(engine, speculate=False)
        assert [chunk.num_tokens for chunk in done.chunks] == [3, 3, 3, 1]


@pytest.mark.parametrize("token_ids", [True, False], ids=["ids", "text"])
def test_a_role_is_no_token_a_comment_is_nothing_and_reasoning_is_output(token_ids: bool) -> None:
    with both("vllm", role_chunk=True, keep_alive=True, reasoning=True, token_ids=token_ids) as (engine, _, _):
        done = one(engine, speculate=False)
        assert done.error is None and done.token_ids == truth() and len(done.chunks) == COUNT
        assert done.text == spell(truth())


def test_a_server_that_does_not_count_is_believed_by_its_ids() -> None:
    for dialect in DIALECTS:
        with both(dialect, usage=False) as (engine, _, _):
            done = one(engine)
            assert (done.error, done.token_ids) == (None, truth())


def test_ids_that_are_not_reported_are_those_of_the_text() -> None:
    with both("vllm", token_ids=False) as (engine, _, _):
        assert engine.capabilities.details["token_ids"].startswith("of the text")
        done = one(engine)
        assert done.token_ids == truth() and [chunk.num_tokens for chunk in done.chunks] == [3, 3, 3, 1]


# --- faults


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "disconnect": ({"break_after": 5}, "the connection broke"),
    "end without a reason": ({"ends_early": True}, "without a finish reason"),
    "malformed event": ({"malformed_after": 5}, "malformed event"),
    "error event": ({"error_after": 5}, "the server reported an error: out of memory"),
    "abort": ({"strange_end": "abort"}, "finish reason 'abort'"),
    "one token too many counted": ({"usage_off_by": 1}, "the server counted 11 generated tokens"),
    "one token too few counted": ({"usage_off_by": -1}, "the server counted 9 generated tokens"),
    "another tokenizer": ({"prompt_off_by": 1}, "the server counted 4 prompt tokens and our tokenizer 3"),
    "500": ({"statuses": [500]}, "HTTP 500: not now"),
    "400": ({"statuses": [400]}, "HTTP 400: not now"),
}


@pytest.mark.parametrize(
    "behaviour", [{"stall_after": 5}, {"stall_after": 0}, {"chatter_after": 5}, {"chatter_after": 0}]
)
def test_silence_and_comments_without_end_are_an_error_at_the_timeout(behaviour: dict[str, int]) -> None:
    with both("vllm", engine=IMPATIENT) as (engine, plain, _):
        for key, value in behaviour.items():
            setattr(plain.behaviour, key, value)
        began = time.monotonic()
        done = one(engine, speculate=False)
        assert time.monotonic() - began < TIMEOUT_S + SLACK_S
        assert done.finish_reason == "error" and "not over within 1 s (timeout_s)" in str(done.error)
        assert done.token_ids == truth()[: max(behaviour.values())] and done.retries == 0


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_clear_error_in_time_and_the_next_request_is_well(name: str, dialect: str) -> None:
    behaviour, expected = FAULTS[name]
    with both(dialect) as (engine, plain, _):
        for key, value in behaviour.items():
            setattr(plain.behaviour, key, list(value) if isinstance(value, list) else value)
        sent, began = len(plain.requests), time.monotonic()
        done = one(engine, speculate=False)
        assert time.monotonic() - began < PATIENT_S
        assert done.finish_reason == "error" and done.error is not None and "\n" not in done.error
        assert len(plain.requests) == sent + 1 and done.retries == 0
        assert expected in done.error
        assert done.token_ids[:COUNT] == truth()[: len(done.token_ids)]
        for key in behaviour:
            setattr(plain.behaviour, key, getattr(Behaviour(), key))
        assert one(engine, speculate=False).error is None


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [{"text": "a", "token_ids": ["4"]}]},
        {"choices": [{"text": 4, "token_ids": [4]}]},
        {
            "choices": [
                {"text": "a", "token_ids": [4], "logprobs": {"token_logprobs": [-1.0], "top_logprobs": [{"a": 1}]}}
            ]
        },
        {
            "choices": [
                {"text": "a", "token_ids": [4], "logprobs": {"token_logprobs": [-1.0], "top_logprobs": [{}, {}]}}
            ]
        },
        [1],
    ],
)
def test_an_event_of_another_shape_is_malformed(event: Any) -> None:
    answer = Answer(VLLM, lambda text: [], reports_token_ids=True, num_prompt_tokens=1, num_logprobs=1)
    with pytest.raises(WireError, match="malformed event: "):
        answer.feed(json.dumps(event), 1.0)


def withheld(ids: list[int], tokenizer: Any, block: int) -> Iterator[dict[str, Any]]:
    """llama.cpp's events: none while the text ends inside a character, and a count that runs ahead by a block."""
    shown = ""
    for place, token_id in enumerate(ids):
        text = tokenizer.decode(ids[: place + 1])
        if not text.endswith("\ufffd"):
            counted = min(len(ids), -(-(place + 1) // block) * block)
            yield {"content": text.removeprefix(shown), "tokens": [token_id], "tokens_predicted": counted}
            shown = text
    yield {"content": "", "tokens": [], "stop_type": "limit", "tokens_predicted": len(ids), "tokens_evaluated": 1}


@pytest.mark.parametrize("block", [1, 2, 3, 7])
def test_ids_that_a_server_withholds_inside_a_character_are_those_of_the_text(block: int) -> None:
    tokenizer = byte_level()
    ids = tokenizer("the \U0001f602\u4f60 red")["input_ids"]
    answer = Answer(LLAMACPP, lambda text: tokenizer(text)["input_ids"], reports_token_ids=True, num_prompt_tokens=1)
    events = list(withheld(ids, tokenizer, block))
    for at, event in enumerate(events):
        answer.feed(json.dumps(event), float(at))
    done = answer.completion()
    assert len(events) < len(ids) and done.token_ids == tuple(ids) and done.text == tokenizer.decode(ids)
    assert max(chunk.num_tokens for chunk in done.chunks) > 1


def test_an_id_that_no_text_shows_stays_an_error() -> None:
    tokenizer = byte_level()
    first, second = tokenizer(" the red")["input_ids"]
    answer = Answer(LLAMACPP, lambda text: tokenizer(text)["input_ids"], reports_token_ids=True, num_prompt_tokens=1)
    answer.feed(json.dumps({"content": " the", "tokens": [first], "tokens_predicted": 1}), 1.0)
    answer.feed(json.dumps({"content": " red", "tokens": [second], "tokens_predicted": 3, "stop_type": "limit"}), 2.0)
    with pytest.raises(WireError, match="counted 3 generated tokens and 2 came as token ids"):
        answer.completion()


def test_tokens_that_came_before_a_fault_are_kept_and_counted() -> None:
    with both("vllm") as (engine, plain, _):
        plain.behaviour.break_after = 5
        done = one(engine, speculate=False)
        assert done.token_ids == truth()[:5] and done.error is not None and done.error.endswith("after 5 tokens")


def test_a_busy_server_is_asked_again_and_that_is_counted() -> None:
    with both("vllm") as (engine, plain, _):
        plain.behaviour.statuses, plain.behaviour.retry_after = [429, 503], "0"
        done = one(engine, speculate=False)
        assert (done.error, done.token_ids, done.retries) == (None, truth(), 2)


def test_a_server_that_stays_busy_is_given_up() -> None:
    with both("vllm") as (engine, plain, _):
        plain.behaviour.statuses, plain.behaviour.retry_after = [429] * 9, "0"
        done = one(engine, speculate=False)
        assert done.retries == 3 and done.error == "HTTP 429: not now, also after 3 retries"


def test_a_wait_that_a_server_asks_for_ends_with_the_request() -> None:
    with both("vllm", engine=IMPATIENT) as (engine, plain, _):
        plain.behaviour.statuses, plain.behaviour.retry_after = [503], "3600"
        began = time.monotonic()
        assert "not over within 1 s" in str(one(engine, speculate=False).error)
        assert time.monotonic() - began < TIMEOUT_S + SLACK_S


def test_a_server_that_has_gone_is_asked_again_and_given_up() -> None:
    with both("vllm") as (engine, plain, _):
        plain.close()
        done = one(engine, speculate=False)
        assert done.retries == 3 and done.error is not None and "cannot connect" in done.error


def test_all_requests_together_have_a_deadline() -> None:
    with both("vllm", engine={"timeout_s": 30.0, "deadline_s": 0.5, "max_batch": 1}) as (engine, plain, _):
        plain.behaviour.stall_after = 5
        began = time.monotonic()
        done = engine.generate([PROMPT] * 3, GREEDY, speculate=False)
        assert time.monotonic() - began < 0.5 + SLACK_S
        assert all("not over within 0.5 s, the deadline of all requests together" in str(item.error) for item in done)
        assert [len(item.token_ids) for item in done] == [5, 0, 0]


def test_one_fault_leaves_the_other_requests_alone() -> None:
    with both("vllm") as (engine, plain, _):
        plain.behaviour.statuses = [200, 500, 200]
        done = engine.generate([PROMPT] * 4, GREEDY, speculate=False)
        assert sorted(item.error is None for item in done) == [False, True, True, True]


def test_what_a_caller_raises_comes_through_and_the_rest_is_cancelled() -> None:
    class Enough(Exception):
        pass

    def stop(index: int, done: Completion) -> None:
        raise Enough

    with both("vllm", gap_s=0.01) as (engine, _, _):
        with pytest.raises(Enough):
            engine.generate([PROMPT] * 4, GREEDY, speculate=False, on_completion=stop)
        assert one(engine, speculate=False).error is None


# --- which servers


def test_an_address_where_nothing_is() -> None:
    with pytest.raises(ServerError, match=r"does not answer: .*; start the server first"):
        connect(f"http://127.0.0.1:{free_port()}")


def test_a_first_request_that_fails_is_told_at_once() -> None:
    with serving(statuses=[500] * 9) as plain, pytest.raises(ServerError, match="first request of 4 tokens: HTTP 500"):
        connect(plain, plain)


@pytest.mark.parametrize(("name", "value"), [("version", "9.9.9"), ("model", "other"), ("dialect", "sglang")])
def test_servers_that_differ_in_more_than_speculation_are_refused(name: str, value: str) -> None:
    with serving() as plain, serving(speculates=True, **{name: value}) as other:
        with pytest.raises(ServerError, match="the servers differ in"):
            connect(plain, other)


def test_one_server_for_both_arms_needs_a_switch() -> None:
    with serving(speculates=True, per_request=False) as server:
        with pytest.raises(ServerError, match="cannot turn speculation off for one request; give speculative_base_url"):
            connect(server)
        # the same one, however its address is written
        with pytest.raises(ServerError, match="one vllm server was given for both arms"):
            connect(server, f"{server.url}/v1/")
    with serving(dialect="llamacpp", speculates=True) as server:
        engine = connect(server)
        plain, drafted = (one(engine, speculate=speculate) for speculate in (False, True))
        assert plain.token_ids == drafted.token_ids and drafted.speculation is not None
        assert server.requests[-2]["speculative.n_max"] == 0 and "speculative.n_max" not in server.requests[-1]
        # one that drafts all the same is found out
        server.behaviour.heeds_switch = False
        assert "the target-only arm drafted 16 tokens" in str(one(engine, speculate=False).error)
        engine.close()


def test_a_root_with_v1_is_the_same_root() -> None:
    with serving() as plain, serving() as other:
        engine = connect(f"{plain.url}/v1/", other)
        assert one(engine, speculate=False).error is None
        engine.close()


def test_a_named_dialect_is_not_asked_for() -> None:
    with both("vllm", engine={"server": "openai"}) as (engine, plain, _):
        assert engine.capabilities.name == "openai" and plain.requests[-1]["prompt"] == "<unk> <unk> <unk> <unk>"


def test_capabilities_say_what_is_not_reported() -> None:
    with both("openai", metrics=False) as (engine, _, _):
        able = engine.capabilities
        assert able.num_speculative_tokens is None and able.details["target_only"]["version"] is None
        assert not (able.score or able.score_passes or able.score_top or able.reports_rounds or able.allowed_token_ids)
        assert set(engine.memory().values()) == {None} and one(engine).speculation is None
        with pytest.raises(InputError, match="gives no raw logits"):
            engine.score(PROMPT, [[5]])
        with pytest.raises(InputError, match="does not score prompts"):
            engine.score_top(PROMPT, [5], 2)
        with pytest.raises(InputError, match="cannot be replaced"):
            engine.sibling(max_batch=1, max_len=8, accept=lambda *parts: None)  # type: ignore[arg-type, return-value]


def test_from_inside_a_running_loop_it_says_so() -> None:
    async def ask(engine: HttpEngine) -> None:
        one(engine)

    with both() as (engine, _, _), pytest.raises(InputError, match="inside a running event loop"):
        asyncio.run(ask(engine))


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_continuation_is_scored_by_the_target_only_server(dialect: str) -> None:
    with both(dialect) as (engine, _, other):
        assert engine.capabilities.score_top
        sent = len(other.requests)
        tokens = [7, 7, 30]
        found = engine.score_top(PROMPT, tokens, 2)
        assert len(other.requests) == sent
        for place, (own, top) in enumerate(found):
            law = Table(0).logprobs([*PROMPT, *tokens[:place]])
            assert own == pytest.approx(law[tokens[place]])
            assert list(top) == [int(index) for index in (-law).argsort()[:2]]


# --- what a server counts for itself


def test_counts_of_a_request_are_taken_where_it_has_them() -> None:
    with both("vllm") as (engine, _, _):
        counts = one(engine).speculation
        assert counts is not None and counts.num_requests == 1 and counts.num_spec_tokens == 4
        assert (counts.num_spec_steps, counts.num_draft_tokens, counts.num_accepted_draft_tokens) == (4, 16, 6)
        assert counts.draft_acceptance_rate == 6 / 16 and counts.mean_acceptance_length == 1 + 6 / 4
    with both("llamacpp") as (engine, _, _):
        counts = one(engine).speculation
        # rounds are not reported, and so neither is a length
        assert counts is not None and counts.num_spec_steps is None and counts.mean_acceptance_length is None
        assert counts.draft_acceptance_rate == 6 / 16


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp", "tgi"])
def test_else_the_servers_counters_are_read_before_and_after(dialect: str) -> None:
    with both(dialect, drafting={"per_request": False}) as (engine, _, _):
        for requests in (1, 3):
            done = engine.generate([PROMPT] * requests, GREEDY)
            assert {item.speculation for item in done} == {done[0].speculation}
            counts = done[0].speculation
            assert counts is not None and counts.num_requests == requests
            assert counts.num_accepted_draft_tokens == 6 * requests
            # a count that the server lacks is no zero
            assert counts.num_draft_tokens == (None if dialect == "tgi" else 16 * requests)


def test_a_counter_that_appears_with_its_first_count_is_read_too() -> None:
    with both("tgi", late_counters=True) as (engine, _, _):
        assert engine.capabilities.details["speculation_counters"]
        drafted = one(engine)
        assert drafted.speculation is not None and drafted.speculation.num_accepted_draft_tokens


def test_counters_of_a_server_that_serves_others_too_are_not_taken() -> None:
    with both("vllm", drafting={"per_request": False}) as (engine, _, other):
        other.counts["running"] += 1
        assert one(engine).speculation is None
        other.counts["running"] -= 1
        assert one(engine).speculation is not None


def page(finished: int, accepted: int, running: int = 0) -> Counts:
    return Counts.read(
        f'vllm:request_success_total{{a="b"}} {finished}\nvllm:spec_decode_num_accepted_tokens_total {accepted}\n'
        f"vllm:num_requests_running {running}.0\n# a comment\nbroken line\n"
    )


def test_a_request_of_somebody_else_between_two_readings_spoils_them() -> None:
    counted = between(VLLM, page(3, 10), page(5, 17), 2)
    assert counted is not None and counted.num_accepted_draft_tokens == 7 and counted.num_draft_tokens is None
    assert between(VLLM, page(3, 10), page(6, 17), 2) is None
    assert between(VLLM, page(3, 10), page(5, 17, running=1), 2) is None
    # a server that was started again counts from 0
    assert between(VLLM, page(3, 10), page(5, 4), 2) is None


def test_reading_counters_takes_no_time_on_the_engines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    with both("vllm", drafting={"per_request": False}) as (engine, _, _):
        real = HttpEngine._read_counts
        monkeypatch.setattr(HttpEngine, "_read_counts", lambda *parts: (time.sleep(0.5), real(*parts))[1])
        began, clock = time.perf_counter(), engine.now_ms()
        one(engine)
        real_ms, seen_ms = (time.perf_counter() - began) * 1e3, engine.now_ms() - clock
        assert real_ms - seen_ms >= 2 * 500
