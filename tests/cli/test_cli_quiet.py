"""``--quiet``: one line on stdout, the verdict; what went wrong is still told on stderr."""

import shutil
from pathlib import Path

import pytest

from draftproof.cli import main as module
from support.command_line import Call
from support.scripted import WITHOUT_SAMPLED, write_study


@pytest.fixture
def quietly(draftproof: Call) -> Call:
    return lambda *arguments: draftproof(*arguments, "--quiet")


def test_each_command_prints_its_verdict_in_one_line(
    tmp_path: Path, quietly: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, out = write_study(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out"
    report = out / "report.html"
    assert quietly("run", study, "--out", out) == (0, f"Verdict: ADOPT   report: {report}\n", "")
    assert quietly("rerun", out) == (
        0, f"Rerun: REPRODUCED   report: {tmp_path / 'out-rerun' / 'report.html'}\n", "",
    )  # fmt: skip
    checked = tmp_path / "checked"
    assert quietly("verify", study, "--out", checked) == (0, f"Outcome: PASS   report: {checked / 'report.html'}\n", "")
    swept = tmp_path / "swept"
    said = f"Fastest: 1 at a time prompt-lookup k=2   result: {swept / 'sweep.json'}\n"
    assert quietly("sweep", study, "--out", swept, "--k", "1,2") == (0, said, "")
    # the shipped study needs a model; one in its place does not
    (tmp_path / "demo").mkdir()
    shutil.copy(study, tmp_path / "demo" / "demo.toml")
    monkeypatch.setattr(module, "files", lambda package: tmp_path / "demo")
    shown = tmp_path / "shown"
    assert quietly("demo", "--out", shown) == (0, f"Verdict: ADOPT   report: {shown / 'report.html'}\n", "")


def test_what_cannot_be_used_is_told_all_the_same(tmp_path: Path, quietly: Call) -> None:
    out = ("--out", tmp_path / "out")
    missing = tmp_path / "missing"
    for arguments in (("run", missing, *out), ("verify", missing, *out), ("sweep", missing, *out), ("rerun", missing)):
        code, said, err = quietly(*arguments)
        assert (code, said) == (2, "") and err.startswith("draftproof: cannot read ") and err.count("\n") == 1
