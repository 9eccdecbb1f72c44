"""The processor, as Linux shows it in /proc and /sys."""

import os
import platform
import re
import sys
from pathlib import Path

import psutil

from draftproof.environment.facts import Absent, read

CPU_FLAGS = (
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "asimdhp", "bf16", "i8mm", "sve", "sve2"),
)
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def cpu_model(proc: Path) -> str:
    """Return the name that the first core gives itself."""
    try:
        name = _first_core(proc).get("model name")
    except Absent:
        name = None
    if named := name or platform.processor():
        return named
    raise Absent("neither /proc/cpuinfo nor the platform names it")


def cpu_flags(proc: Path) -> list[str]:
    """Return which of `CPU_FLAGS`, those that matter to matrix products, the first core has."""
    core = _first_core(proc)
    flags = core.get("flags", core.get("Features"))
    if flags is None:
        raise Absent("/proc/cpuinfo has no line with flags")
    return [flag for flag in CPU_FLAGS if flag in flags.split()]


def cpu_caches(sys_folder: Path) -> list[dict[str, int | str]]:
    """Return the caches of core 0: level, type, bytes, and the cores that share it (such as "0-1")."""
    caches: list[dict[str, int | str]] = []
    for folder in sorted((sys_folder / "devices/system/cpu/cpu0/cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", read(folder / "size"))
        if size is not None:
            caches.append(
                {
                    "level": int(read(folder / "level")),
                    "type": read(folder / "type"),
                    "bytes": int(size[1]) * UNITS[size[2]],
                    "shared_by": read(folder / "shared_cpu_list"),
                }
            )
    if not caches:
        raise Absent("/sys shows no cache of core 0")
    return caches


def cpu_governor(sys_folder: Path) -> str:
    """Return the policy by which the kernel sets core 0's frequency."""
    return read(sys_folder / "devices/system/cpu/cpu0/cpufreq/scaling_governor")


def cpu_mhz() -> float:
    """Return the present frequency in MHz, a mean over cores. A virtual machine may show its nominal one."""
    try:
        shown = psutil.cpu_freq()
    except (OSError, RuntimeError, NotImplementedError):
        shown = None
    if shown is None or not shown.current:
        raise Absent("the host does not show it")
    return round(float(shown.current), 1)


def num_usable_cores() -> int:
    """Return how many cores this process may run on."""
    if sys.platform != "linux":
        raise Absent(f"{platform.system()} does not say which cores a process may use")
    return len(os.sched_getaffinity(0))


def _first_core(proc: Path) -> dict[str, str]:
    entries: dict[str, str] = {}
    for line in read(proc / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        entries.setdefault(name.strip(), value.strip())
    return entries
