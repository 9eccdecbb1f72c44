"""What the measurements were made on. No torch: engines supply device facts."""

import os
import platform
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from draftproof.errors import OutputError

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy", "scipy")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "KMP_AFFINITY", "CUDA_VISIBLE_DEVICES")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")


def describe_environment() -> dict[str, Any]:
    """Return hardware, system, versions, thread settings and load, as plain values."""
    cpu = _cpu_info()
    return {
        "cpu_model": cpu.get("model name", platform.processor() or platform.machine()),
        "cpu_flags": [flag for flag in FLAGS if flag in cpu.get("flags", cpu.get("Features", "")).split()],
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "os": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:2]],
    }


def peak_rss_bytes() -> int:
    """Return the process's largest resident memory so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def make_writable(folder: Path) -> None:
    """
    Create a folder if needed and make sure that files can be written in it.

    Raises
    ------
    OutputError
        It is a file, or it cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(
            f"output folder {folder} cannot be written: {error.strerror}; choose another with --out"
        ) from None


def _version(name: str) -> str | None:
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def _cpu_info() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
