"""``draftproof import``: evidence that every reader takes, INCONCLUSIVE with its reasons, refusals that write nothing."""

import json
from pathlib import Path

import pytest

from draftproof import evidence as ev
from support.command_line import Call

FILES = Path(__file__).parents[1] / "measure" / "imported"


@pytest.fixture
def draftproof(draftproof: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return draftproof


def pair(tool: str) -> tuple[Path, Path]:
    return FILES / f"{tool}_target_only.json", FILES / f"{tool}_speculative.json"


@pytest.mark.parametrize("tool", ["vllm", "aiperf", "guidellm"])
def test_two_files_become_evidence_that_claims_nothing_of_the_output(draftproof: Call, tool: str) -> None:
    code, out, err = draftproof("import", *pair(tool), "--out", "run", "--json", "copy.json")
    assert (code, err) == (11, "") and "INCONCLUSIVE" in out
    evidence = ev.load(Path("run/evidence.json"))
    assert ev.load(Path("copy.json")) == evidence
    assert {path.name for path in Path("run").iterdir()} == {"evidence.json", "report.html", "junit.xml", "summary.md"}
    assert (evidence.equivalence, evidence.comparison) == (None, None)
    assert evidence.decision.verdict == "INCONCLUSIVE" and not evidence.decision.registered
    assert any("was not compared" in reason or "were not compared" in reason for reason in evidence.decision.reasons)
    found = {row["finding"]: row["result"] for row in evidence.check}
    assert found["mean latency, target-only over speculative"] == "1.600x"
    assert found["tokens per second, speculative over target-only"] == "1.600x"
    assert found["conditions of the two runs"] == "the same as far as the files say"
    assert any("file lacks" in line and "energy" in line for line in evidence.limits)


def test_other_commands_take_the_evidence_and_none_makes_more_of_it(draftproof: Call) -> None:
    for tool in ("vllm", "aiperf"):
        draftproof("import", *pair(tool), "--out", tool)
    Path("run").symlink_to("vllm")
    page = Path("run/report.html").read_bytes()
    assert draftproof("report", "run/evidence.json")[0] == 0 and Path("run/report.html").read_bytes() == page
    code, out, _ = draftproof("compare", "vllm", "aiperf")
    assert code == 11 and "they did not do the same work" in " ".join(out.split())
    Path("policy.toml").write_text("", encoding="utf-8")
    code, _, _ = draftproof("decide", "run/evidence.json", "policy.toml", "--json", "decided.json")
    assert code == 11 and not ev.load(Path("decided.json")).decision.registered
    code, _, err = draftproof("ladder", "promote", "run/evidence.json")
    assert code == 2 and "has no rung" in err


def test_other_conditions_are_named(draftproof: Call, tmp_path: Path) -> None:
    plain, drafting = pair("vllm")
    values = json.loads(drafting.read_text(encoding="utf-8")) | {"max_concurrency": 8}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(values), encoding="utf-8")
    draftproof("import", plain, other, "--out", "run")
    row = ev.load(Path("run/evidence.json")).check[0]
    assert row["result"] == "max_concurrency: 4 and 8"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        pytest.param(
            (FILES / "vllm_target_only.json", FILES / "aiperf_speculative.json"), "measure differently", id="tools"
        ),
        pytest.param((FILES / "vllm_speculative.json", FILES / "vllm_target_only.json"), "comes first", id="swapped"),
        pytest.param((FILES / "none.json", FILES / "vllm_speculative.json"), "cannot read", id="missing"),
    ],
)
def test_files_that_do_not_fit_are_one_line_and_leave_nothing(
    draftproof: Call, files: tuple[Path, Path], said: str
) -> None:
    code, out, err = draftproof("import", *files, "--out", "run", "--json", "copy.json")
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1
    assert not list(Path().iterdir())


def test_a_folder_that_holds_something_is_refused(draftproof: Call) -> None:
    Path("run").mkdir()
    Path("run/mine").write_text("mine", encoding="utf-8")
    code, _, err = draftproof("import", *pair("vllm"), "--out", "run")
    assert code == 2 and "run holds files" in err
    assert [path.name for path in Path("run").iterdir()] == ["mine"]
