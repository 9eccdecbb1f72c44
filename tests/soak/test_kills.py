"""
A study may be killed at any moment: every finished request is on disk, and going on ends as an uninterrupted run.

`make soak` kills 50 times; the tests do it 5 times. The moment is a number of bytes on disk, so that it does not depend
on the machine's speed; half of the kills come a random time later, to hit what lies between two writes.
"""

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from draftproof import evidence as ev
from support.processes import WAIT_S, begin
from support.scripted import WITHOUT_SAMPLED, json_lines, write_study


def end(process: "subprocess.Popen[str]") -> None:
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, said


def tokens(out: Path) -> dict[tuple[Any, ...], list[int]]:
    records = json_lines(out / "requests.jsonl")
    found = {(r["prompt_id"], r["block"], r["repeat"], r["concurrency"]): r["token_ids"] for r in records}
    assert len(found) == len(records)
    return found


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Every line but the last must be whole, whenever the process died."""
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def finished(records: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """Prompts whose last block is stored, at each load."""
    return {(r["prompt_id"], r["repeat"], r["concurrency"]) for r in records if r["block"] == "A2"}


def test_a_study_that_is_killed_again_and_again_ends_as_an_uninterrupted_one(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    dice, kills = random.Random(8), pytestconfig.getoption("--soak-kills")
    tables = {"workload": {"max_tokens": 60, "concurrency": [1, 3]}, **WITHOUT_SAMPLED}
    study, reference = write_study(tmp_path, count=20, **tables), tmp_path / "reference"
    end(begin(study, reference))
    expected, size = tokens(reference), (reference / "requests.jsonl").stat().st_size
    killed = round_number = 0
    while killed < kills:
        out, round_number = tmp_path / f"out{round_number}", round_number + 1
        for moment in sorted(dice.uniform(0, size) for _ in range(min(5, kills - killed))):
            before = whole_lines(out / "requests.jsonl")
            process = begin(study, out, "--resume")
            until = time.monotonic() + WAIT_S
            stored = out / "requests.jsonl"
            while process.poll() is None and not (stored.exists() and stored.stat().st_size >= moment):
                assert time.monotonic() < until
                time.sleep(0.001)
            if dice.random() < 0.5:
                time.sleep(dice.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += 1
            after = whole_lines(stored)
            assert finished(before) <= finished(after)
        end(begin(study, out, "--resume"))
        assert tokens(out) == expected
        one, other = (ev.load(folder / "evidence.json") for folder in (reference, out))
        assert one.equivalence == other.equivalence and one.study.hash == other.study.hash
        assert one.decision.verdict == other.decision.verdict == "ADOPT"
        assert one.arms is not None and one.arms.speculative is not None
        assert other.arms is not None and other.arms.speculative is not None
        assert one.arms.speculative.acceptance == other.arms.speculative.acceptance
        assert one.arms.target_only.throughput.tokens == other.arms.target_only.throughput.tokens
        assert {path.name for path in out.iterdir()} == {path.name for path in reference.iterdir()}
