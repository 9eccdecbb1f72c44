"""What a real vLLM said, played again: requests are asked as they were recorded, and each field is read where it stands."""

from collections.abc import Iterator

import pytest

from draftproof.engines.http.counters import Counts, between
from draftproof.engines.http.dialects import VLLM
from draftproof.engines.launch import Attached
from draftproof.engines.openai_http import HttpEngine
from support.recorded import COUNT, PROMPT, TARGET, Replay, ask, params

pytestmark = pytest.mark.real_model  # for its tokenizer


@pytest.fixture(scope="module")
def engine() -> Iterator[HttpEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftproof.engines.openai_http.Client", Replay)
        made = HttpEngine.connect(Attached("http://target-only", "http://speculative"), target=TARGET)
        yield made
        made.close()


def test_the_server_is_recognised_by_its_owner_and_tells_version_model_and_limit(engine: HttpEngine) -> None:
    facts = {"server": "vllm", "version": "0.32.0", "model": TARGET, "max_len": 1024}
    details = engine.capabilities.details
    assert details["target_only"] == details["speculative"] == facts
    assert details["token_ids"] == "reported" and details["speculation_counters"]
    assert engine.capabilities.score_top and engine.capabilities.logprobs and engine.capabilities.allowed_token_ids


def test_both_arms_give_the_same_tokens_and_only_one_drafts(engine: HttpEngine) -> None:
    plain, drafted = (ask(engine, "greedy", speculate=speculate) for speculate in (False, True))
    assert plain.token_ids == drafted.token_ids and plain.text == drafted.text == engine.tokenizer.decode(
        plain.token_ids
    )
    assert (plain.error, plain.finish_reason, len(plain.token_ids)) == (None, "length", COUNT)
    assert [chunk.num_tokens for chunk in plain.chunks] == [1] * COUNT and plain.speculation is None
    counts = drafted.speculation
    assert counts is not None and counts.num_spec_steps and counts.num_draft_tokens and counts.num_spec_tokens == 5
    # a chunk is a pass: its tokens but one were drafted, and the last pass may have been cut
    sizes = [chunk.num_tokens for chunk in drafted.chunks]
    assert max(sizes) > 1 and sum(sizes) == COUNT
    assert counts.num_accepted_draft_tokens is not None
    assert counts.num_accepted_draft_tokens >= sum(size - 1 for size in sizes)
    assert sum(counts.acceptance_histogram) == counts.num_spec_steps


def test_log_probabilities_name_tokens_by_their_ids_and_agree_with_those_of_the_prompt(engine: HttpEngine) -> None:
    done = ask(engine, "log-probabilities", speculate=False)
    assert done.top_logprobs is not None and done.logprobs is not None
    for token, own, top in zip(done.token_ids, done.logprobs, done.top_logprobs, strict=True):
        assert len(top) == 3 and next(iter(top)) == token and top[token] == own == max(top.values()) < 0
    scored = engine.score_top(engine.encode(PROMPT), ask(engine, "greedy", speculate=False).token_ids[:4], 3)
    for own, (said, top) in zip(done.logprobs, scored, strict=True):
        # one pass of the whole rounds otherwise than a step
        assert said == pytest.approx(own, abs=0.25) and len(top) == 3 and max(top.values()) >= said


def test_allowed_tokens_are_obeyed_and_theirs_are_the_log_probabilities(engine: HttpEngine) -> None:
    allowed = params(engine)["allowed"].allowed_token_ids
    assert allowed is not None
    for speculate in (False, True):
        done = ask(engine, "allowed", speculate=speculate)
        assert done.error is None and set(done.token_ids) <= set(allowed) and len(done.token_ids) == 6
        assert done.top_logprobs is not None
        # the other arm reports the likeliest of all, whether allowed or not
        assert speculate or all(set(top) == set(allowed) for top in done.top_logprobs)


def test_a_stop_text_and_a_pattern_end_a_request(engine: HttpEngine) -> None:
    for speculate in (False, True):
        stopped, constrained = (ask(engine, name, speculate=speculate) for name in ("stop", "regex"))
        assert stopped.error is None and stopped.finish_reason == "stop" and " blue" not in stopped.text
        assert constrained.error is None and constrained.text.isdecimal() and len(constrained.text) == 3


def test_what_a_server_refuses_with_speculation_is_an_error_that_says_so(engine: HttpEngine) -> None:
    assert ask(engine, "bias", speculate=False).error is None
    refused = ask(engine, "bias", speculate=True)
    assert refused.error is not None and "not yet supported with speculative decoding" in refused.error


def test_counters_are_where_they_are_looked_for() -> None:
    pages = Replay.said["http://speculative/metrics"]
    before, after = Counts.read(pages[0]), Counts.read(pages[-1])
    assert set(VLLM.counters.values()) | {VLLM.finished, VLLM.running} <= before.values.keys()
    num_requests = round(after.values[VLLM.finished] - before.values[VLLM.finished])
    counted = between(VLLM, before, after, num_requests)
    assert counted is not None and counted.num_draft_tokens and counted.num_requests == num_requests > 1
    assert not any(Counts.read(page).has(VLLM) for page in Replay.said["http://target-only/metrics"])
