"""Versions, settings and the command line. No path and no user name is recorded, and only listed variables are read."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from draftproof.environment.facts import Absent

PACKAGES = (
    *("draftproof", "torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "tensorflow", "vllm"),
    *("sglang", "text-generation", "text-generation-server", "llama-cpp-python"),
)
THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OMP_DYNAMIC", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY"),
    *("GOMP_SPINCOUNT", "KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_HW_SUBSET", "KMP_LIBRARY", "MKL_NUM_THREADS"),
    *("MKL_DYNAMIC", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "ONEDNN_MAX_CPU_ISA"),
    *("ONEDNN_DEFAULT_FPMATH_MODE", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ATEN_CPU_CAPABILITY"),
    *("TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG"),
    *("NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF"),
)
TIMEOUT_S = 5.0


def operating_system() -> str:
    """Return the kernel's name and release."""
    return f"{platform.system()} {platform.release()}"


def python() -> str:
    """Return the interpreter and its version."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def packages(names: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Return the version of each package; None is not installed."""
    return {name: _version_of(name) for name in names}


def thread_variables() -> dict[str, str]:
    """Return those of `THREAD_VARIABLES` that are set."""
    return {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}


def command() -> list[str]:
    """Return the command line, of every path only its last part."""
    return [Path(argument).name if "/" in argument else argument for argument in sys.argv]


def own_commit() -> str:
    """Return the commit of the checkout that this package is run from."""
    project = Path(__file__).resolve().parents[3]
    if not (project / ".git").exists() or not (project / "pyproject.toml").exists():
        raise Absent("draftproof is installed, not run from a checkout")
    return commit_of(project)


def commit_of(folder: Path | None) -> str:
    """Return the commit of the repository that a folder is in, with "-dirty" where a tracked file was changed."""
    if folder is None:
        raise Absent("no folder was given")
    question = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except FileNotFoundError:
        raise Absent("git is not on the PATH") from None
    except subprocess.TimeoutExpired:
        raise Absent(f"git did not answer in {TIMEOUT_S:g} s") from None
    except (OSError, subprocess.SubprocessError):
        raise Absent("not in a git repository with a commit") from None
    return answer.stdout.strip()


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
