"""``draftproof check``: a table, a line, and exit code 2 with one line on stderr if something is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Call, Done
from support.scripted import study_values

Check = Callable[..., Done]


@pytest.fixture
def check(draftproof: Call, tmp_path: Path) -> Check:
    """Check a study of given tables."""

    def call(*options: object, **tables: Any) -> Done:
        return draftproof("check", written(tmp_path, **tables), *options)

    return call


def written(folder: Path, **tables: Any) -> Path:
    values = study_values(folder, **tables)
    lines = [f"name = {json.dumps(values['name'])}"]
    for name in ("engine", "speculation", "workload"):
        inner = {key: value for key, value in values[name].items() if not isinstance(value, dict)}
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in inner.items())]
    lines += ["[engine.script]", *(f"{key} = {json.dumps(value)}" for key, value in values["engine"]["script"].items())]
    study = folder / "study.toml"
    study.write_text("\n".join(lines), encoding="utf-8")
    return study


def test_a_sound_study_prints_its_findings_and_ends_with_0(tmp_path: Path, check: Check) -> None:
    code, out, err = check("--json", tmp_path / "found.json")
    assert (code, err) == (0, "")
    assert "break-even" in out and "fine" in out and out.rstrip().endswith("findings: 0 refused, 0 warned")
    stored = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert stored["refused"] == [] and {"finding", "result", "status", "why", "values"} == set(stored["findings"][0])
    assert all(item["finding"] in out for item in stored["findings"])


def test_warnings_keep_code_0(tmp_path: Path, check: Check) -> None:
    code, out, err = check(script={"block_ms": 400.0})
    assert (code, err) == (0, "") and "none up to 1" in out and out.rstrip().endswith("0 refused, 1 warned")


def test_a_refusal_is_named_in_one_line_with_code_2(tmp_path: Path, check: Check) -> None:
    code, out, err = check("--json", tmp_path / "found.json", engine={"max_len": 16})
    assert code == 2 and err.count("\n") == 1
    assert err.startswith("draftproof: study ") and "is refused: context; " in err
    assert "context limit is 16" in " ".join(out.split())
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["refused"] == ["context"]


def test_a_study_that_cannot_be_read_has_no_table(tmp_path: Path, check: Check) -> None:
    code, out, err = check(engine={"colour": "red"})
    assert (code, out) == (2, "") and err.count("\n") == 1 and "'engine.colour' is not a known key" in err
