"""``draftproof compare`` on stored studies: what differs comes first, and exit codes say whether they may be compared."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from draftproof.study.run import run_study
from support.command_line import Call
from support.scripted import WITHOUT_SAMPLED, Silent, make_plan


@pytest.fixture
def compare(draftproof: Call) -> Call:
    return partial(draftproof, "compare")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies that differ in K, and one with shorter answers."""
    folder = tmp_path_factory.mktemp("runs")
    changed: dict[str, dict[str, Any]] = {
        "two": {}, "three": {"speculation": {"num_speculative_tokens": 3}}, "short": {"workload": {"max_tokens": 5}},
    }  # fmt: skip
    for name, tables in changed.items():
        run_study(make_plan(folder, **WITHOUT_SAMPLED, **tables), folder / name, resume=False, progress=Silent())
    return folder


def test_comparable_runs_are_shown_side_by_side(runs: Path, compare: Call) -> None:
    code, out, err = compare(runs / "two", runs / "three" / "evidence.json")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "two and three: comparable"
    assert out.index("What differs") < out.index("Verdicts") < out.index("Target-only") < out.index("Paired by prompt")
    row = next(line for line in lines if "speculation.num_speculative_tokens" in line)
    assert "may differ" in row and row.split("│")[3:5] == [" 2   ", " 3     "]
    for name in ("accepted per round", "emitted per round"):
        row = [line for line in lines if name in line][-1]
        # the first run accepts everything, and so has no spread of what it accepts
        assert re.fullmatch(r"│ \D+│ [\d.]+ \(.+\) +│ [\d.]+ \([\d.]+ to [\d.]+\) +│", row), row
    assert "6 of 6 prompts" in out and out.count("ADOPT") == 2 and "acceptance rate" in out


def test_runs_of_other_work_end_with_11_and_are_shown_all_the_same(runs: Path, compare: Call) -> None:
    code, out, err = compare(runs / "two", runs / "short")
    assert (code, err) == (11, "")
    assert out.splitlines()[0].startswith(
        "two and short: not comparable; no ratios, since they did not do the same work"
    )
    assert "workload.max_tokens" in out and "must match" in out and "Verdicts" in out


def test_another_machine_ends_with_11_unless_asked_for(runs: Path, tmp_path: Path, compare: Call) -> None:
    evidence = json.loads((runs / "three" / "evidence.json").read_text())
    evidence["environment"]["cpu_model"] = "[red]Another CPU"
    (tmp_path / "evidence.json").write_text(json.dumps(evidence))
    code, out, _ = compare(runs / "two", tmp_path)
    assert code == 11 and "must match for times" in out and "[red]Another CPU" in out
    assert compare(runs / "two", tmp_path, "--across-machines")[0] == 0


def test_three_runs_make_three_columns_and_the_json_holds_every_difference(
    runs: Path, tmp_path: Path, compare: Call
) -> None:
    code, out, _ = compare(runs / "two", runs / "three", runs / "short", "--json", tmp_path / "found.json")
    assert code == 11
    lines = out.splitlines()
    header = lines[next(place for place, line in enumerate(lines) if line.startswith("Verdicts")) + 2]
    assert [cell.strip() for cell in header.split("┃")[2:5]] == ["two", "three", "short"]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["first"] == "two" and found["comparable"] is False
    assert [(one["name"], one["comparable"]) for one in found["others"]] == [("three", True), ("short", False)]
    assert found["others"][0]["ratios"]["prompts"] == 6 and found["others"][1]["ratios"] is None
    assert [item["name"] for item in found["others"][1]["differences"]] == ["workload.max_tokens"]


def test_what_cannot_be_used_is_one_line_and_code_2(runs: Path, tmp_path: Path, compare: Call) -> None:
    for arguments in ((runs / "two",), (runs / "two", tmp_path / "nothing"), ()):
        code, out, err = compare(*arguments, "--json", tmp_path / "found.json")
        assert (code, out) == (2, "") and err.startswith("draftproof: ") and err.count("\n") == 1
    assert not (tmp_path / "found.json").exists()
