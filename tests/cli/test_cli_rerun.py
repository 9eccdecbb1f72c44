"""``draftproof rerun``: a study is repeated by its stored plan into a folder of its own, and exit codes say how it came out."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from draftproof import evidence as ev
from draftproof.study import rerun as module
from draftproof.study.run import run_study
from support.command_line import Call
from support.scripted import WITHOUT_SAMPLED, Silent, Stopping, json_lines, make_plan


@pytest.fixture
def rerun(draftproof: Call) -> Call:
    return partial(draftproof, "rerun")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run_study(make_plan(folder, **WITHOUT_SAMPLED), folder / "out", resume=False, progress=Silent())
    return folder / "out"


@pytest.fixture
def first(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "first")


def edit(path: Path, change: Callable[[Any], None]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def test_a_study_is_repeated_beside_its_folder_and_reproduces(first: Path, rerun: Call, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    code, out, err = rerun(first, "--json", tmp_path / "copy.json")
    again = tmp_path / "first-rerun"
    assert (code, err) == (0, "") and out.splitlines()[-1] == f"Rerun: REPRODUCED   report: {again / 'report.html'}"
    assert out.index("first and first-rerun: comparable") < out.index("Reproduced?")
    assert {path.name for path in again.iterdir()} == {
        *before, "rerun.json", "report.html", "junit.xml", "summary.md",
    }  # fmt: skip
    tokens = [[line["token_ids"] for line in json_lines(folder / "requests.jsonl")] for folder in (first, again)]
    assert tokens[0] == tokens[1] and len(tokens[0]) == 18
    stored = json.loads((again / "rerun.json").read_text(encoding="utf-8"))
    assert stored == json.loads((tmp_path / "copy.json").read_text(encoding="utf-8"))
    assert (stored["outcome"], stored["reasons"]) == ("REPRODUCED", [])
    assert ev.load(again / "evidence.json").study.hash == ev.load(first / "evidence.json").study.hash
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before


def test_a_study_that_comes_out_differently_ends_with_12_and_says_where(first: Path, rerun: Call) -> None:
    lines = json_lines(first / "requests.jsonl")
    lines[1]["token_ids"][4] += 1
    (first / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    code, out, err = rerun(first / "evidence.json", "--out", first.parent / "new" / "again")
    assert (code, err) == (12, "") and "Rerun: NOT_REPRODUCED" in out.splitlines()[-1]
    assert f"prompt '{lines[1]['prompt_id']}' differs from token 5 on" in out


def test_another_machine_ends_with_11_and_is_named(first: Path, rerun: Call) -> None:
    edit(first / "evidence.json", lambda values: values["environment"].update(cpu_model="[red]Another CPU"))
    code, out, err = rerun(first)
    assert (code, err) == (11, "") and "Rerun: INCONCLUSIVE" in out.splitlines()[-1]
    assert "cpu_model (machine)" in out and "[red]Another CPU" in out


def another_policy(values: Any) -> None:
    values["decision"]["registered"] = False


def another_plan(values: Any) -> None:
    values["study"]["plan"]["workload"]["max_tokens"] = 5


def another_prompt(values: Any) -> None:
    path = Path(values["study"]["plan"]["workload"]["prompts"])
    copied = path.with_name("changed.jsonl")
    copied.write_text(path.read_text(encoding="utf-8").replace("red", "pink"), encoding="utf-8")
    values["study"]["plan"]["workload"]["prompts"] = str(copied)
    values["study"]["hash"] = module.digest_of(values["study"]["plan"])


def no_prompts(values: Any) -> None:
    values["study"]["plan"]["workload"]["prompts"] = "nowhere.jsonl"
    values["study"]["hash"] = module.digest_of(values["study"]["plan"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(another_policy, "decided by other thresholds", id="another-policy"),
        pytest.param(another_plan, "another plan than its hash", id="edited-plan"),
        pytest.param(another_prompt, "bring them back as they were", id="edited-prompts"),
        pytest.param(no_prompts, "'nowhere.jsonl' does not exist", id="no-prompts"),
    ],
)
def test_evidence_that_cannot_be_repeated_is_one_line_and_leaves_nothing(
    first: Path, rerun: Call, change: Callable[[Any], None], said: str
) -> None:
    edit(first / "evidence.json", change)
    code, out, err = rerun(first, "--json", first.parent / "found.json")
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1 and err.startswith("draftproof: ")
    assert [path.name for path in first.parent.iterdir()] == ["first"]


def test_the_studys_own_folder_is_refused_and_stays_as_it_was(first: Path, rerun: Call) -> None:
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    code, out, err = rerun(first, "--out", first.parent / "." / "first", "--resume")
    assert (code, out) == (2, "") and "the folder of the study itself" in err and err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before


def test_a_second_rerun_is_refused_and_an_interrupted_one_is_gone_on_with(first: Path, rerun: Call) -> None:
    again = first.with_name("first-rerun")
    plan = module.repeatable_plan(ev.load(first / "evidence.json"), first)
    with pytest.raises(KeyboardInterrupt):
        run_study(plan, again, resume=False, progress=Stopping("A/B/A", 2))
    code, out, err = rerun(first)
    assert (code, out) == (2, "") and "--resume" in err and err.count("\n") == 1
    code, out, _ = rerun(first, "--resume")
    assert code == 0 and "Rerun: REPRODUCED" in out and len(json_lines(again / "requests.jsonl")) == 18
