"""What a host shows is recorded, and what it does not show is None with the reason: never invented."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from draftproof.environment import cpu, describe_environment, gpu, software
from draftproof.environment.facts import Absent, gather, read

CPUINFO = """processor\t: 0
model name\t: Some CPU @ 2.10GHz
cpu MHz\t\t: 2100.000
flags\t\t: fpu avx avx2 amx_tile xsave

processor\t: 1
model name\t: Another CPU
flags\t\t: fpu
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def cache(index: int, level: int, kind: str, size: str) -> dict[str, str]:
    folder = f"devices/system/cpu/cpu0/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/shared_cpu_list": "0-1\n",
    }


def test_the_first_core_names_the_processor_and_its_flags(tmp_path: Path) -> None:
    proc = write(tmp_path, {"cpuinfo": CPUINFO})
    assert cpu.cpu_model(proc) == "Some CPU @ 2.10GHz"
    assert cpu.cpu_flags(proc) == ["avx", "avx2", "amx_tile"]


def test_arm_calls_its_flags_features(tmp_path: Path) -> None:
    assert cpu.cpu_flags(write(tmp_path, {"cpuinfo": "Features\t: fp asimd bf16\n"})) == ["asimd", "bf16"]


def test_caches_are_in_bytes(tmp_path: Path) -> None:
    folder = write(tmp_path, {**cache(0, 1, "Data", "48K"), **cache(3, 3, "Unified", "300M")})
    assert cpu.cpu_caches(folder) == [
        {"level": 1, "type": "Data", "bytes": 48 * 1024, "shared_by": "0-1"},
        {"level": 3, "type": "Unified", "bytes": 300 * 2**20, "shared_by": "0-1"},
    ]


def test_a_host_that_shows_nothing_gives_nothing_and_says_why(tmp_path: Path) -> None:
    described = describe_environment(tmp_path, proc=tmp_path, sys_folder=tmp_path)
    for name in ("cpu_flags", "cpu_caches", "cpu_governor", "study_git_commit"):
        assert described[name] is None and described["absent"][name], name
    assert described["absent"]["study_git_commit"] == "not in a git repository with a commit"
    given = {name for name, value in described.items() if value is not None}
    assert not given & described["absent"].keys()
    assert json.loads(json.dumps(described)) == described


def test_one_fact_that_is_absent_costs_no_other() -> None:
    def fail() -> None:
        raise Absent("for a reason")

    assert gather({"a": fail, "b": lambda: 0}) == {"a": None, "b": 0, "absent": {"a": "for a reason"}}


def test_a_file_that_cannot_be_read_is_absent(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="No such file"):
        read(tmp_path / "nothing")


def test_only_listed_variables_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("KMP_BLOCKTIME", "0")
    described = describe_environment()
    assert described["thread_variables"]["KMP_BLOCKTIME"] == "0"
    assert described["thread_variables"].keys() <= set(software.THREAD_VARIABLES)
    assert "hunter2" not in json.dumps(described)


def test_a_package_that_is_not_installed_is_none() -> None:
    assert software.packages(["no-such-package-here", "numpy"])["no-such-package-here"] is None
    assert software.packages(["numpy"])["numpy"]


def test_the_commit_is_that_of_the_repository_around_a_folder(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        asked = ["git", "-C", str(tmp_path), *own, *arguments]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    with pytest.raises(Absent, match="with a commit"):
        software.commit_of(tmp_path)
    write(tmp_path, {"study.toml": "name = 'a'\n", "runs/one/evidence.json": "{}"})
    git("add", "study.toml")
    git("commit", "--quiet", "-m", "one")
    git("tag", "v1")
    commit = git("rev-parse", "HEAD")
    assert software.commit_of(tmp_path / "runs" / "one") == commit
    write(tmp_path, {"study.toml": "name = 'b'\n"})
    assert software.commit_of(tmp_path) == f"{commit}-dirty"


def fake_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: Iterable[str], code: int = 0) -> None:
    """Put a program of that name first on the PATH; it answers with the lines whatever it is asked."""
    told = "".join(f"echo '{line}'\n" for line in lines)
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{told}exit {code}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_each_gpu_is_described_and_what_it_does_not_say_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, ["A GPU, 81559, 1980, [N/A], 700.00", "A GPU, 81559, 1980, 2619, [N/A]"])
    assert gpu.gpus() == [
        {"name": "A GPU", "memory_mib": 81559.0, "max_sm_mhz": 1980.0, "max_memory_mhz": None, "power_limit_w": 700.0},
        {"name": "A GPU", "memory_mib": 81559.0, "max_sm_mhz": 1980.0, "max_memory_mhz": 2619.0, "power_limit_w": None},
    ]


def test_a_driver_is_a_version_and_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, ["570.133.20"])
    assert gpu.gpu_driver() == "570.133.20"


@pytest.mark.parametrize(
    ("lines", "code", "why"),
    [
        pytest.param(["No devices were found"], 6, "failed", id="fails"),
        pytest.param([], 0, "lists no GPU", id="none"),
        pytest.param(["only, two"], 0, "failed", id="another-table"),
    ],
)
def test_a_tool_that_does_not_help_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], code: int, why: str
) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, lines, code)
    with pytest.raises(Absent, match=why):
        gpu.gpus()


def test_a_tool_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(gpu, "TIMEOUT_S", 0.2)
    with pytest.raises(Absent, match="did not answer"):
        gpu.gpus()


def test_without_the_tool_there_is_no_gpu_to_describe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    described = describe_environment()
    assert described["gpus"] is described["gpu_driver"] is described["gpu_clocks"] is None
    assert described["absent"]["gpus"] == "nvidia-smi is not on the PATH"
