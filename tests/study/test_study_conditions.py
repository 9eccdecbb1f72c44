"""The evidence says under which conditions times were taken, and a study goes on only under those it was begun with."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftproof import evidence as ev
from draftproof.errors import PlanError
from draftproof.report.html import render_html
from draftproof.study import conditions as module
from draftproof.study.run import run_study
from support.scripted import WITHOUT_SAMPLED, Silent, Stopping, json_lines, make_plan


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ev.Evidence]:
    folder = tmp_path_factory.mktemp("finished")
    plan = make_plan(
        folder, workload={"concurrency": [1, 3], "seed": 5}, measure={"warmup_requests": 3}, **WITHOUT_SAMPLED
    )
    return folder / "out", run_study(plan, folder / "out", resume=False, progress=Silent())[0]


def test_the_environment_is_whole(finished: tuple[Path, ev.Evidence]) -> None:
    environment = finished[1].environment
    assert {"cpu_model", "cpu_caches", "memory_bytes", "gpus", "packages", "command", "absent"} <= environment.keys()
    assert environment["engine"]["runtime"]["synchronisation"] == "none: the clock is virtual"
    measurement = environment["measurement"]
    assert (measurement["warmup_requests"], measurement["concurrency"]) == (3, [1, 3])
    assert measurement["seeds"] == {"workload": 5, "sampled_check": 1, "requests": 0}
    assert str(Path.home()) not in json.dumps(environment)


def test_the_lock_holds_the_machine(finished: tuple[Path, ev.Evidence]) -> None:
    out, evidence = finished
    (loaded,) = json.loads((out / "lock.json").read_text())["loaded"]
    assert loaded["machine"]["cpu_model"] == evidence.environment["cpu_model"]
    assert "memory_bytes" not in loaded["machine"]


def test_another_machine_does_not_go_on_with_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out = make_plan(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(plan, out, resume=False, progress=Stopping("A/B/A", 2))
    describe = module.describe_environment

    def elsewhere(*given: Any) -> dict[str, Any]:
        return {**describe(*given), "cpu_model": "Another CPU", "memory_bytes": 1, "load_average": [99.0] * 3}

    monkeypatch.setattr(module, "describe_environment", elsewhere)
    with pytest.raises(PlanError, match=r"begun with machine\.cpu_model = .* now it is Another CPU"):
        run_study(plan, out, resume=True, progress=Silent())
    monkeypatch.setattr(module, "describe_environment", lambda *given: {**elsewhere(*given), **describe(*given)})
    evidence, _ = run_study(plan, out, resume=True, progress=Silent())
    assert evidence.comparison is not None and evidence.comparison.noise is not None
    assert evidence.comparison.noise.blocks == 3 * 6


def test_each_request_has_the_figures_of_its_block_and_the_report_their_summary(
    finished: tuple[Path, ev.Evidence],
) -> None:
    out, evidence = finished
    lines = json_lines(out / "requests.jsonl")
    for block in ("A1", "B", "A2"):
        group = [line["noise"] for line in lines if line["block"] == block and line["concurrency"] == 3]
        assert len(group) == 6 and group[0] == group[1] == group[2]
    noise = evidence.comparison and evidence.comparison.noise
    # six groups of one, two groups of three
    assert noise is not None and noise.blocks == 3 * (6 + 2)
    assert noise.figures.keys() == lines[0]["noise"].keys()
    assert "What else the host did while it was measured" in render_html(evidence, None)
