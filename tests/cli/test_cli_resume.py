"""A run that got Ctrl-C is gone on with by --resume, by another process."""

from collections import Counter
from pathlib import Path

from draftproof import evidence as ev
from support.command_line import Call
from support.processes import begin, interrupt_once
from support.scripted import WITHOUT_SAMPLED, json_lines, write_study


def test_an_interrupted_run_is_ended_by_resume(tmp_path: Path, draftproof: Call) -> None:
    # 24 prompts of 100 tokens in groups of 4: long enough to be interrupted, short enough to be ended
    tables = {"workload": {"max_tokens": 100, "concurrency": [4]}, **WITHOUT_SAMPLED}
    study, out = write_study(tmp_path, count=24, **tables), tmp_path / "out"
    requests = out / "requests.jsonl"
    # the first group has four prompts, each in three blocks
    code, said = interrupt_once(
        begin(study, out), lambda: requests.exists() and requests.read_bytes().count(b"\n") >= 12
    )
    assert code == 130 and said.count("\n") == 1 and "--resume" in said
    stored = json_lines(out / "requests.jsonl")
    assert 12 <= len(stored) < 72 and not (out / "evidence.json").exists()

    assert draftproof("run", study, "--out", out, "--resume").code == 0
    lines = json_lines(out / "requests.jsonl")
    seen = Counter((line["prompt_id"], line["block"]) for line in lines)
    assert len(seen) == 72 and set(seen.values()) == {1}
    # a group whose storing was cut is measured again; what was whole is kept
    whole = {line["prompt_id"] for line in stored if line["block"] == "A2"}
    assert len(whole) >= 4 and all(line in lines for line in stored if line["prompt_id"] in whole)
    evidence = ev.load(out / "evidence.json")
    assert evidence.decision.verdict == "ADOPT" and evidence.comparison is not None
    assert evidence.comparison.overall.n == 24
    assert (out / "report.html").exists() and (out / "junit.xml").exists()
