"""``draftproof export``: only what stands here is written, refusals in one line, nothing half-written."""

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from draftproof.environment import describe_environment
from draftproof.errors import RefusedError
from draftproof.gate.ladder import roll_back
from support.command_line import Call
from support.ladder import climb

HERE = describe_environment()
ELSEWHERE = HERE | {"cpu_model": "another"}
HF = {"kind": "hf", "target": "a/target"}


@pytest.fixture
def export(draftproof: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run ``draftproof export`` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(draftproof, "export")


def promote(name: str, **study: Any) -> int:
    """Put a rung on the ladder of this folder and return its number."""
    return climb(Path("ladder.sqlite"), name, **{"here": HERE, "environment": HERE, "engine": HF} | study)[1].id


def test_the_active_rung_is_printed_and_a_lower_one_can_be_named(export: Call) -> None:
    number = promote("first", engine={"kind": "native"})
    promote("second", engine={"kind": "native"}, batches=(4,))
    code, out, err = export("vllm", "--from-another-engine")
    assert code == 0 and "--max-num-seqs 4" in out and out.startswith("#!/bin/sh\n") and "NOT VERIFIED" in err
    code, out, _ = export("vllm", "--from-another-engine", "--rung", number)
    assert code == 0 and "--max-num-seqs 1" in out and f"rung {number} (batch 1, K 5)" in out


def test_the_text_and_what_it_is_of_are_written_to_files(export: Call) -> None:
    number = promote("first")
    assert export("hf", "--out", "run.py", "--json", "shown.json") == (0, "", "")
    text = Path("run.py").read_text(encoding="utf-8")
    shown = json.loads(Path("shown.json").read_text(encoding="utf-8"))
    assert shown == {
        "engine": "hf", "rung": number, "study": "ab" * 32, "evidence": "sha256 of first", "told": [], "text": text,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("study", "arguments", "code", "said"),
    [
        pytest.param({"verdict": "KEEP_TARGET_ONLY"}, ["hf"], 11, "no rung of ladder.sqlite stands", id="failed"),
        pytest.param({"here": ELSEWHERE, "environment": ELSEWHERE}, ["hf"], 11, "has expired: cpu_model", id="expired"),
        pytest.param(
            {}, ["hf", "--rung", 9], 11, "rung 9 of ladder.sqlite does not stand; allowed: 2", id="no-such-rung"
        ),
        pytest.param({"engine": {"kind": "native"}}, ["vllm"], 11, "does not carry over", id="another-engine"),
        pytest.param({}, ["tgi"], 2, "allowed: vllm, sglang, llamacpp, hf", id="unknown-engine"),
        pytest.param({}, ["hf", "--nodes", 2], 2, "cannot be shared by 2 nodes", id="nodes"),
        pytest.param({}, ["hf", "--tensor-parallel", 2], 2, "only vllm takes one", id="layout"),
        pytest.param({}, ["hf", "--ladder", "none.sqlite"], 2, "there is no ladder at none.sqlite", id="no-ladder"),
    ],
)
def test_a_refusal_is_one_line_and_writes_nothing(
    export: Call, study: dict[str, Any], arguments: list[Any], code: int, said: str
) -> None:
    with contextlib.suppress(RefusedError):
        promote("first", **study)
    before = Path("ladder.sqlite").read_bytes()
    got, out, err = export(*arguments, "--out", "written", "--json", "shown.json")
    assert (got, out) == (code, "") and said in err and err.count("\n") == 1 and err.startswith("draftproof: ")
    assert Path("ladder.sqlite").read_bytes() == before
    assert {path.name for path in Path().iterdir()} == {"ladder.sqlite"}


def test_what_was_rolled_back_is_not_exported(export: Call) -> None:
    number = promote("first")
    roll_back(Path("ladder.sqlite"), reason="odd answers")
    code, _, err = export("hf", "--rung", number)
    assert code == 11 and f"rung {number} of ladder.sqlite does not stand; allowed: none" in err


def test_a_model_that_only_draftproof_knows_is_written_as_its_folder(
    export: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.engines.resolve.resolve", lambda name, progress: Path("/models/demo"))
    promote("first", engine=HF | {"target": "SmolLM2-135M-Instruct"}, draft="~/draft")
    code, out, _ = export("hf")
    assert code == 0 and "target_name = '/models/demo'" in out
    assert f"draft_name = '{Path('~/draft').expanduser()}'" in out
