"""Requests that arrive by themselves wait where the engine is busy, and their times count from the arrival."""

from typing import Any

import numpy as np
import pytest

from draftproof.engines.scripted import Script, ScriptedEngine
from draftproof.measure.arrival import Arrival, serve
from draftproof.measure.run import as_chat, interleave
from draftproof.proposers import PromptLookup
from draftproof.request import SamplingParams
from draftproof.workload.prompts import WorkloadPrompt
from support.scripted import COLOURS, SCRIPT

PARAMS = SamplingParams(max_tokens=5, temperature=0.0)
PROMPTS = [[{"role": "user", "content": " ".join([*COLOURS, *COLOURS[:number]])}] for number in range(4)]
# one prompt token is prefilled for 1 ms, a plain pass is 10 ms: a request of n words takes n - 1 + 50 ms alone
TIMES = {"noise": 0.0, "prefill_ms": 1.0, "plain_ms": 10.0, "block_ms": 12.0}


def make_engine(**changes: Any) -> ScriptedEngine:
    script = Script(**{**SCRIPT, **TIMES, **changes})
    return ScriptedEngine(script, proposer=PromptLookup(1, 1), num_speculative_tokens=2, max_batch=4)


def test_a_poisson_process_has_its_rate_and_is_the_same_when_asked_again() -> None:
    """False alarm: the mean of 4,000 exponential gaps is within 7 % but for about 1e-5."""
    arrival = Arrival(rate_per_s=20.0, seed=3)
    times = np.array(arrival.times_ms(0, 0, 4000))
    gaps = np.diff(times, prepend=0.0)
    assert (gaps > 0).all() and gaps.mean() == pytest.approx(50.0, rel=0.07)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)
    assert arrival.times_ms(0, 0, 10) == arrival.times_ms(0, 0, 10)
    others = (Arrival(rate_per_s=20.0, seed=4).times_ms(0, 0, 1), arrival.times_ms(1, 0, 1), arrival.times_ms(0, 1, 1))
    assert len({times[0], *(other[0] for other in others)}) == 4


def test_waiting_for_a_place_counts_from_the_arrival() -> None:
    """One at a time: the second request comes 10 ms after the first, which takes 54 ms."""
    engine = make_engine()
    (first, second), idle_ms = serve(engine, PROMPTS[:2], PARAMS, [100.0, 110.0], speculate=False, most=1)
    assert idle_ms == pytest.approx(100.0)
    assert first.latency_ms == pytest.approx(4 + 50) and first.chunks[0].at_ms == pytest.approx(4 + 10)
    assert second.latency_ms == pytest.approx(54 - 10 + 5 + 50)
    assert second.chunks[0].at_ms == pytest.approx(54 - 10 + 5 + 10)


def test_a_request_that_arrives_while_another_runs_joins_it() -> None:
    engine = make_engine()
    (first, second), idle_ms = serve(engine, PROMPTS[:2], PARAMS, [0.0, 20.0], speculate=False, most=2)
    assert idle_ms == 0.0
    # the second is read at 24 ms, between two rounds of the first
    assert first.latency_ms == pytest.approx(54 + 5) and second.latency_ms == pytest.approx(24 - 20 + 5 + 50)


def test_slow_arrivals_have_no_wait_and_the_tokens_are_those_of_a_closed_loop() -> None:
    engine = make_engine()
    alone = [engine.generate([prompt], PARAMS)[0] for prompt in PROMPTS]
    served, idle_ms = serve(engine, PROMPTS, PARAMS, [1e3, 2e3, 3e3, 4e3], speculate=True, most=4)
    assert [item.token_ids for item in served] == [item.token_ids for item in alone]
    assert [item.latency_ms for item in served] == pytest.approx([item.latency_ms for item in alone])
    assert idle_ms == pytest.approx(4e3 - sum(item.latency_ms or 0.0 for item in alone[:3]))


def test_what_runs_is_dropped_when_the_run_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        serve(engine, PROMPTS, PARAMS, [0.0, 0.0, 9e9, 9e9], speculate=True, most=4)
    assert engine.num_unfinished == 0
    monkeypatch.undo()
    assert len(engine.generate(PROMPTS, PARAMS)) == 4


def test_the_arms_take_turns_by_block_with_the_same_arrivals() -> None:
    prompts = [WorkloadPrompt(id=f"p{number}", category="c", text=" ".join(COLOURS)) for number in range(5)]
    saved: list[dict[str, Any]] = []
    arrival = Arrival(rate_per_s=15.0, seed=1, requests_per_block=3)
    interleave(
        make_engine(), prompts, PARAMS, concurrency=2, repeat=1, skip=set(), save=saved.append,
        advance=lambda count: None, arrival=arrival,
    )  # fmt: skip
    order = [
        (block, prompt.id) for group in (prompts[:3], prompts[3:]) for block in ("A1", "B", "A2") for prompt in group
    ]
    assert [(record["block"], record["prompt_id"]) for record in saved] == order
    assert [record["group"] for record in saved] == [0] * 9 + [1] * 6
    for group, count in ((0, 3), (1, 2)):
        for block in ("A1", "B", "A2"):
            mine = [record for record in saved if record["group"] == group and record["block"] == block]
            assert [record["arrived_ms"] for record in mine] == arrival.times_ms(1, group, count)
            # all of the block's time, and what of it nothing ran
            ended = max(record["arrived_ms"] + record["latency_ms"] for record in mine)
            assert sum(record["busy_seconds"] for record in mine) == pytest.approx(ended / 1e3)
            assert sum(record["idle_seconds"] for record in mine) >= mine[0]["arrived_ms"] / 1e3 * (1 - 1e-9)
    assert as_chat(prompts[0]) == [{"role": "user", "content": " ".join(COLOURS)}]
