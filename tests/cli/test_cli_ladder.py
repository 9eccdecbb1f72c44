"""``draftproof ladder``: up by evidence, down by a reason, exit codes of the verdicts, refusals in one line."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer.main

from draftproof import evidence as ev
from draftproof.cli.ladder import ladder_app
from draftproof.environment import describe_environment
from draftproof.gate.ladder import active
from support.command_line import Call
from support.ladder import make_evidence
from support.scripted import WITHOUT_SAMPLED, write_study

HERE = describe_environment()


@pytest.fixture
def ladder(draftproof: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run ``draftproof ladder`` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(draftproof, "ladder")


def study(name: str, **changes: Any) -> Path:
    path = Path(f"{name}.json")
    ev.save(make_evidence(**{"environment": HERE, "engine": {"kind": "scripted"}} | changes), path)
    return path


def states(path: Path) -> dict[str, str]:
    return {row["label"]: row["state"] for row in json.loads(path.read_text(encoding="utf-8"))["rungs"]}


def test_a_study_that_was_run_here_is_promoted_and_rolled_back(tmp_path: Path, ladder: Call, draftproof: Call) -> None:
    assert draftproof("run", write_study(tmp_path, **WITHOUT_SAMPLED), "--out", "out").code == 0
    code, out, err = ladder("promote", "out/evidence.json", "--note", "by hand", "--json", "shown.json")
    assert (code, err) == (0, "") and out.endswith("rung 2 (batch 1, K 2) stands; active: rung 2 (batch 1, K 2)\n")
    shown = json.loads(Path("shown.json").read_text(encoding="utf-8"))
    assert (shown["active"], states(Path("shown.json"))) == (2, {"target-only": "verified", "batch 1, K 2": "active"})
    assert shown["rungs"][1]["study_hash"] == ev.load(Path("out/evidence.json")).study.hash
    found = active(Path("ladder.sqlite"), HERE)
    assert found.rung is not None and found.rung.engine["script"]["spread"] == 0.1
    code, out, err = ladder("rollback", "--reason", "odd answers")
    assert (code, err) == (0, "") and out.endswith("rolled back; active: target-only\n") and "odd answers" in out


def test_status_shows_the_rungs_from_the_bottom_and_what_does_not_stand(ladder: Call) -> None:
    ladder("promote", study("one"))
    ladder("promote", study("two", batches=(4,)))
    assert ladder("promote", study("three", batches=(4,), confidence_threshold=0.3))[0] == 0
    ladder("rollback", "--reason", "too slow at noon", "--note", "the night shift")
    code, out, err = ladder("status", "--json", "shown.json")
    assert (code, err) == (0, "") and out.startswith("ladder.sqlite: scripted, draft-model\n")
    assert states(Path("shown.json")) == {
        "target-only": "verified",
        "batch 1, K 5": "verified",
        "batch 4, K 5": "active",
        "batch 4, dynamic K up to 5": "rolled back",
    }
    places = [
        out.index(text) for text in ("target-only", "batch 1, K 5", "batch 4, K 5", "dynamic K", "too slow at noon")
    ]
    assert places == sorted(places) and "a higher one is active" in out


def test_history_shows_every_event_and_writes_it(ladder: Call) -> None:
    ladder("promote", study("one"))
    ladder("promote", study("two", batches=(4,), verdict="ROLL_BACK"))
    ladder("rollback", "--to", "target-only", "--reason", "the end", "--note", "me")
    code, out, err = ladder("history", "--json", "events.json")
    assert (code, err) == (0, "")
    events = json.loads(Path("events.json").read_text(encoding="utf-8"))
    assert [event["kind"] for event in events] == ["created", "promoted", "failed", "rolled_back"]
    for line in ("promoted, batch 1, K 5, ADOPT", "failed, batch 4, K 5, ROLL_BACK", "rolled back, batch 1, K 5, from rung 2 up",
                 "why: the end", "note: me", f"evidence: {events[1]['evidence_sha256'][:12]} of study {'ab' * 6}"):  # fmt: skip
        assert f"{line}\n" in out
    assert all(event["at"] in out for event in events)


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        pytest.param({"verdict": "KEEP_TARGET_ONLY"}, 10, "the verdict is KEEP_TARGET_ONLY", id="keep"),
        pytest.param({"verdict": "INCONCLUSIVE"}, 11, "the verdict is INCONCLUSIVE", id="inconclusive"),
        pytest.param({"verdict": "ROLL_BACK"}, 12, "the verdict is ROLL_BACK", id="roll-back"),
        pytest.param({"registered": False}, 11, "another policy", id="not-registered"),
        pytest.param({"confidence_threshold": 0.3}, 11, "needs a verified rung with a fixed K", id="skips"),
        pytest.param({"environment": HERE | {"python": "CPython 2"}}, 11, "python (CPython 2, now", id="elsewhere"),
    ],
)
def test_a_refusal_is_one_line_with_the_verdicts_code_and_still_shows_the_ladder(
    ladder: Call, changes: dict[str, Any], code: int, said: str
) -> None:
    done, out, err = ladder("promote", study("one", **changes), "--json", "shown.json")
    assert done == code and said in err and err.count("\n") == 1 and err.endswith("; active: target-only\n")
    assert "target-only" in out and json.loads(Path("shown.json").read_text(encoding="utf-8"))["active"] == 0


def test_a_changed_machine_takes_the_rungs_down_when_the_status_is_asked_for(
    ladder: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    ladder("promote", study("one"))
    changed = HERE | {"gpu_driver": "580", "packages": HERE["packages"] | {"torch": "9.9"}}
    monkeypatch.setattr("draftproof.environment.describe_environment", lambda: changed)
    code, out, err = ladder("status", "--json", "shown.json")
    assert (code, err) == (0, "") and f"packages.torch ({HERE['packages']['torch']}, now 9.9)" in " ".join(out.split())
    assert states(Path("shown.json")) == {"target-only": "active", "batch 1, K 5": "expired"}


def test_a_model_whose_files_changed_takes_its_rung_down(ladder: Call) -> None:
    model = Path("target")
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    changes: dict[str, Any] = {
        "engine": {"kind": "native", "target": str(model)},
        "proposer": "prompt-lookup",
        "draft": None,
    }
    assert ladder("promote", study("one", **changes))[0] == 0
    assert "batch 1, K 5" in ladder("status")[1] and active(Path("ladder.sqlite"), HERE).number == 2
    (model / "model.safetensors").write_bytes(b"others")
    _, out, _ = ladder("status", "--json", "shown.json")
    assert "models.target.weights (" in " ".join(out.split())
    assert states(Path("shown.json")) == {"target-only": "active", "batch 1, K 5": "expired"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["status"], "there is no ladder at ladder.sqlite", id="status"),
        pytest.param(["history", "--ladder", "none/x"], "there is no ladder at none/x", id="history"),
        pytest.param(["rollback", "--reason", "x"], "there is no ladder at ladder.sqlite", id="rollback"),
        pytest.param(["rollback"], "'--reason'", id="no-reason"),
        pytest.param(
            ["rollback", "--reason", "x", "--to", "two"],
            "--to two is no rung; allowed: target-only, or a number",
            id="to",
        ),
        pytest.param(["promote", "none.json"], "cannot read none.json", id="no-evidence"),
        pytest.param(["promote", "text"], "text is not JSON", id="no-json"),
        pytest.param(["promote", "several.json"], "measured concurrency 1, 4", id="several"),
        pytest.param(
            ["promote", "several.json", "--concurrency", "2"], "did not measure concurrency 2; allowed: 1, 4", id="2"
        ),
        pytest.param(["status", "--ladder", "text"], "text is no ladder: the file is not a database", id="text"),
        pytest.param(
            ["promote", "one.json", "--ladder", "other"], "other is a database of another program", id="other"
        ),
        pytest.param(["climb"], "No such command 'climb'", id="unknown"),
    ],
)
def test_bad_input_is_one_line_and_code_2_and_makes_no_ladder(ladder: Call, arguments: list[str], said: str) -> None:
    Path("text").write_text("no ladder " * 100, encoding="utf-8")
    with closing(sqlite3.connect("other")) as other:
        other.execute("CREATE TABLE t (x)")
    study("one")
    study("several", batches=(1, 4))
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    code, out, err = ladder(*arguments)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1 and err.startswith("draftproof: ")
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def test_several_concurrencies_need_a_choice(ladder: Call) -> None:
    code, out, _ = ladder("promote", study("several", batches=(1, 4)), "--concurrency", 4)
    assert code == 0 and "rung 2 (batch 4, K 5) stands" in out


@pytest.mark.parametrize("name", ["status", "promote", "rollback", "history"])
def test_every_command_and_each_of_its_options_has_a_help_text(ladder: Call, name: str) -> None:
    command = typer.main.get_command(ladder_app).commands[name]  # type: ignore[attr-defined]
    code, out, _ = ladder(name, "--help")
    assert code == 0 and command.help and command.help.split(".")[0] in " ".join(out.split())
    assert "--json" in out and "--ladder" in out
    assert all(parameter.help for parameter in command.params if parameter.name != "help")


def test_the_help_of_promote_names_its_exit_codes(ladder: Call) -> None:
    assert "10 to 12, or 11 for ADOPT" in " ".join(ladder("promote", "--help")[1].split())


def test_the_gate_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import draftproof.cli.ladder, draftproof.gate.promote, draftproof.gate.model_files, sys;"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
