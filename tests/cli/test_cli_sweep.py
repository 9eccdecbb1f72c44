"""``draftproof sweep``: a table, the lines of the next study, and one line where something is wrong or interrupted."""

import json
from functools import partial
from pathlib import Path

import pytest

from draftproof.study import sweep as module
from draftproof.study.study_file import load_plan
from support.command_line import Call
from support.repeating import SCRIPT, write_repeating
from support.scripted import WITHOUT_SAMPLED, write_study


@pytest.fixture
def sweep(draftproof: Call) -> Call:
    return partial(draftproof, "sweep")


def study_of(folder: Path, **script: float) -> Path:
    workload = {"prompts": str(write_repeating(folder, 6)), "max_tokens": 24}
    return write_study(folder, script={**SCRIPT, **script}, workload=workload, **WITHOUT_SAMPLED)


def test_the_fastest_arm_and_the_lines_of_its_study_are_printed(tmp_path: Path, sweep) -> None:
    options = ("--k", "1,4", "--batch", "1,2", "--out", tmp_path / "out", "--json", tmp_path / "copy.json")
    code, out, err = sweep(study_of(tmp_path), *options)
    assert (code, err) == (0, "")
    assert "1 at a time" in out and "2 at a time" in out and out.count("fastest: prompt-lookup k=4") == 2
    assert 'proposer = "prompt-lookup"' in out and "num_speculative_tokens = 4" in out and "concurrency = [2]" in out
    assert "the highest acceptance rate is that of prompt-lookup k=1, which is not the fastest" in out
    assert "A sweep explores and is no verdict." in out and "an arm is dropped when" in out
    assert load_plan(tmp_path / "out" / "study.toml").speculation == load_plan(tmp_path / "study.toml").speculation
    stored = json.loads((tmp_path / "copy.json").read_text(encoding="utf-8"))
    assert stored["environment"]["measurement"]["warmup_requests"] == 2
    assert stored == json.loads((tmp_path / "out" / "sweep.json").read_text(encoding="utf-8"))
    assert [item["num_speculative_tokens"] for item in stored["recommended"]] == [4, 4]


def test_where_nothing_is_faster_it_says_so_and_names_no_study(tmp_path: Path, sweep) -> None:
    code, out, _ = sweep(study_of(tmp_path, block_ms=400.0), "--k", "2", "--out", tmp_path / "out")
    assert (
        code == 0 and "fastest: target-only" in out and "[speculation]" not in out and "dropped after 6 prompts" in out
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--k", "1,x"], "--k = '1,x'"),
        (["--k", "0"], "num_speculative_tokens"),
        (["--batch", "-1"], "--batch = '-1'"),
        (["--proposers", "colour"], "'speculation.proposer' = 'colour'"),
    ],
)
def test_options_that_cannot_be_used_are_one_line_and_leave_nothing(
    tmp_path: Path, sweep, options: list[str], said: str
) -> None:
    code, out, err = sweep(study_of(tmp_path), *options, "--out", tmp_path / "out")
    assert (code, out) == (2, "") and err.count("\n") == 1 and said in err and not (tmp_path / "out").exists()


def test_servers_are_not_swept_since_they_choose_k_themselves(tmp_path: Path, sweep) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'name = "x"\n[engine]\nkind = "openai_http"\nbase_url = "http://127.0.0.1:1"\n[speculation]\nproposer = "server"\n'
        '[policy]\nmin_claim = "up_to_ties"\n'
    )
    code, out, err = sweep(study, "--out", tmp_path / "out")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "chosen when it is started" in err


def test_an_interruption_is_one_line_and_resume_goes_on(tmp_path: Path, sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    study, race = study_of(tmp_path), module._measure
    calls = 0

    def stopped(*inputs: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        race(*inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_measure", stopped)
    code, _, err = sweep(study, "--k", "1,4", "--out", tmp_path / "out")
    assert code == 130 and err.count("\n") == 1 and "--resume" in err
    code, out, _ = sweep(study, "--k", "1,4", "--out", tmp_path / "out", "--resume")
    assert code == 0 and "fastest: prompt-lookup k=4" in out
