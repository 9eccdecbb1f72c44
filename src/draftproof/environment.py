"""The machine a run happened on, and whether its output folder can be written. Knows no model; does not load torch."""

import contextlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from draftproof.errors import OutputError

PACKAGES = ("draftproof", "torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy")
CPU_FLAGS = (
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "asimdhp", "bf16", "i8mm", "sve", "sve2"),
)
THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
    *("KMP_BLOCKTIME", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_ENABLE_INSTRUCTIONS", "ATEN_CPU_CAPABILITY"),
    *("TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG"),
)


def describe_environment() -> dict[str, Any]:
    """
    Describe the machine and the software, as JSON values.

    Returns
    -------
    dict
        What cannot be found out is None. No path and no user name is recorded.
    """
    cpu_model, cpu_flags = _describe_cpu()
    return {
        "cpu_model": cpu_model,
        "cpu_flags": cpu_flags,
        "num_physical_cores": psutil.cpu_count(logical=False),
        "num_logical_cores": psutil.cpu_count(logical=True),
        "num_usable_cores": _num_usable_cores(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: _version_of(name) for name in PACKAGES},
        "thread_variables": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        "load_average": _load_average(),
        "git_commit": _git_commit(),
        "command": [Path(argument).name if "/" in argument else argument for argument in sys.argv],
    }


def peak_rss_bytes() -> int:
    """Return the most memory this process has held at once, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def write_probe(folder: Path) -> None:
    """
    Create `folder` and make sure that files can be written into it.

    Raises
    ------
    OutputError
        It cannot be created or written. Folders made on the way are removed again.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"draftproof")
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise OutputError(
            f"output folder '{folder}' cannot be written: {why}; choose a folder that you may write to"
        ) from None


def _describe_cpu() -> tuple[str | None, list[str] | None]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None, None
    entries: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        entries.setdefault(name.strip(), value.strip())
    flags = entries.get("flags", entries.get("Features"))
    found = None if flags is None else [flag for flag in CPU_FLAGS if flag in flags.split()]
    return entries.get("model name") or platform.processor() or None, found


def _num_usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else None


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _load_average() -> list[float] | None:
    try:
        return list(os.getloadavg())
    except OSError:
        return None


def _git_commit() -> str | None:
    """Return the commit of the checkout this package is run from, or None when it is installed."""
    project = Path(__file__).resolve().parents[2]
    if not (project / ".git").exists() or not (project / "pyproject.toml").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(project), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
