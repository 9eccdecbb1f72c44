import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftproof.environment import describe_environment, peak_rss_bytes, write_probe
from draftproof.errors import OutputError


def test_the_description_is_json_and_names_the_essentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(sys, "argv", ["/home/somebody/bin/draftproof", "run", "/home/somebody/study.toml"])
    described = json.loads(json.dumps(describe_environment()))
    assert described["memory_bytes"] > 0
    assert described["num_logical_cores"] >= 1
    assert described["packages"]["torch"] is not None
    assert described["thread_variables"]["OMP_NUM_THREADS"] == "2"
    assert described["command"] == ["draftproof", "run", "study.toml"]
    assert "somebody" not in json.dumps(described)


def test_torch_is_not_loaded() -> None:
    code = "import sys, draftproof.environment; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_peak_memory_is_in_bytes() -> None:
    assert 10 * 2**20 < peak_rss_bytes() < 2**42


def test_a_probe_creates_the_folder_and_leaves_it_empty(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    write_probe(folder)
    write_probe(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_in_the_way_is_refused_in_one_line(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OutputError, match="cannot be written") as caught:
        write_probe(tmp_path / "file" / below)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_probe_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("draftproof.environment.process.tempfile.TemporaryFile", refuse)
    with pytest.raises(OutputError, match="Permission denied"):
        write_probe(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        write_probe(tmp_path / "out")
    tmp_path.chmod(0o700)
