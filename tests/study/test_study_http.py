"""A study whose arms are servers: from the plan to a verdict, attached and launched, well and with faults."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from draftproof import evidence as ev
from draftproof.engines.openai_http import HttpEngine
from draftproof.errors import PlanError, ServerError
from draftproof.gate.decide import decide
from draftproof.measure.counted import counted_acceptance
from draftproof.study.plan import Plan, parse_plan
from draftproof.study.preflight import preflight
from draftproof.study.run import run_study
from draftproof.study.verify import verify_study
from support import fake_server
from support.fake_server import serving
from support.leftovers import no_thread_stays
from support.processes import begin, interrupt_once
from support.scripted import Silent, json_lines, toml
from support.toy_engines import numbered_words

COUNT = 6
TOKENS = 12
# between chunks, so that the arms differ in time too
GAP_S = 0.004
LAUNCH = {"target_only": ["a", "{port}"], "speculative": ["a", "{port}"]}


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    processes = set(psutil.Process().children(recursive=True))
    with no_thread_stays():
        yield
    assert set(psutil.Process().children(recursive=True)) <= processes


def make_plan(folder: Path, engine: dict[str, Any], **tables: Any) -> Plan:
    numbered_words().save_pretrained(folder / "target")
    lines = [
        {"id": f"p{place}", "category": ("list", "copy")[place % 2], "prompt": f"w0{place + 2} w09 w11"}
        for place in range(COUNT)
    ]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    values = {
        "name": "servers",
        "engine": {"kind": "openai_http", "target": str(folder / "target"), "timeout_s": 5.0, **engine},
        "speculation": {"proposer": "server", "num_speculative_tokens": 4},
        "workload": {"prompts": str(path), "max_tokens": TOKENS},
        "sampled": {"enabled": False},
        "policy": {"min_claim": "up_to_ties", "require_sampled": False},
        **tables,
    }
    return parse_plan(values, "test")


def study(plan: Plan, out: Path) -> tuple[ev.Evidence, list[dict[str, Any]]]:
    evidence, _ = run_study(plan, out, resume=False, progress=Silent())
    return evidence, json_lines(out / "requests.jsonl")


def result(evidence: ev.Evidence, name: str) -> tuple[str, str]:
    row = next(item for item in evidence.decision.matrix if item.name == name)
    return row.result, row.consequence


def attached(
    folder: Path, plain: dict[str, Any] | None = None, drafting: dict[str, Any] | None = None, **tables: Any
) -> Any:
    slow = {"gap_s": GAP_S}
    with (
        serving(**{**slow, **(plain or {})}) as one,
        serving(**{**slow, "speculates": True, **(drafting or {})}) as two,
    ):
        plan = make_plan(folder, {"base_url": one.url, "speculative_base_url": two.url}, **tables)
        return study(plan, folder / "out")


def test_a_study_of_two_servers_ends_with_a_verdict(tmp_path: Path) -> None:
    evidence, records = attached(tmp_path)
    assert len(records) == 3 * COUNT and all(record["error"] is None for record in records)
    assert result(evidence, "greedy output") == result(evidence, "repeatability") == ("pass", "ADOPT")
    # what a server does not report is not measured, and so the policy's ratio cannot be told
    assert result(evidence, "memory") == ("not estimable", "INCONCLUSIVE")
    assert evidence.decision.verdict == "INCONCLUSIVE"
    assert evidence.arms is not None and evidence.arms.speculative is not None
    for arm in (evidence.arms.target_only, evidence.arms.speculative):
        assert (arm.memory.weights, arm.memory.caches, arm.memory.peak_rss) == (None, None, None)
    other = evidence.study.plan["policy"] | {"max_memory_ratio": None}
    policy = parse_plan({"name": "x", "policy": {k: v for k, v in other.items() if v is not None}}, "test").policy
    policy = policy.model_copy(update={"max_memory_ratio": None})
    again = decide(arms=evidence.arms, equivalence=evidence.equivalence, comparison=evidence.comparison, policy=policy)
    assert "memory" not in {item.name for item in again.matrix}


def test_its_record_says_what_ran_and_its_limits_what_was_not_measured(tmp_path: Path) -> None:
    evidence, records = attached(tmp_path)
    engine = evidence.environment["engine"]
    assert engine["speculative"] == {"server": "vllm", "version": "1.2.3", "model": "toy", "max_len": 256}
    assert evidence.equivalence is not None and evidence.equivalence.sampled is None
    said = " ".join(evidence.limits)
    assert "The sampled law was not checked." in said and "times include the network" in said
    assert "what the server counted for itself" in said
    acceptance = evidence.arms.speculative.acceptance if evidence.arms and evidence.arms.speculative else None
    assert acceptance is not None and acceptance.rounds is None
    # 12 tokens in chunks of 3 at 4 drafted each: a server says so for each of the 6 requests
    assert (acceptance.drafted_rounds, acceptance.proposed, acceptance.accepted) == (6 * 4, 6 * 16, 6 * 8)
    assert acceptance.rate == 0.5 and acceptance.accepted_per_round == 2.0
    assert evidence.arms is not None and evidence.arms.target_only.acceptance is None
    assert [record["chunks"][0][0] for record in records if record["block"] == "B"] == [3] * COUNT


SAMPLED = {
    "cells": "ranks",
    "prompt": ["w05 w09 w11", "w07 w03 w04 w06"],
    "sequences": 120,
    "control_sequences": 100,
    "tokens": 5,
    "batch": 8,
    "delta": 0.3,
    "num_logprobs": 10,
}


def test_a_servers_samples_are_judged_by_what_it_reports(tmp_path: Path) -> None:
    evidence, _ = attached(tmp_path, {"gap_s": 0.0}, {"gap_s": 0.0}, sampled=SAMPLED)
    assert evidence.equivalence is not None and evidence.equivalence.sampled is not None
    sampled = evidence.equivalence.sampled
    assert (sampled.method, sampled.outcome, sampled.tokens) == ("top log-probabilities", "PASS", 120 * 5)
    assert "those that the server's target-only arm reported" in " ".join(evidence.limits)
    lock = json.loads((tmp_path / "out" / "lock.json").read_text(encoding="utf-8"))
    assert lock["loaded"][0]["registration"]["record"]["sampled"]["reported"]["num_logprobs"] == 10


def test_a_servers_samples_are_held_against_its_other_arm_where_that_is_asked_for(tmp_path: Path) -> None:
    """So few tell nothing apart and show nothing."""
    samples = {name: value for name, value in SAMPLED.items() if name != "num_logprobs"}
    changes = samples | {"method": "two-samples", "tokens": 4, "control_sequences": 50, "sequences": 100}
    evidence, _ = attached(tmp_path, {"gap_s": 0.0}, {"gap_s": 0.0}, sampled=changes)
    assert evidence.equivalence is not None and evidence.equivalence.sampled is not None
    sampled = evidence.equivalence.sampled
    assert (sampled.method, sampled.outcome) == ("two samples", "INCONCLUSIVE")
    assert "both may share a defect" in " ".join(evidence.limits)


@pytest.mark.parametrize(
    ("server", "method", "said"),
    [
        pytest.param("vllm", "own-pass", "cannot do that; allowed: auto, top-logprobs, two-samples", id="no-logits"),
        pytest.param("openai", "auto", "cannot be told to go on after an end of sequence", id="ends-of-its-own"),
    ],
)
def test_a_sampled_check_that_a_server_cannot_have_is_refused_before_a_request(
    tmp_path: Path, server: str, method: str, said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        attached(tmp_path, {"dialect": server}, {"dialect": server}, sampled=SAMPLED | {"method": method})
    assert not (tmp_path / "out").exists()


def test_a_server_that_ends_too_early_rolls_back(tmp_path: Path) -> None:
    evidence, _ = attached(tmp_path, drafting={"cut_after": 7})
    assert result(evidence, "greedy output") == ("miss", "ROLL_BACK") and evidence.decision.verdict == "ROLL_BACK"


@pytest.mark.parametrize(
    ("dialect", "found"),
    [
        pytest.param("vllm", ("miss", "ROLL_BACK"), id="scores"),
        pytest.param("llamacpp", ("not estimable", "INCONCLUSIVE"), id="cannot score"),
    ],
)
def test_a_token_that_differs_is_judged_where_the_server_scores_and_never_excused(
    tmp_path: Path, dialect: str, found: tuple[str, str]
) -> None:
    evidence, _ = attached(tmp_path, {"dialect": dialect}, {"dialect": dialect, "defect_after": 7})
    assert result(evidence, "greedy output") == found
    assert evidence.equivalence is not None and evidence.equivalence.greedy is not None
    assert {item.position for item in evidence.equivalence.greedy.divergences} == {7}


def test_a_fault_stops_the_study_and_retries_are_in_the_record(tmp_path: Path) -> None:
    with serving() as plain, serving(speculates=True) as other:
        plan = make_plan(tmp_path, {"base_url": plain.url, "speculative_base_url": other.url})
        connect = HttpEngine.connect

        def faulty(*parts: Any, **options: Any) -> HttpEngine:
            engine = connect(*parts, **options)
            # after the warm-up of one request for each arm
            plain.behaviour.statuses, plain.behaviour.retry_after = [200, 429], "0"
            other.behaviour.statuses = [200] * 3 + [500]
            return engine

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HttpEngine, "connect", faulty)
            evidence, records = study(plan, tmp_path / "out")
    assert evidence.stopped is not None and "HTTP 500: not now" in evidence.stopped
    assert sum(record["retries"] for record in records) == 1 and records[0]["retries"] == 1


def test_a_server_that_hangs_costs_a_study_one_deadline(tmp_path: Path) -> None:
    with serving() as plain, serving(speculates=True) as other:
        urls = {"base_url": plain.url, "speculative_base_url": other.url, "timeout_s": 2.0}
        plan = make_plan(tmp_path, urls, measure={"warmup_requests": 0, "repeats": 2})
        plan = plan.model_copy(update={"workload": plan.workload.model_copy(update={"concurrency": (1, 2)})})
        connect = HttpEngine.connect

        def hanging(*parts: Any, **options: Any) -> HttpEngine:
            engine = connect(*parts, **options)
            other.behaviour.stall_after = 6
            return engine

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HttpEngine, "connect", hanging)
            evidence, records = study(plan, tmp_path / "out")
            checked = verify_study(plan, tmp_path / "verified", resume=False, progress=Silent())
    assert [record["block"] for record in records] == ["A1", "B"]
    assert evidence.stopped is not None and "not over within 2 s" in evidence.stopped
    assert evidence.decision.verdict == checked.outcome == "INCONCLUSIVE"
    assert len(json_lines(tmp_path / "verified" / "requests.jsonl")) == 2


@pytest.mark.parametrize("together", [True, False], ids=["together", "in turns"])
def test_a_study_starts_its_servers_and_stops_them(tmp_path: Path, together: bool) -> None:
    command = [sys.executable, fake_server.__file__, "{port}"]
    launch = {
        "target_only": command,
        "speculative": [*command, "speculates=true"],
        "ready_s": 30.0,
        "together": together,
    }
    plan = make_plan(tmp_path, {"launch": launch}, measure={"warmup_requests": 0})
    evidence, records = study(plan, tmp_path / "out")
    assert result(evidence, "greedy output") == ("pass", "ADOPT")
    assert evidence.environment["engine"]["launch"]["speculative"].endswith("speculates=true")
    blocks = [record["block"] for record in records]
    assert blocks == (["A1", "B", "A2"] * COUNT if together else ["A1"] * COUNT + ["B"] * COUNT + ["A2"] * COUNT)
    assert any("side by side" in line for line in evidence.limits) == together
    # a folder that is complete is shown, and one whose servers are on other ports goes on
    resumed, _ = run_study(plan, tmp_path / "out", resume=True, progress=Silent())
    assert resumed == evidence
    (tmp_path / "out" / "evidence.json").unlink()
    again, _ = run_study(plan, tmp_path / "out", resume=True, progress=Silent())
    assert again.comparison == evidence.comparison


# a server that loads for ever
LOADING = ("-c", "import time; time.sleep(600)", "{port}")


@pytest.mark.parametrize("moment", ["while a server starts", "while they are asked"])
def test_ctrl_c_ends_the_servers_of_a_study(tmp_path: Path, moment: str) -> None:
    starts = moment == "while a server starts"
    plain = [sys.executable, fake_server.__file__, "{port}", "gap_s=0.02"]
    drafting = [sys.executable, *LOADING] if starts else [*plain, "speculates=true"]
    launch = {"target_only": plain, "speculative": drafting, "ready_s": 60.0}
    values = make_plan(tmp_path, {"launch": launch}).model_dump(exclude_unset=True)
    path, out = tmp_path / "study.toml", tmp_path / "out"
    path.write_text(toml(values), encoding="utf-8")
    process = begin(path, out)
    started: set[psutil.Process] = set()

    def ready() -> bool:
        started.update(psutil.Process(process.pid).children(recursive=True))
        # each server and its supervisor
        return len(started) >= 4 and (starts or (out / "requests.jsonl").exists())

    code, said = interrupt_once(process, ready)
    assert code == 130 and "Traceback" not in said
    _, alive = psutil.wait_procs(started, timeout=30.0)
    assert not alive


def test_the_preflight_asks_the_servers_and_lets_them_go(tmp_path: Path) -> None:
    command = [sys.executable, fake_server.__file__, "{port}"]
    plan = make_plan(tmp_path, {"launch": {"target_only": command, "speculative": command, "ready_s": 30.0}})
    found = {item.finding: item for item in preflight(plan, Silent())}
    assert not [item for item in found.values() if item.status == "refuse"]
    assert found["claim"].result == "up_to_ties" and "vllm" in found["self-test"].why
    gone = make_plan(tmp_path, {"base_url": "http://127.0.0.1:9", "speculative_base_url": "http://127.0.0.1:9"})
    last = preflight(gone, Silent())[-1]
    assert last.status == "refuse" and "does not answer" in last.why


def test_a_server_that_does_not_start_leaves_no_study(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('out of memory')", "{port}"]
    plan = make_plan(tmp_path, {"launch": {"target_only": command, "speculative": command}})
    with pytest.raises(ServerError, match="its log ends: out of memory"):
        study(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("engine", "tables", "named"),
    [
        ({}, {}, "needs 'base_url', or a table"),
        ({"speculative_base_url": "http://b", "launch": LAUNCH}, {}, "goes with 'base_url'"),
        ({"base_url": "localhost:8000"}, {}, "give an address such as"),
        ({"base_url": "http://a", "dtype": "float32"}, {}, "'dtype' has no meaning for kind 'openai_http'"),
        ({"base_url": "http://a", "launch": {"target_only": ["a", "{port}"], "speculative": ["b"]}}, {}, "no {port}"),
        ({"base_url": "http://a"}, {"speculation": {}}, "proposer 'prompt-lookup' does not run"),
        (
            {"base_url": "http://a"},
            {"speculation": {"proposer": "server", "prompt_lookup_max": 3}},
            "give it to the server",
        ),
        ({"base_url": "http://a"}, {"policy": {}}, 'set min_claim = "up_to_ties"'),
        (
            {"kind": "native", "base_url": "http://a", "timeout_s": 300.0},
            {},
            "'base_url' has no meaning for kind 'native'",
        ),
        ({"kind": "native", "timeout_s": 300.0}, {}, "proposer 'server' does not run on engine 'native'"),
    ],
)
def test_a_plan_that_a_server_cannot_follow_is_refused(
    tmp_path: Path, engine: dict[str, Any], tables: dict[str, Any], named: str
) -> None:
    with pytest.raises(PlanError) as error:
        make_plan(tmp_path, engine, **tables)
    assert named in str(error.value)


def test_counts_of_requests_that_ran_together_are_shared_out() -> None:
    def record(steps: int | None, accepted: int, requests: int) -> dict[str, Any]:
        counts = {"num_spec_steps": steps, "num_draft_tokens": None, "num_accepted_draft_tokens": accepted}
        return {"speculation": {**counts, "num_requests": requests}}

    found = counted_acceptance([record(9, 12, 3)] * 3 + [record(2, 5, 1)])
    assert found is not None
    assert (found.drafted_rounds, found.accepted, found.proposed, found.rate) == (11, 17, None, None)
    assert found.accepted_per_round == 17 / 11
    lacking = counted_acceptance([record(9, 12, 1), record(None, 3, 1)])
    assert lacking is not None and (lacking.drafted_rounds, lacking.accepted) == (None, 15)
    assert counted_acceptance([{"speculation": None}]) is None


LOSSY = "lossy by configuration: acceptance threshold below 1 (speculative_accept_threshold_single = 0.9)"


def test_a_lossy_setting_that_a_server_admits_rolls_back_though_the_tokens_agree(tmp_path: Path) -> None:
    servers = {"dialect": "sglang", "gap_s": 0.0}
    admitted = {"settings": {"speculative_accept_threshold_single": 0.9, "speculative_accept_threshold_acc": 1.0}}
    evidence, _ = attached(tmp_path, servers, {**servers, **admitted})
    assert evidence.equivalence is not None and evidence.equivalence.greedy is not None
    assert evidence.equivalence.greedy.identical == COUNT
    assert (evidence.equivalence.claim, evidence.equivalence.claim_basis) == ("lossy", LOSSY)
    assert result(evidence, "greedy output") == ("miss", "ROLL_BACK")
    assert any(LOSSY in reason for reason in evidence.decision.reasons)
    assert "only what they say of themselves is known" in " ".join(evidence.limits)


def test_a_lossy_setting_in_the_launch_command_is_found_and_fails_no_verification_silently(tmp_path: Path) -> None:
    command = [sys.executable, fake_server.__file__, "{port}"]
    speculative = [*command, "speculates=true", 'settings={"rejection_sample_method": "fly"}']
    plan = make_plan(tmp_path, {"launch": {"target_only": command, "speculative": speculative, "ready_s": 30.0}})
    found = verify_study(plan, tmp_path / "out", resume=False, progress=Silent())
    assert found.equivalence.greedy is not None and found.equivalence.greedy.outcome == "PASS"
    assert (found.outcome, found.equivalence.claim) == ("INCONCLUSIVE", "lossy")
    assert found.reasons == ["lossy by configuration: fly acceptance (rejection_sample_method = fly)"]
    assert found.environment["engine"]["lossy"][0]["name"] == "fly acceptance"


def test_the_same_servers_without_it_are_not_lossy(tmp_path: Path) -> None:
    servers = {"dialect": "sglang", "gap_s": 0.0}
    evidence, _ = attached(tmp_path, servers, {**servers, "settings": {"speculative_accept_threshold_single": 1.0}})
    assert evidence.equivalence is not None and evidence.equivalence.claim == "up_to_ties"
    assert evidence.environment["engine"]["lossy"] == []
