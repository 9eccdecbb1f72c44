"""The commands over the scripted engine: verdicts are exit codes, errors are one line, an interruption loses nothing."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer.main

from draftproof import __version__
from draftproof import evidence as ev
from draftproof.cli.main import app
from draftproof.report import words
from draftproof.study.study_file import load_plan
from support.command_line import Call, exit_code
from support.processes import begin, interrupt_once
from support.scripted import WITHOUT_SAMPLED, json_lines, toml, write_study

COMMANDS = (
    "demo",
    "run",
    "decide",
    "report",
    "check",
    "verify",
    "compare",
    "rerun",
    "predict",
    "sweep",
    "export",
    "import",
    "ladder",
)


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study with its reports."""
    folder = tmp_path_factory.mktemp("adopted")
    assert exit_code("run", write_study(folder), "--out", folder / "out") == 0
    return folder / "out"


# --- run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "verdict", "code"),
    [
        pytest.param({}, "ADOPT", 0, id="adopt"),
        pytest.param({"script": {"block_ms": 400.0}}, "KEEP_TARGET_ONLY", 10, id="keep"),
        pytest.param({"script": {"noise": 1.0}}, "INCONCLUSIVE", 11, id="inconclusive"),
        pytest.param({"script": {"defect": "block"}}, "ROLL_BACK", 12, id="roll-back"),
    ],
)
def test_run_ends_with_the_verdicts_code_and_every_report(
    tmp_path: Path, draftproof: Call, tables: dict[str, Any], verdict: str, code: int
) -> None:
    out = tmp_path / "new" / "out"
    done = draftproof("run", write_study(tmp_path, **tables, **WITHOUT_SAMPLED), "--out", out)
    assert (done.code, done.err) == (code, "")
    evidence = ev.load(out / "evidence.json")
    assert evidence.decision.verdict == verdict
    assert done.out.rstrip().endswith(f"Verdict: {verdict}   report: {out / 'report.html'}")
    assert verdict in done.out.splitlines()[3] and words.UNREGISTERED not in done.out
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    assert ElementTree.parse(out / "junit.xml").getroot().tag == "testsuites"
    assert {path.name for path in out.iterdir()} == {
        "lock.json", "requests.jsonl", "rounds.jsonl", "evidence.json", "report.html", "junit.xml", "summary.md", "study.toml",
    }  # fmt: skip
    assert load_plan(out / "study.toml") == load_plan(tmp_path / "study.toml")


def test_run_says_what_it_does_in_plain_lines_where_there_is_no_terminal(tmp_path: Path, draftproof: Call) -> None:
    done = draftproof("run", write_study(tmp_path, **WITHOUT_SAMPLED), "--out", tmp_path / "out")
    assert done.out.splitlines()[:2] == [
        "warm-up: 2 steps", "A/B/A, 1 at a time, repeat 1: 6 steps",
    ]  # fmt: skip
    assert "\x1b" not in done.out


def test_json_writes_the_evidence_a_second_time(tmp_path: Path, draftproof: Call) -> None:
    study = write_study(tmp_path, **WITHOUT_SAMPLED)
    assert draftproof("run", study, "--out", tmp_path / "out", "--json", tmp_path / "copy.json").code == 0
    assert (tmp_path / "copy.json").read_bytes() == (tmp_path / "out" / "evidence.json").read_bytes()


def test_a_second_run_is_refused_in_one_line_and_resume_shows_the_first(tmp_path: Path, draftproof: Call) -> None:
    study, out = write_study(tmp_path, script={"block_ms": 400.0}, **WITHOUT_SAMPLED), tmp_path / "out"
    first = draftproof("run", study, "--out", out)
    stored = (out / "evidence.json").read_bytes()
    refused = draftproof("run", study, "--out", out)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.count("\n") == 1 and "--resume" in refused.err and refused.err.startswith("draftproof: ")
    shown = draftproof("run", study, "--out", out, "--resume")
    assert shown.code == first.code == 10 and "holds this study, complete" in shown.out
    assert "warm-up" not in shown.out and (out / "evidence.json").read_bytes() == stored


def test_resume_with_another_plan_is_one_line_and_code_2(tmp_path: Path, draftproof: Call) -> None:
    draftproof("run", write_study(tmp_path, **WITHOUT_SAMPLED), "--out", tmp_path / "out")
    other = write_study(tmp_path, workload={"max_tokens": 5}, **WITHOUT_SAMPLED)
    done = draftproof("run", other, "--out", tmp_path / "out", "--resume")
    assert done.code == 2 and done.err.count("\n") == 1 and "another plan" in done.err


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        pytest.param({"engine": {"max_len": 16}}, "context limit is 16", id="prompt-too-long"),
        pytest.param({"sampled": {"words": ["red", "two words"]}}, "'two words' is 2 tokens", id="two-tokens"),
        pytest.param({"script": {"noise": -1.0}}, "script.noise = -1.0", id="script"),
        pytest.param({"engine": {"target": "a"}}, "'target' has no meaning for kind 'scripted'", id="meaningless"),
    ],
)
def test_a_study_that_cannot_be_used_is_one_line_and_leaves_nothing(
    tmp_path: Path, draftproof: Call, tables: dict[str, Any], said: str
) -> None:
    done = draftproof("run", write_study(tmp_path, **tables), "--out", tmp_path / "out")
    assert (done.code, done.out) == (2, "") and said in done.err and done.err.count("\n") == 1
    assert not list((tmp_path / "out").glob("**/*"))


# --- decide -----------------------------------------------------------------------------------------------------------


def policy_file(folder: Path, evidence: Path, **changes: Any) -> Path:
    locked = ev.load(evidence).study.plan["policy"]
    path = folder / "policy.toml"
    path.write_text(toml({key: value for key, value in {**locked, **changes}.items() if value is not None}))
    return path


def test_decide_with_the_locked_policy_repeats_the_verdict(tmp_path: Path, adopted: Path, draftproof: Call) -> None:
    evidence = adopted / "evidence.json"
    copy = tmp_path / "decided.json"
    done = draftproof("decide", evidence, policy_file(tmp_path, evidence), "--json", copy)
    assert (done.code, done.err) == (0, "") and words.UNREGISTERED not in done.out
    assert ev.load(copy) == ev.load(evidence)


@pytest.mark.parametrize(
    ("changes", "verdict", "code"),
    [
        pytest.param({"min_speedup": 1.06}, "ADOPT", 0, id="still-adopt"),
        pytest.param({"min_speedup": 100.0}, "KEEP_TARGET_ONLY", 10, id="keep"),
        pytest.param({"max_p95_latency_ratio": 1.0}, "INCONCLUSIVE", 11, id="inconclusive"),
        pytest.param({"max_peak_memory_bytes": 1}, "ROLL_BACK", 12, id="roll-back"),
    ],
)
def test_decide_with_another_policy_is_marked_as_not_registered(
    tmp_path: Path, adopted: Path, draftproof: Call, changes: dict[str, Any], verdict: str, code: int
) -> None:
    evidence = adopted / "evidence.json"
    before = evidence.read_bytes()
    done = draftproof(
        "decide", evidence, policy_file(tmp_path, evidence, **changes), "--json", tmp_path / "decided.json"
    )
    assert (done.code, done.err) == (code, "") and words.UNREGISTERED in done.out
    decided = ev.load(tmp_path / "decided.json")
    assert decided.decision.verdict == verdict and decided.decision.registered is False
    stored = ev.load(evidence)
    assert decided.model_copy(update={"decision": stored.decision}) == stored
    assert evidence.read_bytes() == before


@pytest.mark.parametrize(
    ("evidence", "policy", "said"),
    [
        pytest.param(None, "", "cannot read", id="no-evidence"),
        pytest.param("{", "", "is not JSON", id="no-json"),
        pytest.param("stored", None, "cannot read policy", id="no-policy"),
        pytest.param("stored", "colour = 1\n", "colour", id="unknown-key"),
    ],
)
def test_decide_refuses_in_one_line_what_it_cannot_read(
    tmp_path: Path, adopted: Path, draftproof: Call, evidence: str | None, policy: str | None, said: str
) -> None:
    for name, text in (("evidence.json", evidence), ("policy.toml", policy)):
        if text is not None:
            stored = (adopted / "evidence.json").read_text(encoding="utf-8")
            (tmp_path / name).write_text(stored if text == "stored" else text, encoding="utf-8")
    done = draftproof("decide", tmp_path / "evidence.json", tmp_path / "policy.toml")
    assert (done.code, done.out) == (2, "") and said in done.err and done.err.count("\n") == 1


# --- report -----------------------------------------------------------------------------------------------------------


def test_report_writes_the_same_page_again(adopted: Path, draftproof: Call) -> None:
    before = {name: (adopted / name).read_bytes() for name in ("report.html", "junit.xml", "summary.md")}
    (adopted / "report.html").write_text("stale", encoding="utf-8")
    (adopted / "junit.xml").unlink()
    done = draftproof("report", adopted / "evidence.json")
    assert (done.code, done.err) == (0, "")
    assert {name: (adopted / name).read_bytes() for name in before} == before
    assert done.out.replace("\n", "") == str(adopted / "report.html")


def test_report_into_another_folder_leaves_the_study_alone(tmp_path: Path, adopted: Path, draftproof: Call) -> None:
    before = {path.name: path.read_bytes() for path in adopted.iterdir()}
    done = draftproof("report", adopted / "evidence.json", "--out", tmp_path)
    assert done.code == 0
    assert (tmp_path / "report.html").read_bytes() == before["report.html"]
    assert (tmp_path / "junit.xml").read_bytes() == before["junit.xml"]
    assert {path.name: path.read_bytes() for path in adopted.iterdir()} == before


def test_report_copies_the_evidence_and_refuses_a_copy_it_cannot_write(
    tmp_path: Path, adopted: Path, draftproof: Call
) -> None:
    page = tmp_path / "report.html"
    done = draftproof("report", adopted / "evidence.json", "--out", tmp_path, "--json", tmp_path / "none" / "copy.json")
    assert done.code == 2 and done.err.count("\n") == 1 and not page.exists()
    done = draftproof("report", adopted / "evidence.json", "--out", tmp_path, "--json", tmp_path / "copy.json")
    assert done.code == 0 and page.exists() and ev.load(tmp_path / "copy.json") == ev.load(adopted / "evidence.json")


def test_report_needs_no_requests_and_refuses_spoiled_ones(tmp_path: Path, adopted: Path, draftproof: Call) -> None:
    (tmp_path / "evidence.json").write_bytes((adopted / "evidence.json").read_bytes())
    assert draftproof("report", tmp_path / "evidence.json").code == 0
    (tmp_path / "report.html").unlink()
    (tmp_path / "requests.jsonl").write_bytes((adopted / "requests.jsonl").read_bytes()[:-20])
    done = draftproof("report", tmp_path / "evidence.json")
    assert done.code == 2 and done.err.count("\n") == 1 and "requests.jsonl is not JSON lines" in done.err
    assert not (tmp_path / "report.html").exists()


# --- help -------------------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_these_are_all(draftproof: Call) -> None:
    group = typer.main.get_command(app)
    assert tuple(group.commands) == COMMANDS  # type: ignore[attr-defined]
    done = draftproof("--help")
    assert done.code == 0 and all(name in done.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_each_of_its_options_has_a_help_text(draftproof: Call, name: str) -> None:
    done = draftproof(name, "--help")
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    text = " ".join(done.out.split())
    assert done.code == 0 and command.help and command.help.split(".")[0] in text
    for parameter in command.params:
        if parameter.name != "help":
            assert parameter.help and parameter.help.split(",")[0].split(".")[0] in text


def test_the_commands_that_run_a_study_say_what_their_exit_codes_mean(draftproof: Call) -> None:
    for name in ("run", "demo"):
        text = " ".join(draftproof(name, "--help").out.split())
        assert all(f"{code} {verdict}" in text for verdict, code in ev.EXIT_CODES.items())


def test_the_version_is_printed(draftproof: Call) -> None:
    done = draftproof("--version")
    assert (done.code, done.out.strip()) == (0, __version__)


@pytest.mark.parametrize("arguments", [("run",), ("run", "a.toml"), ("decide", "a"), ("nothing",), ("run", "--what")])
def test_wrong_usage_is_code_2_and_says_so(draftproof: Call, arguments: tuple[str, ...]) -> None:
    done = draftproof(*arguments)
    assert done.code == 2 and done.err.startswith("draftproof: ") and done.err.count("\n") == 1 and "--help" in done.err


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_an_interrupted_run_says_so_in_one_line_and_leaves_whole_groups(tmp_path: Path) -> None:
    # far more sequences than there is time for: the run is in the sampled check when it is interrupted
    study, out = write_study(tmp_path, sampled={"sequences": 100_000}), tmp_path / "out"
    stored = out / "rounds.jsonl"
    code, said = interrupt_once(begin(study, out), stored.exists)
    assert code == 130
    assert said == f"draftproof: interrupted; what was measured is in {out}, --resume goes on with it\n"
    lines = json_lines(out / "requests.jsonl")
    assert [(line["prompt_id"], line["block"]) for line in lines] == [
        (f"p{number}", block) for number in range(6) for block in ("A1", "B", "A2")
    ]
    lock = json.loads((out / "lock.json").read_text(encoding="utf-8"))
    assert lock["plan"]["sampled"]["sequences"] == 100_000
    assert {path.name for path in out.iterdir()} == {"lock.json", "study.toml", "requests.jsonl", "rounds.jsonl"}
