"""NVIDIA GPUs by their own tool. What torch knows of a GPU is the engine's to tell."""

import csv
import shutil
import subprocess
from typing import Any

from draftproof.environment.facts import Absent

TIMEOUT_S = 5.0
# our name, nvidia-smi's, and what makes a value of it
FIXED = {
    "name": "name",
    "memory_mib": "memory.total",
    "max_sm_mhz": "clocks.max.sm",
    "max_memory_mhz": "clocks.max.mem",
    "power_limit_w": "power.limit",
}
CLOCKS = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "memory_used_mib": "memory.used",
}


def gpus() -> list[dict[str, Any]]:
    """Return what does not change of each GPU by itself: name, memory, highest clocks, power limit."""
    return _query(FIXED)


def gpu_driver() -> str:
    """Return the version of the driver."""
    return str(_query({"driver": "driver_version"})[0]["driver"])


def gpu_clocks() -> list[dict[str, Any]]:
    """Return what each GPU does now: clocks, memory in use."""
    return _query(CLOCKS)


def parse(answer: str, names: list[str]) -> list[dict[str, Any]]:
    """
    Read nvidia-smi's table without header and units, one row per GPU.

    What a GPU does not say ("[N/A]", "[Not Supported]") is None.
    """
    rows = [[cell.strip() for cell in row] for row in csv.reader(answer.splitlines()) if row]
    return [dict(zip(names, map(_value, row), strict=True)) for row in rows]


def _query(fields: dict[str, str]) -> list[dict[str, Any]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise Absent("nvidia-smi is not on the PATH")
    command = [tool, f"--query-gpu={','.join(fields.values())}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
        found = parse(answer, list(fields))
    except subprocess.TimeoutExpired:
        raise Absent(f"nvidia-smi did not answer in {TIMEOUT_S:g} s") from None
    except (OSError, subprocess.SubprocessError, ValueError):
        raise Absent("nvidia-smi failed") from None
    if not found:
        raise Absent("nvidia-smi lists no GPU")
    return found


def _value(cell: str) -> str | float | None:
    if cell.startswith("["):
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
