"""A study over the scripted engine: every verdict is reached, every file is there, and a folder is never spoiled."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftproof import __version__
from draftproof import evidence as ev
from draftproof.errors import DraftproofError, OutputError, PlanError, PromptError
from draftproof.gate.decide import decide
from draftproof.gate.policy import Policy
from draftproof.records import Completion
from draftproof.study import run
from draftproof.study.limits import limits
from draftproof.study.run import run_study
from draftproof.study.study_file import load_plan
from support.scripted import WITHOUT_SAMPLED, Counting, Restricted, Silent, Stopping, json_lines, make_plan, write_study

FILES = {"lock.json", "study.toml", "requests.jsonl", "rounds.jsonl", "evidence.json"}
Records = list[dict[str, Any]]


def study(folder: Path, name: str = "out", *, count: int = 6, **tables: Any) -> tuple[ev.Evidence, Records]:
    return run_study(make_plan(folder, count=count, **tables), folder / name, resume=False, progress=Silent())


def places(records: Records) -> list[tuple[Any, ...]]:
    return [(r["prompt_id"], r["block"], r["repeat"], r["concurrency"]) for r in records]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def row(evidence: ev.Evidence, name: str) -> ev.Criterion:
    return next(item for item in evidence.decision.matrix if item.name == name)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_fast_correct_engine_is_adopted(tmp_path: Path) -> None:
    """The seeds are fixed; see test_verify_sampled.py for what other ones would do."""
    evidence, _ = study(tmp_path)
    equivalence = evidence.equivalence
    assert evidence.decision.verdict == "ADOPT", evidence.decision.reasons
    assert {item.result for item in evidence.decision.matrix} == {"pass"}
    assert evidence.decision.registered and evidence.draftproof_version == __version__
    assert equivalence is not None and equivalence.greedy is not None and equivalence.sampled is not None
    assert equivalence.claim == "bitwise" and equivalence.greedy.identical == equivalence.greedy.prompts == 6
    assert equivalence.greedy.anchor_regret == 0.0 and equivalence.greedy.anchor_tokens == 3 * 12
    assert equivalence.sampled.outcome == "PASS" and equivalence.sampled.reasons == []
    assert [(item.kind, item.flagged) for item in equivalence.controls] == [
        ("defect", True), ("defect", True), ("lossless", False),
    ]  # fmt: skip
    assert evidence.comparison is not None and (evidence.comparison.overall.speedup.low or 0) > 1.05


def test_a_slow_block_keeps_target_only(tmp_path: Path) -> None:
    evidence, _ = study(tmp_path, script={"block_ms": 400.0}, **WITHOUT_SAMPLED)
    assert evidence.comparison is not None
    high = evidence.comparison.overall.speedup.high
    assert evidence.decision.verdict == "KEEP_TARGET_ONLY" and high is not None and high < 1.05
    assert row(evidence, "speed-up").consequence == "KEEP_TARGET_ONLY"
    assert set(evidence.decision.by_concurrency.values()) == {"KEEP_TARGET_ONLY"}


def test_memory_above_its_ratio_keeps_target_only(tmp_path: Path) -> None:
    evidence, _ = study(tmp_path, script={"target_bytes": 1000, "draft_bytes": 600}, **WITHOUT_SAMPLED)
    assert evidence.comparison is not None and evidence.comparison.memory_ratio == 1.6
    assert evidence.decision.verdict == "KEEP_TARGET_ONLY" and row(evidence, "memory").result == "miss"
    assert [item.name for item in evidence.decision.matrix if item.result != "pass"] == ["memory"]


def test_memory_above_the_boundary_rolls_back(tmp_path: Path) -> None:
    policy = {**WITHOUT_SAMPLED["policy"], "max_peak_memory_bytes": 1}
    evidence, _ = study(tmp_path, sampled={"enabled": False}, policy=policy)
    assert evidence.decision.verdict == "ROLL_BACK" and row(evidence, "peak memory").result == "miss"


def test_a_wrong_block_rolls_back_by_greedy_and_by_sampled_output(tmp_path: Path) -> None:
    evidence, records = study(tmp_path, script={"defect": "block"})
    equivalence = evidence.equivalence
    assert equivalence is not None and equivalence.greedy is not None and equivalence.sampled is not None
    assert evidence.decision.verdict == "ROLL_BACK"
    assert {name for name in ("greedy output", "sampled law") if row(evidence, name).consequence == "ROLL_BACK"} == {
        "greedy output", "sampled law",
    }  # fmt: skip
    assert equivalence.greedy.outcome == equivalence.sampled.outcome == "FAIL" and equivalence.claim == "none"
    tokens = {(r["prompt_id"], r["block"]): r["token_ids"] for r in records}
    differing = {name for name, block in tokens if tokens[name, "A1"] != tokens[name, "B"]}
    assert {item.prompt_id for item in equivalence.greedy.divergences} == differing != set()
    assert all(item.regret is not None and item.regret > 0 for item in equivalence.greedy.divergences)
    assert equivalence.sampled.p_value is not None and equivalence.sampled.p_value < 1e-3


def test_a_wrong_block_rolls_back_by_sampled_output_alone_where_the_runs_sample(tmp_path: Path) -> None:
    evidence, _ = study(tmp_path, script={"defect": "block"}, sampling={"temperature": 1.0})
    assert evidence.equivalence is not None and evidence.equivalence.greedy is None
    assert evidence.decision.verdict == "ROLL_BACK" and row(evidence, "greedy output").result == "not estimable"
    assert any("Greedy identity was not checked" in line for line in evidence.limits)


def test_a_target_that_does_not_repeat_itself_rolls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wavering(Restricted):
        """The repetition of the first prompt ends with another token."""

        calls = 0

        def generate(self, prompts: Any, params: Any, **options: Any) -> list[Completion]:
            done = super().generate(prompts, params, **options)
            Wavering.calls += 1
            return [replace(done[0], token_ids=(*done[0].token_ids[:-1], 7))] if Wavering.calls == 5 else done

    open_engine = run.open_engine
    monkeypatch.setattr(run, "open_engine", lambda *inputs: Wavering(open_engine(*inputs)))
    evidence, _ = study(tmp_path, **WITHOUT_SAMPLED)
    assert evidence.equivalence is not None and evidence.equivalence.greedy is not None
    greedy = evidence.equivalence.greedy
    assert (greedy.repeatability_prompts, greedy.repeatability_identical, greedy.divergences) == (6, 5, [])
    assert evidence.decision.verdict == "ROLL_BACK" and row(evidence, "repeatability").result == "miss"


def test_noise_is_inconclusive(tmp_path: Path) -> None:
    evidence, _ = study(tmp_path, script={"noise": 1.0}, **WITHOUT_SAMPLED)
    assert evidence.decision.verdict == "INCONCLUSIVE" and row(evidence, "noise").result == "miss"
    assert any("too noisy" in reason for reason in evidence.decision.reasons)


def test_controls_that_misbehave_are_inconclusive_even_where_the_check_found_nothing(tmp_path: Path) -> None:
    # the target all but always copies, so that accepting always is all but correct and cannot be told from it
    evidence, _ = study(tmp_path, script={"copying": 6.0}, sampled={"control_sequences": 50, "min_stratum_tokens": 1})
    equivalence = evidence.equivalence
    assert equivalence is not None and equivalence.sampled is not None
    missed = [item.name for item in equivalence.controls if not item.behaved]
    assert missed and evidence.decision.verdict == "INCONCLUSIVE"
    assert equivalence.sampled.outcome == "INCONCLUSIVE"
    assert equivalence.sampled.reasons == [f"control '{name}' did not behave" for name in missed]
    misses = [item.name for item in evidence.decision.matrix if item.consequence != "ADOPT"]
    assert misses == ["sampled law", "controls"]


def test_a_sampled_check_that_is_required_and_off_is_inconclusive(tmp_path: Path) -> None:
    evidence, _ = study(tmp_path, sampled={"enabled": False})
    assert evidence.decision.verdict == "INCONCLUSIVE"
    assert evidence.equivalence is not None and evidence.equivalence.sampled is None
    assert "The sampled law was not checked." in evidence.limits


def test_logits_that_are_not_finite_stop_the_study(tmp_path: Path) -> None:
    evidence, records = study(tmp_path, script={"defect": "not-finite"})
    assert evidence.decision.verdict == "INCONCLUSIVE"
    assert evidence.decision.reasons[0].startswith("The study stopped early: smoke: prompt 'p0', speculative: ")
    assert "not finite" in evidence.decision.reasons[0]
    # the sampled check would have been run on an engine that is known to be broken
    assert evidence.equivalence is not None and evidence.equivalence.sampled is None
    assert evidence.equivalence.controls == []
    assert {r["block"] for r in records if r["error"]} == {"B"}
    assert ev.load(tmp_path / "out" / "evidence.json") == evidence


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ev.Evidence, Records]:
    """Seven prompts, one and three at a time, twice; without the sampled check."""
    folder = tmp_path_factory.mktemp("finished")
    tables = {"workload": {"concurrency": [1, 3]}, "measure": {"repeats": 2}}
    evidence, records = study(folder, count=7, **tables, **WITHOUT_SAMPLED)
    return folder / "out", evidence, records


def test_the_folder_holds_its_files_and_nothing_else(finished: tuple[Path, ev.Evidence, Records]) -> None:
    assert {path.name for path in finished[0].iterdir()} == FILES


def test_the_lock_holds_the_plan_its_hash_and_what_loading_told(finished: tuple[Path, ev.Evidence, Records]) -> None:
    out, evidence, _ = finished
    lock = json.loads((out / "lock.json").read_text(encoding="utf-8"))
    canonical = json.dumps(lock["plan"], sort_keys=True, separators=(",", ":")).encode()
    assert lock["hash"] == hashlib.sha256(canonical).hexdigest() == evidence.study.hash
    assert lock["plan"] == evidence.study.plan and lock["locked_at"] == evidence.study.locked_at
    assert lock["plan"]["engine"]["script"]["spread"] == 0.1 and lock["plan"]["policy"]["require_sampled"] is False
    (loaded,) = lock["loaded"]
    assert loaded["max_len"] == 1024 and loaded["claim"] == "bitwise" and loaded["threads"] >= 1
    assert loaded["engine"]["script"] == lock["plan"]["engine"]["script"]


def test_there_is_one_request_line_for_each_prompt_block_repeat_and_concurrency(
    finished: tuple[Path, ev.Evidence, Records],
) -> None:
    out, _, records = finished
    lines = json_lines(out / "requests.jsonl")
    assert lines == records
    wanted = Counter(
        (f"p{number}", block, repeat, concurrency)
        for number in range(7) for block in ("A1", "B", "A2") for repeat in (0, 1) for concurrency in (1, 3)
    )  # fmt: skip
    assert Counter(places(lines)) == wanted
    assert all(len(line["token_ids"]) == 12 and line["finish_reason"] == "length" for line in lines)


def test_the_rounds_are_those_of_the_requests_numbered(finished: tuple[Path, ev.Evidence, Records]) -> None:
    out, _, records = finished
    wanted = [
        {"prompt_id": name, "block": block, "repeat": repeat, "concurrency": level, "round": number, **item}
        for (name, block, repeat, level), record in zip(places(records), records, strict=True)
        for number, item in enumerate(record["rounds"])
    ]
    assert json_lines(out / "rounds.jsonl") == wanted
    assert any(item["num_accepted"] for item in wanted if item["block"] == "B")
    assert not any(item["num_proposed"] for item in wanted if item["block"] != "B")


def test_the_evidence_on_disk_is_what_was_returned(finished: tuple[Path, ev.Evidence, Records]) -> None:
    out, evidence, records = finished
    assert ev.load(out / "evidence.json") == evidence
    assert evidence.arms is not None and evidence.arms.speculative is not None
    assert evidence.arms.target_only.latency.n == sum(r["arm"] == "target_only" for r in records) == 56
    assert evidence.arms.speculative.throughput.tokens == 28 * 12
    busy = sum(r["busy_seconds"] for r in records if r["block"] == "B")
    assert evidence.arms.speculative.throughput.seconds == pytest.approx(busy)


def test_every_concurrency_is_judged_apart_also_where_the_last_group_is_smaller(
    finished: tuple[Path, ev.Evidence, Records],
) -> None:
    _, evidence, _ = finished
    assert evidence.decision.verdict == "ADOPT", evidence.decision.reasons
    assert evidence.decision.by_concurrency == {"1": "ADOPT", "3": "ADOPT"}
    assert evidence.comparison is not None and evidence.equivalence is not None
    assert {name: effect.n for name, effect in evidence.comparison.by_concurrency.items()} == {"1": 7, "3": 7}
    assert set(evidence.comparison.by_category) == set(evidence.decision.by_category) == {"list", "copy"}
    assert evidence.equivalence.greedy is not None and evidence.equivalence.greedy.prompts == 28
    assert any("Measured at 1, 3 request(s) at a time" in line for line in evidence.limits)


def test_the_check_names_the_claim_and_the_longest_prompt(finished: tuple[Path, ev.Evidence, Records]) -> None:
    found = {item["finding"]: item["result"] for item in finished[1].check}
    longest = max(r["num_prompt_tokens"] for r in finished[2])
    assert found == {"claim of the engine": "bitwise", "longest prompt": f"{longest} tokens"}


def test_the_same_plan_gives_the_same_tokens_times_and_verdict(tmp_path: Path) -> None:
    one, first = study(tmp_path, "one")
    two, second = study(tmp_path, "two")
    # what the host did meanwhile is no part of it
    host = {"noise": None, "peak_bytes": None, "joules": None}
    assert [item | host for item in first] == [item | host for item in second]
    assert one.decision == two.decision and one.equivalence == two.equivalence
    assert one.comparison is not None and two.comparison is not None
    assert one.comparison.model_copy(update={"noise": None}) == two.comparison.model_copy(update={"noise": None})
    assert one.study.hash == two.study.hash


def test_every_bar_is_filled(tmp_path: Path) -> None:
    progress = Silent()
    run_study(make_plan(tmp_path, workload={"concurrency": [4]}), tmp_path / "out", resume=False, progress=progress)
    assert progress.stages == [
        "warm-up", "A/B/A, 4 at a time, repeat 1", "sampled check and controls",
    ]  # fmt: skip
    assert progress.steps == progress.totals


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "error", "said"),
    [
        pytest.param({"engine": {"max_len": 16}}, PromptError, "context limit is 16", id="prompt-too-long"),
        pytest.param(
            {"sampled": {"words": ["red", "two words"]}}, PlanError, "'two words' is 2 tokens", id="two-tokens"
        ),
        pytest.param({"sampled": {"words": ["red", " red"]}}, PlanError, "' red' is a token that", id="same-token"),
        pytest.param({"sampled": {"prompt": " "}}, PlanError, "no tokens", id="empty-sampled-prompt"),
        pytest.param({"workload": {"prompts": "nope"}}, PromptError, "unknown prompt set 'nope'", id="unknown-set"),
        pytest.param({"workload": {"prompts": "nope.jsonl"}}, PromptError, "does not exist", id="missing-file"),
    ],
)
def test_a_plan_that_cannot_be_used_leaves_nothing_behind(
    tmp_path: Path, tables: dict[str, Any], error: type[DraftproofError], said: str
) -> None:
    progress = Silent()
    with pytest.raises(error, match=said) as refused:
        run_study(make_plan(tmp_path, **tables), tmp_path / "out", resume=False, progress=progress)
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "out").glob("**/*")) and progress.stages == []
    # and so the folder is free for the mended plan
    evidence, _ = study(tmp_path, **WITHOUT_SAMPLED)
    assert evidence.decision.verdict == "ADOPT"


def test_a_second_run_without_resume_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    study(tmp_path, **WITHOUT_SAMPLED)
    before = contents(tmp_path / "out")
    with pytest.raises(OutputError, match="already holds a study; use --resume"):
        study(tmp_path, **WITHOUT_SAMPLED)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"workload": {"max_tokens": 13}}, id="workload"),
        pytest.param({"policy": {"require_sampled": False, "min_speedup": 1.01}}, id="policy"),
        pytest.param({"script": {"seed": 1}}, id="script"),
    ],
)
def test_resuming_with_another_plan_is_refused_and_changes_nothing(tmp_path: Path, changed: dict[str, Any]) -> None:
    study(tmp_path, **WITHOUT_SAMPLED)
    before = contents(tmp_path / "out")
    plan = make_plan(tmp_path, **{**WITHOUT_SAMPLED, **changed})
    with pytest.raises(PlanError, match="locked with another plan"):
        run_study(plan, tmp_path / "out", resume=True, progress=Silent())
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"hash": "a"}'])
def test_a_lock_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "lock.json").write_text(text, encoding="utf-8")
    with pytest.raises(PlanError, match="not a lock"):
        run_study(make_plan(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out", resume=True, progress=Silent())
    assert (tmp_path / "out" / "lock.json").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(("name", "value"), [("max_len", 999), ("threads", 999), ("claim", "up_to_ties")])
def test_a_study_begun_under_other_facts_is_not_gone_on_with(tmp_path: Path, name: str, value: Any) -> None:
    study(tmp_path, **WITHOUT_SAMPLED)
    out = tmp_path / "out"
    (out / "evidence.json").unlink()
    lock = json.loads((out / "lock.json").read_text(encoding="utf-8"))
    lock["loaded"][0][name] = value
    (out / "lock.json").write_text(json.dumps(lock), encoding="utf-8")
    before = contents(out)
    progress = Silent()
    with pytest.raises(PlanError, match=f"begun with {name} = {value}"):
        run_study(make_plan(tmp_path, **WITHOUT_SAMPLED), out, resume=True, progress=progress)
    assert contents(out) == before and progress.stages == []


# --- what is there is shown, what was stopped is readable -------------------------------------------------------------


def test_resuming_a_finished_study_shows_it_without_running(tmp_path: Path) -> None:
    evidence, records = study(tmp_path, **WITHOUT_SAMPLED)
    before = contents(tmp_path / "out")
    progress = Silent()
    plan = make_plan(tmp_path, **WITHOUT_SAMPLED)
    shown, read = run_study(plan, tmp_path / "out", resume=True, progress=progress)
    assert (shown, read) == (evidence, records)
    assert progress.stages == [] and len(progress.said) == 1 and "complete" in progress.said[0]
    assert contents(tmp_path / "out") == before


def test_resume_in_an_empty_folder_begins(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, **WITHOUT_SAMPLED)
    progress = Silent()
    evidence, _ = run_study(plan, tmp_path / "out", resume=True, progress=progress)
    assert evidence.decision.verdict == "ADOPT"
    assert progress.said[0] == f"{tmp_path / 'out'} holds no study yet; beginning one"


@pytest.mark.parametrize(
    ("stage", "after", "concurrency", "stored"),
    [
        pytest.param("warm-up", 1, 1, 0, id="warm-up"),
        pytest.param("A/B/A", 2, 1, 6, id="between-prompts"),
        pytest.param("A/B/A", 3, 3, 9, id="between-groups"),
        pytest.param("sampled", 40, 1, 18, id="sampled-check"),
    ],
)
def test_what_was_measured_before_an_interruption_is_readable(
    tmp_path: Path, stage: str, after: int, concurrency: int, stored: int
) -> None:
    plan = make_plan(tmp_path, workload={"concurrency": [concurrency]})
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(plan, out, resume=False, progress=Stopping(stage, after))
    lock = json.loads((out / "lock.json").read_text(encoding="utf-8"))
    assert lock["plan"]["name"] == "small" and len(lock["loaded"]) == 1
    lines = json_lines(out / "requests.jsonl") if (out / "requests.jsonl").exists() else []
    wanted = [(f"p{number}", block) for number in range(stored // 3) for block in ("A1", "B", "A2")]
    assert sorted((line["prompt_id"], line["block"]) for line in lines) == sorted(wanted)
    assert not (out / "evidence.json").exists()
    with pytest.raises(OutputError, match="--resume"):
        run_study(plan, out, resume=False, progress=Silent())
    evidence, records = run_study(plan, out, resume=True, progress=Silent())
    assert records[: len(lines)] == lines
    assert set(Counter(places(records)).values()) == {1} and len(records) == 18
    assert evidence.arms is not None and evidence.arms.target_only.latency.n == 12
    lock = json.loads((out / "lock.json").read_text(encoding="utf-8"))
    assert len(lock["loaded"]) == 2 and lock["hash"] == evidence.study.hash


@pytest.mark.parametrize("cut", ["in a line", "in a group", "between groups"])
def test_a_killed_run_goes_on_where_its_last_whole_group_ends(tmp_path: Path, cut: str) -> None:
    plan, out = make_plan(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out"
    whole, _ = run_study(plan, out, resume=False, progress=Silent())
    (out / "evidence.json").unlink()
    stored = out / "requests.jsonl"
    lines = stored.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = {"in a line": [*lines[:7], lines[7][:40]], "in a group": lines[:8], "between groups": lines[:6]}[cut]
    stored.write_text("".join(kept), encoding="utf-8")
    progress = Silent()
    evidence, records = run_study(plan, out, resume=True, progress=progress)
    assert [json.loads(line) for line in lines[:6]] == records[:6] == json_lines(stored)[:6]
    assert set(Counter(places(records)).values()) == {1} and len(records) == len(lines)
    assert [r["token_ids"] for r in records] == [json.loads(line)["token_ids"] for line in lines]
    assert evidence.decision.verdict == whole.decision.verdict


def test_the_one_fact_that_differs_is_named(tmp_path: Path) -> None:
    plan, out = make_plan(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out"
    run_study(plan, out, resume=False, progress=Silent())
    (out / "evidence.json").unlink()
    lock = json.loads((out / "lock.json").read_text(encoding="utf-8"))
    lock["loaded"][0]["engine"]["script"]["seed"] = 9
    (out / "lock.json").write_text(json.dumps(lock), encoding="utf-8")
    with pytest.raises(PlanError, match=r"begun with engine\.script\.seed = 9, and now it is 0"):
        run_study(plan, out, resume=True, progress=Silent())


# --- limits -----------------------------------------------------------------------------------------------------------


def test_the_limits_say_what_a_small_scripted_study_may_not_claim(tmp_path: Path) -> None:
    evidence, _ = study(tmp_path)
    said = "\n".join(evidence.limits)
    assert "The engine is a script" in evidence.limits[0] and "about nothing real" in evidence.limits[0]
    assert "Measured on 6 prompts of at most 12 tokens" in said
    assert "Measured at 1 request(s) at a time" in said
    assert "p95 and p99 latency are not estimable from the 12 requests of the target-only arm (6 prompts)." in said
    assert "p95 and p99 latency are not estimable from the 6 requests of the speculative arm (6 prompts)." in said
    assert "Requests started together (closed loop)" in said
    assert "Energy was not measured: the engine names no device of this machine." in said
    assert "1 fixed prompt(s) with 3 allowed tokens at temperature 1;" in said
    assert "does not report rounds" not in said and "was not checked." not in said


def test_the_limits_of_many_requests_do_not_call_p95_unknown(tmp_path: Path) -> None:
    evidence, _ = study(tmp_path, count=72, workload={"max_tokens": 2}, **WITHOUT_SAMPLED)
    assert evidence.arms is not None and evidence.arms.speculative is not None
    assert evidence.arms.speculative.latency.p95.estimate is not None
    assert not any("p95" in line for line in evidence.limits)


def test_the_limits_of_an_engine_without_rounds_say_so(tmp_path: Path) -> None:
    evidence, _ = study(tmp_path)
    arms, equivalence = evidence.arms, evidence.equivalence
    assert arms is not None and arms.speculative is not None and equivalence is not None and equivalence.sampled
    blind = arms.model_copy(update={"speculative": arms.speculative.model_copy(update={"acceptance": None})})
    unplaced = equivalence.model_copy(update={"sampled": equivalence.sampled.model_copy(update={"strata": []})})
    said = limits(make_plan(tmp_path), blind, unplaced, 6)
    assert [line for line in said if line not in evidence.limits] == [
        "The engine does not report rounds: acceptance was not measured.",
        "The engine does not report rounds: tokens were not told apart by their place in the round.",
    ]


def test_the_limits_name_the_arm_whose_quantiles_are_not_estimable(tmp_path: Path) -> None:
    """Repeats, and the target-only arm's two runs, are more requests and not more draws."""
    tables = {"workload": {"max_tokens": 2}, "measure": {"repeats": 4}}
    evidence, _ = study(tmp_path, count=20, **tables, **WITHOUT_SAMPLED)
    told = [line for line in evidence.limits if "not estimable" in line]
    assert told == [
        "p95 and p99 latency are not estimable from the 160 requests of the target-only arm (20 prompts).",
        "p95 and p99 latency are not estimable from the 80 requests of the speculative arm (20 prompts).",
    ]


# --- what a study is held to ------------------------------------------------------------------------------------------


def test_one_drafted_token_is_enough_for_a_verdict(tmp_path: Path) -> None:
    evidence, _ = study(tmp_path, speculation={"num_speculative_tokens": 1}, sampled={"sequences": 400, "delta": 0.08})
    assert evidence.equivalence is not None and evidence.equivalence.sampled is not None
    assert evidence.equivalence.sampled.outcome == "PASS" and evidence.decision.verdict == "ADOPT"


def test_a_study_that_stopped_is_not_adopted_when_it_is_decided_again(tmp_path: Path) -> None:
    prompts = tmp_path / "mixed.jsonl"
    texts = [" ".join(f"w{row}x{place}" for place in range(9)) for row in range(5)] + ["a b c a b c a"]
    prompts.write_text(
        "".join(json.dumps({"id": f"q{row}", "category": "c", "prompt": text}) + "\n" for row, text in enumerate(texts))
    )
    evidence, _ = study(
        tmp_path,
        script={"defect": "not-finite", "noise": 0.01},
        workload={"prompts": str(prompts), "max_tokens": 8},
        sampled={"enabled": False},
        policy={"require_sampled": False, "min_speedup": 0.5, "max_itl_ratio": 1.5},
    )
    assert evidence.stopped is not None and "not finite" in evidence.stopped
    stored = ev.load(tmp_path / "out" / "evidence.json")
    again = {"arms": stored.arms, "equivalence": stored.equivalence, "comparison": stored.comparison}
    policy = Policy(**stored.study.plan["policy"])
    assert decide(**again, policy=policy).verdict == "ADOPT"
    assert decide(**again, policy=policy, stopped=stored.stopped) == evidence.decision
    assert evidence.decision.verdict == "INCONCLUSIVE"


@pytest.mark.parametrize("left", ["requests.jsonl", "report.html", "thesis.tex"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_files_and_no_lock_is_refused_and_left_alone(tmp_path: Path, left: str, resume: bool) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / left).write_text("{}\n")
    with pytest.raises(OutputError, match="choose an empty or a new folder"):
        run_study(make_plan(tmp_path, **WITHOUT_SAMPLED), out, resume=resume, progress=Silent())
    assert [path.name for path in out.iterdir()] == [left] and (out / left).read_text() == "{}\n"


@pytest.mark.parametrize("stage", ["A/B/A", "finished"])
def test_prompts_that_were_edited_are_not_gone_on_with(tmp_path: Path, stage: str) -> None:
    plan, out = make_plan(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out"
    if stage == "finished":
        run_study(plan, out, resume=False, progress=Silent())
    else:
        with pytest.raises(KeyboardInterrupt):
            run_study(plan, out, resume=False, progress=Stopping(stage, 3))
    path = Path(plan.workload.prompts)
    before = path.read_text()
    path.write_text(before.replace("end3", "end4", 1))
    with pytest.raises(PlanError, match="locked with other prompts"):
        run_study(plan, out, resume=True, progress=Silent())
    path.write_text(before)
    assert run_study(plan, out, resume=True, progress=Silent())[0].decision.verdict == "ADOPT"


@pytest.mark.parametrize("damage", ["{", "3", "[]", '{"prompt_id": "p1"}', "", "\x00\xff"])
@pytest.mark.parametrize("line", [0, 4, 17])
def test_a_damaged_line_costs_its_own_prompt_only(tmp_path: Path, damage: str, line: int) -> None:
    plan, out = make_plan(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out"
    _, records = run_study(plan, out, resume=False, progress=Silent())
    (out / "evidence.json").unlink()
    lines = (out / "requests.jsonl").read_text().splitlines()
    lost = json.loads(lines[line])["prompt_id"]
    lines[line] = damage
    (out / "requests.jsonl").write_bytes("\n".join(lines).encode("latin-1"))
    evidence, resumed = run_study(plan, out, resume=True, progress=Silent())
    kept = [record for record in records if record["prompt_id"] != lost]
    assert resumed[: len(kept)] == kept and len(resumed) == 18 and evidence.decision.verdict == "ADOPT"
    assert {record["prompt_id"] for record in resumed[len(kept) :]} == {lost}


def test_a_word_of_the_prompt_that_is_not_allowed_is_no_trouble(tmp_path: Path) -> None:
    """Lookup drafts it, the target never takes it, and the rule that takes everything is caught by it."""
    prompt = "red green and blue red green and blue red green"
    evidence, _ = study(tmp_path, sampled={"prompt": prompt, "sequences": 400, "min_stratum_tokens": 20})
    assert evidence.equivalence is not None and evidence.equivalence.sampled is not None
    assert evidence.equivalence.sampled.outcome == "PASS"
    assert all(control.behaved for control in evidence.equivalence.controls)
    assert "not among those allowed" in evidence.equivalence.controls[0].detail


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    plan, out = make_plan(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out"

    class Meddling(Silent):
        def start(self, title: str, total: int) -> Counting:
            with pytest.raises(OutputError, match="another run is writing into"):
                run_study(plan, out, resume=True, progress=Silent())
            return super().start(title, total)

    evidence, records = run_study(plan, out, resume=False, progress=Meddling())
    assert evidence.decision.verdict == "ADOPT" and json_lines(out / "requests.jsonl") == records
    assert run_study(plan, out, resume=True, progress=Silent())[0] == evidence


def test_a_file_system_without_locks_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("draftproof.study.lock.fcntl.flock", unsupported)
    with pytest.raises(OutputError, match=r"cannot be locked: .*choose a folder on a file system that has locks"):
        run_study(make_plan(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out", resume=False, progress=Silent())
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up_costs_nothing_that_was_measured(tmp_path: Path) -> None:
    """A limit on the size of a file stands for the disk: both end a write in its middle."""
    study, out = write_study(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out"
    limit = 9_000
    code = (
        "import resource, runpy, sys; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
        f"sys.argv = ['draftproof', 'run', {str(study)!r}, '--out', {str(out)!r}]; "
        "runpy.run_module('draftproof.cli.main', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "make room, then --resume" in done.stderr and "Traceback" not in done.stderr
    stored = (out / "requests.jsonl").read_bytes()
    assert len(stored) == limit and not (out / "evidence.json").exists()
    kept = [json.loads(line) for line in stored.split(b"\n")[:-1]]
    evidence, records = run_study(load_plan(study), out, resume=True, progress=Silent())
    whole = {record["prompt_id"] for record in kept if record["block"] == "A2"}
    assert whole and [record for record in records if record["prompt_id"] in whole] == [
        record for record in kept if record["prompt_id"] in whole
    ]
    assert evidence.decision.verdict == "ADOPT" and len(records) == 18
