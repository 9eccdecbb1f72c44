"""All facts of one machine, gathered once per start of a study."""

import os
import platform
from pathlib import Path
from typing import Any

import psutil

from draftproof.environment import cpu, gpu, software
from draftproof.environment.facts import Absent, gather


def describe_environment(
    study: Path | None = None, *, proc: Path = Path("/proc"), sys_folder: Path = Path("/sys")
) -> dict[str, Any]:
    """
    Describe the machine and the software, as JSON values.

    Parameters
    ----------
    study : Path or None
        The study's folder: the commit of the repository that it is in is recorded.
    proc, sys_folder : Path
        Where the kernel shows what it knows.

    Returns
    -------
    dict
        What cannot be found out is None, and the table ``absent`` says why; in ``packages`` None is not installed. No path and
        no user name is recorded, and of the environment's variables only the listed ones.
    """
    return gather(
        {
            "cpu_model": lambda: cpu.cpu_model(proc),
            "cpu_flags": lambda: cpu.cpu_flags(proc),
            "cpu_caches": lambda: cpu.cpu_caches(sys_folder),
            "cpu_governor": lambda: cpu.cpu_governor(sys_folder),
            "cpu_mhz": cpu.cpu_mhz,
            "num_physical_cores": lambda: psutil.cpu_count(logical=False),
            "num_logical_cores": lambda: psutil.cpu_count(logical=True),
            "num_usable_cores": cpu.num_usable_cores,
            "memory_bytes": lambda: int(psutil.virtual_memory().total),
            "gpus": gpu.gpus,
            "gpu_driver": gpu.gpu_driver,
            "gpu_clocks": gpu.gpu_clocks,
            "os": software.operating_system,
            "machine": platform.machine,
            "python": software.python,
            "packages": software.packages,
            "thread_variables": software.thread_variables,
            "load_average": _load_average,
            "git_commit": software.own_commit,
            "study_git_commit": lambda: software.commit_of(study),
            "command": software.command,
        }
    )


def _load_average() -> list[float]:
    try:
        return list(os.getloadavg())
    except OSError:
        raise Absent("the host does not show it") from None
