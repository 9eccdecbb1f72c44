"""Runs are compared only where what must match does, every difference is named, and the ratios are those of the prompts."""

from pathlib import Path
from typing import Any

import pytest

from draftproof import evidence as ev
from draftproof.measure.across import Other, compare_runs, run_differences
from draftproof.measure.paired import paired_ratios
from draftproof.measure.stored import StoredRun
from draftproof.study.run import run_study
from support.scripted import WITHOUT_SAMPLED, Silent, make_plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def finish(folder: Path, name: str, **tables: Any) -> StoredRun:
    plan = make_plan(folder, **{**WITHOUT_SAMPLED, **tables})
    evidence, records = run_study(plan, folder / name, resume=False, progress=Silent())
    return StoredRun(name=name, evidence=evidence, records=tuple(records))


@pytest.fixture(scope="module")
def first(folder: Path) -> StoredRun:
    return finish(folder, "first")


def change(run: StoredRun, name: str = "other", **parts: dict[str, Any]) -> StoredRun:
    """The run with keys of its environment, engine, plan or study replaced."""
    evidence = run.evidence
    engine = {**evidence.environment["engine"], **parts.get("engine", {})}
    environment = {**evidence.environment, **parts.get("environment", {}), "engine": engine}
    plan = {**evidence.study.plan}
    for table, values in parts.get("plan", {}).items():
        plan[table] = {**plan[table], **values}
    study = evidence.study.model_copy(update={"plan": plan, **parts.get("study", {})})
    return StoredRun(
        name=name,
        evidence=evidence.model_copy(update={"environment": environment, "study": study}),
        records=run.records,
    )


def only(first: StoredRun, other: StoredRun, **options: bool) -> Other:
    found = compare_runs([first, other], **options)
    assert found.first == "first" and found.comparable == found.others[0].comparable
    (one,) = found.others
    return one


def test_a_run_against_itself_has_no_difference_and_ratios_of_one(first: StoredRun) -> None:
    found = only(first, first)
    assert found.comparable and found.differences == [] and found.why_not is None
    ratios = found.ratios
    assert ratios is not None and (ratios.prompts, ratios.identical) == (6, 6)
    assert ratios.speculative_latency.estimate == ratios.speedup.estimate == 1.0
    # no spread to judge by
    assert ratios.speculative_latency.low is None


def test_another_way_to_speculate_is_what_is_compared(folder: Path, first: StoredRun) -> None:
    other = finish(folder, "wider", script={"block_ms": 22.0, "noise": 0.0}, speculation={"num_speculative_tokens": 3})
    found = only(first, other)
    assert found.comparable
    assert {(item.kind, item.name, item.first, item.other) for item in found.differences} == {
        ("plan", "speculation.num_speculative_tokens", 2, 3),
        ("plan", "engine.script.block_ms", 44.0, 22.0),
        ("plan", "engine.script.noise", 0.02, 0.0),
    }
    ratios = found.ratios
    assert ratios is not None and ratios.identical == 6
    # blocks of half the time, which draft one token more; the clock is virtual
    assert (ratios.speculative_tpot.low or 0) > 1.5 and (ratios.speedup.low or 0) > 1.5
    assert ratios.target_only_tpot.estimate == pytest.approx(1.0, rel=0.05)
    back = only(change(other, "first"), first).ratios
    assert back is not None and back.speedup.estimate is not None and ratios.speedup.estimate is not None
    assert back.speedup.estimate * ratios.speedup.estimate == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        pytest.param({"study": {"prompts": "0" * 64}}, "prompts", id="prompts"),
        pytest.param({"plan": {"workload": {"max_tokens": 99}}}, "workload.max_tokens", id="max-tokens"),
        pytest.param({"plan": {"workload": {"concurrency": [4]}}}, "workload.concurrency", id="concurrency"),
        pytest.param({"plan": {"sampling": {"temperature": 0.7}}}, "sampling.temperature", id="sampling"),
        pytest.param({"plan": {"engine": {"dtype": "float64"}}}, "engine.dtype", id="dtype"),
        pytest.param({"engine": {"model": {"target": {"weights": "ab"}}}}, "engine.model.target.weights", id="weights"),
    ],
)
def test_other_work_is_not_compared_on_any_machine(first: StoredRun, parts: dict[str, Any], name: str) -> None:
    for across_machines in (False, True):
        found = only(first, change(first, **parts), across_machines=across_machines)
        assert [(item.kind, item.name) for item in found.differences] == [("work", name)]
        assert not found.comparable and found.ratios is None and found.why_not == "they did not do the same work"


def test_another_machine_is_compared_only_when_asked_for(first: StoredRun) -> None:
    other = change(first, environment={"cpu_model": "Another CPU"})
    found = only(first, other)
    assert [(item.kind, item.name) for item in found.differences] == [("machine", "cpu_model")]
    assert not found.comparable and found.ratios is None and "--across-machines" in (found.why_not or "")
    asked = only(first, other, across_machines=True)
    assert asked.comparable and asked.ratios is not None and asked.differences == found.differences


def test_other_software_is_named_and_compared(first: StoredRun) -> None:
    found = only(first, change(first, environment={"os": "Another 1.0"}))
    assert [(item.kind, item.name) for item in found.differences] == [("software", "os")]
    assert found.comparable and found.ratios is not None


def test_a_target_whose_files_were_not_hashed_is_compared_by_its_name(first: StoredRun) -> None:
    unhashed = {"engine": {"model": {"target": None}}}
    assert only(first, change(first, **unhashed)).comparable
    found = only(first, change(first, **unhashed, plan={"engine": {"target": "another"}}))
    assert [(item.kind, item.name, item.other) for item in found.differences] == [("work", "engine.target", "another")]


def test_prompts_that_were_not_recorded_are_not_known_to_be_the_same(first: StoredRun) -> None:
    old = change(first, study={"prompts": None})
    (found,) = run_differences(old.evidence, old.evidence)
    assert (found.kind, found.name, found.first) == ("work", "prompts", "not recorded")


def test_without_requests_the_runs_are_comparable_and_have_no_ratios(first: StoredRun) -> None:
    found = only(first, StoredRun(name="other", evidence=first.evidence, records=None))
    assert found.comparable and found.ratios is None and "requests.jsonl" in (found.why_not or "")


def test_three_runs_are_each_held_against_the_first(first: StoredRun) -> None:
    other = change(first, "faraway", environment={"cpu_model": "Another CPU"})
    found = compare_runs([first, change(first, "near"), other])
    assert [(one.name, one.comparable) for one in found.others] == [("near", True), ("faraway", False)]
    assert not found.comparable


# --- ratios of made-up times ------------------------------------------------------------------------------------------


def line(
    prompt: str, block: str, latency: float, *, repeat: int = 0, concurrency: int = 1, last: int = 3
) -> dict[str, Any]:
    return {
        "prompt_id": prompt, "block": block, "repeat": repeat, "concurrency": concurrency, "latency_ms": latency,
        "chunks": [[1, 10.0], [2, 10.0 + latency]], "token_ids": [1, 2, last],
    }  # fmt: skip


def run_of(*times: tuple[str, float, float], repeats: int = 1) -> list[dict[str, Any]]:
    return [
        line(prompt, block, latency, repeat=repeat)
        for repeat in range(repeats)
        for prompt, target, speculative in times
        for block, latency in (("A1", target), ("B", speculative), ("A2", target))
    ]


def test_ratios_are_geometric_means_over_the_prompts_of_both() -> None:
    first = run_of(("p", 100.0, 50.0), ("q", 200.0, 80.0), ("r", 1.0, 1.0))
    other = run_of(("q", 100.0, 20.0), ("p", 50.0, 50.0), ("s", 1.0, 1.0), repeats=2)
    found = paired_ratios(first, other, 0.95)
    assert (found.prompts, found.identical) == (2, 2)
    for ratio in (found.target_only_latency, found.target_only_tpot, found.speculative_latency, found.speculative_tpot):
        assert ratio.estimate == pytest.approx(2.0)
    assert found.speculative_latency.low is not None and found.speculative_latency.low < 1
    assert found.speedup.estimate == pytest.approx(1.0)


def test_prompts_pair_at_the_same_concurrency_and_count_once() -> None:
    first = [line("p", "B", 100.0), line("p", "B", 400.0, concurrency=4), line("q", "B", 100.0)]
    other = [line("p", "B", 50.0), line("p", "B", 200.0, concurrency=4), line("q", "B", 200.0)]
    found = paired_ratios(first, other, 0.95)
    # p is twice as fast at both, q half as fast
    assert found.speculative_latency.estimate == pytest.approx(1.0) and found.prompts == 2


def test_other_tokens_are_counted() -> None:
    first = [line("p", "B", 1.0), line("q", "B", 1.0)]
    assert paired_ratios(first, [line("p", "B", 1.0), line("q", "B", 1.0, last=9)], 0.95).identical == 1


def test_what_no_run_measured_is_not_estimated() -> None:
    found = paired_ratios(run_of(("p", 1.0, 1.0)), run_of(("q", 1.0, 1.0)), 0.95)
    assert found.prompts == 0
    assert found.speedup == ev.Interval(estimate=None, low=None, high=None)
