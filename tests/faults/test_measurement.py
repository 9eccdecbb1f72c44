"""Faults of a comparison: what costs nothing must measure as nothing, and time decides, not acceptance."""

import copy
from typing import Any

import pytest

from draftproof import evidence as ev
from draftproof.engines.scripted import Script, ScriptedEngine
from draftproof.gate.decide import decide
from draftproof.gate.policy import Policy
from draftproof.measure.arms import summarise_arms
from draftproof.measure.compare import compare_arms, summarise_acceptance
from draftproof.measure.gauge import Gauge
from draftproof.measure.run import interleave
from draftproof.proposers import PromptLookup
from draftproof.request import SamplingParams
from draftproof.workload.prompts import WorkloadPrompt
from support.scripted import COLOURS, SCRIPT

PLAIN_MS = 40.0
PARTS = {"target_weights": 1000, "target_cache": 0, "draft_weights": 0, "draft_cache": 0}


def measured(engine: ScriptedEngine, texts: list[str], concurrency: int = 1) -> list[dict[str, Any]]:
    prompts = [WorkloadPrompt(id=f"p{number}", category="c", text=text) for number, text in enumerate(texts)]
    saved: list[dict[str, Any]] = []
    interleave(
        engine, prompts, SamplingParams(max_tokens=8, temperature=0.0), concurrency=concurrency, repeat=0, skip=set(),
        save=saved.append, advance=lambda count: None,
    )  # fmt: skip
    return saved


def make_engine(**script: Any) -> ScriptedEngine:
    return ScriptedEngine(
        Script(**{**SCRIPT, "noise": 0.0, "plain_ms": PLAIN_MS, **script}),
        proposer=PromptLookup(2, 2), num_speculative_tokens=3, max_batch=4,
    )  # fmt: skip


@pytest.mark.parametrize("concurrency", [1, 4])
def test_speculation_that_proposes_nothing_costs_nothing(concurrency: int) -> None:
    """B96, B110: text without repeats; the same passes, and on a clock without noise the same times to the last bit."""
    records = measured(
        make_engine(copying=0.0), [" ".join(f"w{n}{m}" for m in range(9)) for n in range(4)], concurrency
    )
    arms = {block: [r for r in records if r["block"] == block] for block in ("A1", "B", "A2")}
    assert not any(item["num_proposed"] for record in records for item in record["rounds"])
    assert [r["token_ids"] for r in arms["A1"]] == [r["token_ids"] for r in arms["B"]]
    assert [len(r["rounds"]) for r in arms["A1"]] == [len(r["rounds"]) for r in arms["B"]]
    # a block begins later on the clock, which moves the last bits of differences
    assert compare_arms(records, 0.95, None).overall.speedup.estimate == pytest.approx(1.0, rel=1e-9)


def drafted(name: str, accepted: int, propose_ms: float) -> list[dict[str, Any]]:
    """Twelve prompts of some 60 tokens, by a draft of four tokens of which so many are accepted and that takes so long."""
    records = []
    for number in range(12):
        tokens = 60 + number
        for block in ("A1", "B", "A2"):
            kept = accepted if block == "B" else 0
            round_ms = (propose_ms + 44.0) if block == "B" else PLAIN_MS
            chunks = [[kept + 1, (place + 1) * round_ms] for place in range(tokens // (kept + 1))]
            one = {"num_proposed": 4 if block == "B" else 0, "num_accepted": kept, "emitted": kept + 1}
            one |= {"next_token": "target", "propose_ms": propose_ms if block == "B" else 0.0, "score_ms": 44.0}
            records.append(
                {
                    "arm": "speculative" if block == "B" else "target_only", "block": block, "prompt_id": f"p{number}",
                    "category": name, "repeat": 0, "concurrency": 1, "chunks": chunks, "latency_ms": chunks[-1][1],
                    "token_ids": [1] * sum(count for count, _ in chunks), "busy_seconds": chunks[-1][1] / 1e3,
                    "rounds": [one] * len(chunks),
                }
            )  # fmt: skip
    return records


def judged(records: list[dict[str, Any]]) -> tuple[ev.Decision, ev.Arms]:
    arms = summarise_arms(records, PARTS, 4, Gauge(), {})
    comparison = compare_arms(records, 0.95, 1.0)
    return decide(arms=arms, equivalence=None, comparison=comparison, policy=Policy(require_sampled=False)), arms


def test_a_better_draft_that_is_too_slow_is_worse_than_a_worse_one_that_is_quick() -> None:
    """B99, B100, B102: what counts is time; the time split names the draft as what took it."""
    slow, quick = (
        judged(drafted("slow", accepted=3, propose_ms=200.0)),
        judged(drafted("quick", accepted=1, propose_ms=1.0)),
    )
    rates = [arms.speculative.acceptance.rate for _, arms in (slow, quick) if arms.speculative]
    assert rates == [0.75, 0.25]
    rows = [{row.name: row.consequence for row in decision.matrix}["speed-up"] for decision, _ in (slow, quick)]
    assert rows == ["KEEP_TARGET_ONLY", "ADOPT"]
    assert slow[1].speculative is not None
    split = slow[1].speculative.time_split_ms
    assert split["propose"] > 0.8 * sum(split.values())


def test_a_high_rate_of_few_drafted_tokens_shows_how_few() -> None:
    """B107: a cut-off so high that hardly anything is drafted accepts everything, and gains nothing."""
    plain = {"num_proposed": 0, "num_accepted": 0, "emitted": 1, "next_token": "target"}
    sure = {"num_proposed": 1, "num_accepted": 1, "emitted": 2, "next_token": "bonus"}
    found = summarise_acceptance([plain] * 98 + [sure] * 2, 5)
    assert (found.rate, found.accepted_per_round) == (1.0, 1.0)
    assert (found.proposed_per_round, found.emitted_per_round) == (0.02, 1.02)


def test_a_stream_of_three_tokens_a_chunk_has_the_times_of_its_tokens() -> None:
    """B117, B118, B119: an opening chunk without a token, then 10 chunks of 3 tokens, 30 ms apart; one stream stalls."""
    stream = [[0, 5.0], *([3, 100.0 + 30.0 * place] for place in range(10))]
    stalled = [*stream[:-1], [3, stream[-1][1] + 470.0]]
    records = [
        {
            "arm": "speculative", "block": "B", "prompt_id": f"p{number}", "category": "c", "repeat": 0, "concurrency": 1,
            "chunks": chunks, "latency_ms": chunks[-1][1], "token_ids": [1] * 30, "busy_seconds": 1.0, "rounds": [],
        }
        for number, chunks in enumerate([stream, stream, stalled])
    ]  # fmt: skip
    arms = summarise_arms(records[:2], PARTS, 4, Gauge(), {})
    assert arms.speculative is not None
    arm = arms.speculative
    assert arm.throughput.tokens == 60 and arm.ttft.mean == 100.0
    assert (arm.tpot.mean, arm.itl.mean, arm.icl.mean) == pytest.approx((10.0, 10.0, 30.0))
    assert (arm.itl.n, arm.icl.n, arm.icl.max) == (54, 18, pytest.approx(30.0))
    stall = summarise_arms(records, PARTS, 4, Gauge(), {}).speculative
    assert stall is not None and stall.icl.max == pytest.approx(500.0)


def test_no_round_copies_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """B103: a deep copy in the loop costs more than a small model's pass."""
    engine = make_engine()

    def refuse(value: object, *_: object) -> object:
        raise AssertionError(f"{type(value).__name__} is copied deep in the loop")

    monkeypatch.setattr(copy, "deepcopy", refuse)
    params = SamplingParams(max_tokens=8, temperature=0.0)
    for speculate in (False, True):
        completion = engine.generate([" ".join([*COLOURS, *COLOURS[:3]])], params, speculate=speculate)[0]
        assert completion.error is None and completion.rounds
