"""Bad input: one clear line on stderr, exit code 2, nothing half-written."""

import json
import subprocess
import sys

import pytest

STUDY = 'name = "x"\n'


def draftproof(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "draftproof.cli.main", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("study", "said"),
    [
        pytest.param(STUDY + "[engine]\ncolour = 1\n", "colour", id="unknown-key"),
        pytest.param(STUDY + "[speculation]\nnum_speculative_tokens = 0\n", "num_speculative_tokens", id="k-0"),
        pytest.param(STUDY + "[speculation]\nnum_speculative_tokens = 99\n", "num_speculative_tokens", id="k-99"),
        pytest.param(STUDY + '[engine]\ntarget = "/no/such/model"\n', "/no/such/model", id="missing-model"),
        pytest.param(STUDY + '[workload]\nprompts = "EMPTY"\n', "empty", id="empty-prompts"),
        pytest.param("name = [", "TOML", id="not-toml"),
    ],
)
def test_a_bad_study_is_one_line_and_code_2(tmp_path, study, said):
    (tmp_path / "empty.jsonl").write_text("")
    path = tmp_path / "study.toml"
    path.write_text(study.replace("EMPTY", str(tmp_path / "empty.jsonl")))
    done = draftproof("run", path, "--out", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert not list((tmp_path / "out").glob("*"))


def test_an_unwritable_output_folder_is_one_line_and_code_2(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "study.toml").write_text(STUDY)
    done = draftproof("run", tmp_path / "study.toml", "--out", tmp_path / "file" / "out")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_evidence_that_is_not_evidence_is_code_2(tmp_path):
    (tmp_path / "evidence.json").write_text(json.dumps({"schema_version": 1}))
    (tmp_path / "policy.toml").write_text("min_speedup = 1.1\n")
    done = draftproof("decide", tmp_path / "evidence.json", tmp_path / "policy.toml")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
