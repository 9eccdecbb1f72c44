"""``draftproof verify``: exit codes 0, 11 and 12, a report, and one line for what cannot be checked."""

import json
from functools import partial
from pathlib import Path

import pytest

from draftproof.study.study_file import load_plan
from support.command_line import Call
from support.scripted import write_study


@pytest.fixture
def verify(draftproof: Call) -> Call:
    return partial(draftproof, "verify")


def test_pass_is_0_with_a_report_that_explains_itself(tmp_path: Path, verify: Call) -> None:
    study, out = write_study(tmp_path), tmp_path / "out"
    code, said, err = verify(study, "--out", out, "--json", tmp_path / "copy.json")
    assert (code, err) == (0, "") and "Outcome: PASS" in said and "PASS" in said.splitlines()[-1]
    assert json.loads((tmp_path / "copy.json").read_text(encoding="utf-8"))["outcome"] == "PASS"
    assert load_plan(out / "study.toml") == load_plan(study)
    page = (out / "report.html").read_text(encoding="utf-8")
    for text in ("PASS says:", "The accept rule by itself", "Score tests", "What was expected before the check"):
        assert text in page
    assert page.count("<svg") == 2 and "<script" not in page


def test_a_planted_defect_is_12_and_the_report_says_that_it_was_planted(tmp_path: Path, verify: Call) -> None:
    study, out = write_study(tmp_path), tmp_path / "out"
    code, said, _ = verify(study, "--out", out, "--plant", "always accept")
    assert code == 12 and "'always accept' was planted" in said
    assert "planted in the engine on purpose" in (out / "report.html").read_text(encoding="utf-8")


def test_too_little_is_11(tmp_path: Path, verify: Call) -> None:
    study = write_study(tmp_path, sampled={"min_stratum_tokens": 5000})
    code, said, _ = verify(study, "--out", tmp_path / "out")
    assert code == 11 and "5000 were registered" in said


def test_the_plan_is_shown_and_nothing_is_written(tmp_path: Path, verify: Call) -> None:
    study = write_study(tmp_path)
    before = sorted(tmp_path.iterdir())
    code, said, err = verify(study, "--plan-only")
    assert (code, err) == (0, "") and '"sha256"' in said and "sees deviations from" in said and "enough to pass" in said
    assert sorted(tmp_path.iterdir()) == before


def test_the_controls_are_listed(verify: Call) -> None:
    code, said, _ = verify("--list-controls")
    assert code == 0 and "always accept" in said and "lossless" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to check: give a study, or --target and --draft"),
        (("--target", "x", "--draft", "early-exit:many", "--out", "o"), "'many' is no layer"),
        (("--target", "x", "--draft", "prompt-lookup"), "--out is missing"),
        (
            ("--target", "x", "--draft", "prompt-lookup", "--num-speculative-tokens", 99, "--out", "o"),
            "num_speculative",
        ),
        (("{study}", "--target", "x", "--out", "o"), "--target and a study were both given"),
        (("{study}", "--out", "o", "--plant", "nothing"), "is no control; --list-controls"),
        (("{study}", "--out", "o", "--plant", "rejected tokens stay"), "cannot be planted in engine 'scripted'"),
        (("{study}", "--plan-only", "--plant", "always accept"), "--plant and --plan-only were both given"),
        (("{study}", "--plan-only", "--resume"), "--resume and --plan-only were both given"),
        (("missing.toml", "--out", "o"), "cannot read study missing.toml"),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    tmp_path: Path, verify: Call, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], message: str
) -> None:
    study = write_study(tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    given = [study if item == "{study}" else item for item in arguments]
    code, said, err = verify(*given)
    assert (code, said) == (2, "") and err.count("\n") == 1 and message in err
    assert sorted(tmp_path.iterdir()) == before
