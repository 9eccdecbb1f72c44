"""The arms run one after the other on the same prompts, and what has finished is stored."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from draftproof.engines.base import OnCompletion
from draftproof.engines.scripted import Script, ScriptedEngine
from draftproof.measure.alternate import alternate
from draftproof.measure.noise import summarise_noise
from draftproof.measure.run import as_chat, interleave
from draftproof.proposers import PromptLookup
from draftproof.records import Completion
from draftproof.request import Prompt, SamplingParams
from draftproof.workload.prompts import WorkloadPrompt
from support.scripted import COLOURS, SCRIPT, Restricted

PARAMS = SamplingParams(max_tokens=9, temperature=0.0)
PROMPTS = tuple(
    WorkloadPrompt(id=f"p{number}", category=f"c{number % 2}", text=" ".join([*COLOURS, *COLOURS[: number + 1]]))
    for number in range(5)
)
Event = tuple[Any, ...]


class Traced(Restricted):
    """Writes down each call, with the ids of its prompts and whether it may speculate, and what it gave."""

    def __init__(self, events: list[Event], fail_at: int | None = None, **script: Any) -> None:
        super().__init__(
            ScriptedEngine(
                Script(**{**SCRIPT, **script}), proposer=PromptLookup(1, 1), num_speculative_tokens=3, max_batch=5
            )
        )
        self.events, self.fail_at = events, fail_at
        self.given: list[Completion] = []

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        speculate: bool = True,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        assert params == PARAMS
        texts = {json.dumps(as_chat(prompt)): prompt.id for prompt in PROMPTS}
        self.events.append(("run", [texts[json.dumps(prompt)] for prompt in prompts], speculate))
        if sum(event[0] == "run" for event in self.events) == self.fail_at:
            raise KeyboardInterrupt
        done = super().generate(prompts, params, speculate=speculate, on_completion=on_completion)
        self.given.extend(done)
        return done


def measure(
    engine: Traced,
    *,
    concurrency: int = 1,
    repeat: int = 0,
    skip: set[tuple[str, int, int]] | None = None,
    run: Callable[..., None] = interleave,
) -> list[dict[str, Any]]:
    saved: list[dict[str, Any]] = []

    def save(record: dict[str, Any]) -> None:
        saved.append(record)
        engine.events.append(("save", record["prompt_id"], record["block"]))

    run(
        engine,
        PROMPTS,
        PARAMS,
        concurrency=concurrency,
        repeat=repeat,
        skip=skip or set(),
        save=save,
        advance=lambda count: engine.events.append(("advance", count)),
    )
    return saved


def blocks(ids: Sequence[str], kept: Sequence[str] | None = None) -> list[Event]:
    """What one group looks like from outside: three runs, each followed by its records, then a step."""
    events: list[Event] = []
    for block, speculate in (("A1", False), ("B", True), ("A2", False)):
        events.append(("run", list(ids), speculate))
        events += [("save", name, block) for name in (ids if kept is None else kept)]
    return [*events, ("advance", len(ids))]


def test_one_at_a_time_each_prompt_runs_target_only_speculative_target_only() -> None:
    events: list[Event] = []
    measure(Traced(events))
    assert events == [event for number in range(5) for event in blocks([f"p{number}"])]


def test_groups_are_of_the_concurrency_and_the_last_one_is_what_is_left() -> None:
    events: list[Event] = []
    measure(Traced(events), concurrency=3)
    assert events == [*blocks(["p0", "p1", "p2"]), *blocks(["p3", "p4"])]


def test_what_is_stored_is_skipped_and_still_counted_as_progress() -> None:
    events: list[Event] = []
    measure(Traced(events), skip={("p0", 0, 1), ("p3", 0, 1)})
    assert events == [
        ("advance", 1), *blocks(["p1"]), *blocks(["p2"]), ("advance", 1), *blocks(["p4"]),
    ]  # fmt: skip


def test_a_group_of_which_a_part_is_stored_runs_whole_and_only_the_rest_is_saved() -> None:
    events: list[Event] = []
    measure(Traced(events), concurrency=3, skip={("p1", 0, 3), ("p3", 0, 3), ("p4", 0, 3)})
    assert events == [*blocks(["p0", "p1", "p2"], kept=["p0", "p2"]), ("advance", 2)]


def test_only_the_same_repeat_and_concurrency_count_as_stored() -> None:
    events: list[Event] = []
    other = {(prompt.id, repeat, level) for prompt in PROMPTS for repeat, level in ((0, 2), (1, 1), (1, 3))}
    measure(Traced(events), concurrency=2, repeat=1, skip=other)
    assert events == [*blocks(["p0", "p1"]), *blocks(["p2", "p3"]), *blocks(["p4"])]


@pytest.mark.parametrize("fail_at", [4, 5, 6], ids=["A1", "B", "A2"])
def test_what_a_group_that_was_cut_short_has_finished_is_saved(fail_at: int) -> None:
    events: list[Event] = []
    with pytest.raises(KeyboardInterrupt):
        measure(Traced(events, fail_at), concurrency=2)
    first, second = blocks(["p0", "p1"]), blocks(["p2", "p3"])
    assert events == [*first, *second[: 3 * (fail_at - 4) + 1]]


PAIRS = (["p0", "p1"], ["p2", "p3"], ["p4"])


def turns(kept: Sequence[str]) -> list[Event]:
    """What arms that take turns look like: each runs all prompts, two at a time, before the next."""
    events: list[Event] = []
    for block, speculate in (("A1", False), ("B", True), ("A2", False)):
        for ids in PAIRS:
            events.append(("run", ids, speculate))
            events += [("save", name, block) for name in ids if name in kept]
            events += [("advance", len(ids))] if block == "A2" else []
    return events


def test_arms_that_take_turns_run_every_prompt_before_the_next_and_store_as_they_go() -> None:
    events: list[Event] = []
    saved = measure(Traced(events), concurrency=2, run=alternate)
    assert events == turns([prompt.id for prompt in PROMPTS])
    noise = summarise_noise(saved, 2)
    assert noise is not None and noise.blocks == 9


def test_arms_that_take_turns_store_what_is_not_there_and_run_nothing_where_all_is() -> None:
    events: list[Event] = []
    measure(Traced(events), concurrency=2, run=alternate, skip={(f"p{number}", 0, 2) for number in (0, 3)})
    assert events == turns(["p1", "p2", "p4"])
    events.clear()
    measure(Traced(events), concurrency=2, run=alternate, skip={(prompt.id, 0, 2) for prompt in PROMPTS})
    assert events == [("advance", 5)]


def test_what_arms_that_take_turns_had_finished_is_stored_when_they_are_cut_short() -> None:
    events: list[Event] = []
    with pytest.raises(KeyboardInterrupt):
        measure(Traced(events, fail_at=8), concurrency=2, run=alternate)
    whole = turns([prompt.id for prompt in PROMPTS])
    last = whole.index(("advance", 2))
    assert events == whole[: last + 2]
    assert [event[1:] for event in events if event[0] == "save"][-2:] == [("p0", "A2"), ("p1", "A2")]


def test_a_record_holds_what_the_completion_held_as_json() -> None:
    engine = Traced([])
    records = measure(engine, concurrency=2, repeat=4)
    order = [
        (prompt, block)
        for group in (PROMPTS[:2], PROMPTS[2:4], PROMPTS[4:])
        for block in ("A1", "B", "A2")
        for prompt in group
    ]
    assert len(records) == len(engine.given) == 15
    for record, completion, (prompt, block) in zip(records, engine.given, order, strict=True):
        assert record.pop("busy_seconds") > 0
        assert {"other_cpu_cores", "steal_share", "load_average"} <= record.pop("noise").keys()
        assert record == {
            "max_tokens": 9,
            "group": PROMPTS.index(prompt) // 2,
            "arrived_ms": None,
            "idle_seconds": 0.0,
            "peak_bytes": None,
            "joules": None,
            "arm": "speculative" if block == "B" else "target_only",
            "block": block,
            "prompt_id": prompt.id,
            "category": prompt.category,
            "repeat": 4,
            "concurrency": 2,
            "num_prompt_tokens": len(engine.encode(as_chat(prompt))),
            "token_ids": list(completion.token_ids),
            "text": completion.text,
            "finish_reason": "length",
            "error": None,
            "latency_ms": completion.chunks[-1].at_ms,
            "chunks": [[chunk.num_tokens, chunk.at_ms] for chunk in completion.chunks],
            "rounds": [asdict(item) for item in completion.rounds],
            "pass_widths": [],
            # its rounds say more
            "speculation": None,
            "retries": 0,
        }
        assert json.loads(json.dumps(record)) == record
        assert len(record["token_ids"]) == sum(count for count, _ in record["chunks"]) == 9
        assert record["text"] and set(record["text"].split()) <= set(COLOURS)
        proposed = sum(item["num_proposed"] for item in record["rounds"])
        assert (proposed > 0) == (block == "B")


def test_an_error_is_recorded_with_its_request() -> None:
    records = measure(Traced([], defect="not-finite"), concurrency=5)
    wrong = [record for record in records if record["error"]]
    assert {record["block"] for record in wrong} == {"B"} and len(wrong) == 5
    assert all(
        record["finish_reason"] == "error" and record["latency_ms"] is None and record["token_ids"] == []
        for record in wrong
    )


@pytest.mark.parametrize(("run", "ran"), [(interleave, 2), (alternate, 4)])
def test_a_group_in_which_a_request_failed_is_the_last(run: Callable[..., None], ran: int) -> None:
    events: list[Event] = []
    records = measure(Traced(events, defect="not-finite"), concurrency=2, run=run)
    assert [event[0] for event in events].count("run") == ran
    assert [bool(record["error"]) for record in records[-3:]] == [False, True, True]


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_busy_seconds_are_those_of_the_engines_clock_shared_by_the_group(concurrency: int) -> None:
    engine = Traced([])
    began = engine.now_ms()
    records = measure(engine, concurrency=concurrency)
    assert sum(record["busy_seconds"] for record in records) == pytest.approx((engine.now_ms() - began) / 1e3)
    for start in range(0, 5, concurrency):
        names = [prompt.id for prompt in PROMPTS[start : start + concurrency]]
        for block in ("A1", "B", "A2"):
            shares = {r["busy_seconds"] for r in records if r["block"] == block and r["prompt_id"] in names}
            assert len(shares) == 1


def test_busy_seconds_are_prefill_and_passes() -> None:
    engine = Traced([], noise=0.0, prefill_ms=1.0, plain_ms=40.0, block_ms=50.0)
    for record in measure(engine):
        prefill = record["num_prompt_tokens"] - 1
        passes = [50.0 if item["num_proposed"] else 40.0 for item in record["rounds"]]
        assert record["busy_seconds"] == pytest.approx((prefill + sum(passes)) / 1e3)
        assert record["latency_ms"] == pytest.approx(prefill + sum(passes))
