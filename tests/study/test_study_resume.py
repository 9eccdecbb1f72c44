"""A study that was stopped is gone on with: only what is missing runs again, and nothing is counted twice."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof import evidence as ev
from draftproof.engines.scripted import ScriptedEngine
from draftproof.measure.run import BLOCKS
from draftproof.study.plan import Plan
from draftproof.study.run import run_study
from support.scripted import WITHOUT_SAMPLED, Silent, Stopping, json_lines, make_plan

Records = list[dict[str, Any]]
Place = tuple[str, str, int, int]


def places(records: Records) -> list[Place]:
    return [(r["prompt_id"], r["block"], r["repeat"], r["concurrency"]) for r in records]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The (number of prompts, speculate) of every call to the engine's generate."""
    calls: list[tuple[int, bool]] = []
    generate = ScriptedEngine.generate

    def recorded(self: ScriptedEngine, prompts: Any, *rest: Any, **options: Any) -> Any:
        calls.append((len(prompts), options["speculate"]))
        return generate(self, prompts, *rest, **options)

    monkeypatch.setattr(ScriptedEngine, "generate", recorded)
    return calls


def before_the_blocks(plan: Plan) -> int:
    return plan.measure.warmup_requests


def begin_and_lose(plan: Plan, out: Path, spoil: Callable[[bytes], bytes]) -> tuple[ev.Evidence, Records, bytes]:
    """Run a study to its end, then leave on disk what a kill would have left."""
    whole, records = run_study(plan, out, resume=False, progress=Silent())
    path = out / "requests.jsonl"
    left = spoil(path.read_bytes())
    path.write_bytes(left)
    (out / "evidence.json").unlink()
    (out / "rounds.jsonl").unlink()
    return whole, records, left


def first_lines(count: int, extra_bytes: int = 0) -> Callable[[bytes], bytes]:
    def cut(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        return b"".join(lines[:count]) + lines[count][:extra_bytes]

    return cut


# five prompts, three at a time: lines 0-8 are the group of three (A1 A1 A1 B B B A2 A2 A2), 9-14 the group of two
@pytest.mark.parametrize(
    ("cut", "kept", "groups"),
    [
        pytest.param(first_lines(0), 0, [3, 2], id="nothing-left"),
        pytest.param(first_lines(2, 40), 0, [3, 2], id="inside-a-line-of-the-first-block"),
        pytest.param(first_lines(6), 0, [3, 2], id="before-the-last-block"),
        pytest.param(first_lines(7, 30), 3, [3, 2], id="one-prompt-of-the-group-is-whole"),
        pytest.param(first_lines(9), 9, [2], id="between-groups"),
        pytest.param(first_lines(9, 1), 9, [2], id="one-byte-of-the-next-group"),
        pytest.param(first_lines(13, 200), 9, [2], id="inside-the-last-group"),
        pytest.param(first_lines(14, 200), 12, [2], id="inside-the-last-line"),
        pytest.param(lambda content: content[:-1], 15, [], id="the-last-newline-is-missing"),
    ],
)
def test_only_missing_groups_run_again_and_each_request_is_there_once(
    tmp_path: Path, ran: list[tuple[int, bool]], cut: Callable[[bytes], bytes], kept: int, groups: list[int]
) -> None:
    plan = make_plan(tmp_path, count=5, workload={"concurrency": [3]}, **WITHOUT_SAMPLED)
    out = tmp_path / "out"
    whole, records, left = begin_and_lose(plan, out, cut)
    ran.clear()
    evidence, resumed = run_study(plan, out, resume=True, progress=Silent())
    assert ran[before_the_blocks(plan) :] == [(size, speculate) for size in groups for _, speculate in BLOCKS]
    assert json_lines(out / "requests.jsonl") == resumed
    assert Counter(places(resumed)) == Counter(places(records))
    # what had been stored whole is kept as it was: not measured again, not edited
    found = {place: record for place, record in zip(places(resumed), resumed, strict=True)}
    stored = [json.loads(line) for line in left.splitlines() if line.endswith(b"}")]
    complete = {place[0] for place in places(stored) if place[1] == "A2"}
    survivors = [record for record in stored if record["prompt_id"] in complete]
    assert len(survivors) == kept and [found[place] for place in places(survivors)] == survivors
    tokens = {place: record["token_ids"] for place, record in zip(places(records), records, strict=True)}
    assert {place: record["token_ids"] for place, record in found.items()} == tokens
    assert evidence.decision.verdict == whole.decision.verdict == "ADOPT"
    assert evidence.equivalence == whole.equivalence
    assert evidence.arms is not None and evidence.arms.speculative is not None
    assert evidence.arms.speculative.throughput.tokens == 5 * 12 and evidence.arms.target_only.latency.n == 10
    assert ev.load(out / "evidence.json") == evidence
    assert len(json_lines(out / "rounds.jsonl")) == sum(len(record["rounds"]) for record in resumed)


def test_repeats_and_concurrencies_that_are_stored_are_not_run_again(
    tmp_path: Path, ran: list[tuple[int, bool]]
) -> None:
    tables = {"workload": {"concurrency": [1, 2]}, "measure": {"repeats": 2}}
    plan = make_plan(tmp_path, count=3, **tables, **WITHOUT_SAMPLED)
    # per repeat: 9 lines one at a time, then 9 lines two at a time (a group of two and one of one)
    _, records, _ = begin_and_lose(plan, tmp_path / "out", first_lines(9 + 9 + 3 + 1))
    ran.clear()
    _, resumed = run_study(plan, tmp_path / "out", resume=True, progress=Silent())
    assert [size for size, _ in ran[before_the_blocks(plan) :]] == [1] * 6 + [2] * 3 + [1] * 3
    assert Counter(places(resumed)) == Counter(places(records)) and max(Counter(places(resumed)).values()) == 1


@pytest.fixture(scope="module", params=[1, 3])
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, ev.Evidence]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    plan = make_plan(folder, workload={"concurrency": [request.param]})
    return plan, run_study(plan, folder / "out", resume=False, progress=Silent())[0]


@pytest.mark.parametrize(
    ("stage", "after"),
    [
        pytest.param("warm-up", 1, id="warm-up"),
        pytest.param("A/B/A", 3, id="between-groups"),
        pytest.param("A/B/A", 6, id="after-the-last-group"),
        pytest.param("sampled", 40, id="sampled-check"),
        pytest.param("sampled", 160, id="controls"),
    ],
)
def test_an_interrupted_study_ends_as_an_uninterrupted_one(
    tmp_path: Path, uninterrupted: tuple[Plan, ev.Evidence], stage: str, after: int
) -> None:
    plan, whole = uninterrupted
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(plan, out, resume=False, progress=Stopping(stage, after))
    progress = Silent()
    evidence, resumed = run_study(plan, out, resume=True, progress=progress)
    assert progress.steps == progress.totals
    assert evidence.decision.verdict == whole.decision.verdict == "ADOPT"
    assert evidence.equivalence == whole.equivalence and evidence.study.hash == whole.study.hash
    assert set(Counter(places(resumed)).values()) == {1} and len(resumed) == 18
    assert json_lines(out / "requests.jsonl") == resumed


def test_a_study_may_be_interrupted_again_and_again(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, **WITHOUT_SAMPLED)
    out = tmp_path / "out"
    for after in range(1, 6):
        with pytest.raises(KeyboardInterrupt):
            run_study(plan, out, resume=after > 1, progress=Stopping("A/B/A", after))
        assert len(json_lines(out / "requests.jsonl")) == 3 * after
    evidence, resumed = run_study(plan, out, resume=True, progress=Silent())
    assert max(Counter(places(resumed)).values()) == 1 and len(resumed) == 18
    assert evidence.decision.verdict == "ADOPT"
    lock = json.loads((out / "lock.json").read_text(encoding="utf-8"))
    assert len(lock["loaded"]) == 6


def test_each_start_is_appended_to_the_lock_and_the_first_stays(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, **WITHOUT_SAMPLED)
    out = tmp_path / "out"
    begin_and_lose(plan, out, first_lines(3))
    before = json.loads((out / "lock.json").read_text(encoding="utf-8"))
    before["locked_at"] = "2001-02-03T04:05:06+00:00"
    (out / "lock.json").write_text(json.dumps(before), encoding="utf-8")
    evidence, _ = run_study(plan, out, resume=True, progress=Silent())
    after = json.loads((out / "lock.json").read_text(encoding="utf-8"))
    assert after["loaded"][:1] == before["loaded"] and len(after["loaded"]) == 2
    assert {key: after[key] for key in ("hash", "plan", "locked_at")} == {
        key: before[key] for key in ("hash", "plan", "locked_at")
    }
    assert evidence.study.locked_at == before["locked_at"]


def test_evidence_of_another_version_is_made_anew_from_the_stored_requests(
    tmp_path: Path, ran: list[tuple[int, bool]]
) -> None:
    plan = make_plan(tmp_path, **WITHOUT_SAMPLED)
    out = tmp_path / "out"
    whole, records = run_study(plan, out, resume=False, progress=Silent())
    ev.save(whole.model_copy(update={"draftproof_version": "0.0.0"}), out / "evidence.json")
    ran.clear()
    evidence, resumed = run_study(plan, out, resume=True, progress=Silent())
    assert evidence.draftproof_version == whole.draftproof_version and resumed == records
    assert len(ran) == before_the_blocks(plan)
