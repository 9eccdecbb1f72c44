"""
What else the host did while a block was timed, and what to do about it.

Read before and after a block, never inside its time. It explains noise; whether a run is too noisy is for the A/A spread to say.
"""

import os
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from draftproof import evidence as ev
from draftproof.environment.cpu import cpu_mhz
from draftproof.environment.facts import Absent, read

Figures = dict[str, float | None]

# the kernel counts CPU time in ticks of 10 ms: shares of a shorter block would be guesses
MIN_BLOCK_S = 0.1
# from these on a figure is named as a cause
MAX_OTHER_CORES = 0.25
MAX_STEAL_SHARE = 0.02
MAX_SWITCHES_PER_S = 50.0
MIN_FREQUENCY_RATIO = 0.95
GROUP = ("repeat", "concurrency", "group", "block")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """
    The host at one moment; counters since some start. None is not shown here.

    Attributes
    ----------
    at_s : float
        Monotonic clock.
    busy_s, steal_s, total_s : float
        CPU time of all cores together: used by any process, taken by the hypervisor for others, and with idle time.
    own_s : float
        CPU time of this process and the ones it started.
    switches : int
        How often this process lost a core that it still wanted (involuntary context switches).
    load_average : float or None
        Over the last minute.
    cpu_mhz : float or None
    swapped_bytes : int or None
        Read from and written to swap by the whole host.
    """

    at_s: float
    busy_s: float
    steal_s: float
    total_s: float
    own_s: float
    switches: int
    load_average: float | None
    cpu_mhz: float | None
    swapped_bytes: int | None


def read_host(proc: Path = Path("/proc")) -> Reading:
    """Read the host now; takes a few ms."""
    times = psutil.cpu_times()._asdict()
    steal = times.get("steal", 0.0)
    # what a guest used is in "user" already
    total = sum(value for name, value in times.items() if not name.startswith("guest"))
    try:
        mhz: float | None = cpu_mhz()
    except Absent:
        mhz = None
    return Reading(
        at_s=time.monotonic(),
        busy_s=total - times["idle"] - times.get("iowait", 0.0) - steal,
        steal_s=steal,
        total_s=total,
        own_s=time.process_time() + _children_s(),
        switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        load_average=_load_average(),
        cpu_mhz=mhz,
        swapped_bytes=_swapped_bytes(proc),
    )


def between(before: Reading, after: Reading) -> Figures:
    """
    Return the figures of the block between two readings, as docs/metrics.md defines them.

    Shares and rates of a block shorter than `MIN_BLOCK_S` are None.
    """
    seconds, total = after.at_s - before.at_s, after.total_s - before.total_s
    known = seconds >= MIN_BLOCK_S and total > 0
    own = max(0.0, after.own_s - before.own_s) / seconds if known else None
    busy = max(0.0, after.busy_s - before.busy_s) / seconds if known else None
    swapped = None
    if before.swapped_bytes is not None and after.swapped_bytes is not None:
        swapped = float(after.swapped_bytes - before.swapped_bytes)
    figures = {
        "load_average": after.load_average,
        "own_cpu_cores": own,
        "other_cpu_cores": None if busy is None or own is None else max(0.0, busy - own),
        "steal_share": max(0.0, after.steal_s - before.steal_s) / total if known else None,
        "involuntary_switches_per_s": (after.switches - before.switches) / seconds if known else None,
        "cpu_mhz": after.cpu_mhz,
        "swapped_bytes": swapped,
    }
    return {name: None if value is None else round(value, 4) for name, value in figures.items()}


def summarise_noise(records: Sequence[Mapping[str, Any]], num_cores: int) -> ev.HostNoise | None:
    """
    Summarise the figures of all blocks.

    Parameters
    ----------
    records : sequence of request records, in the order of the run
        Those of one block follow each other and carry the same figures.
    num_cores : int

    Returns
    -------
    HostNoise or None
        None where no record carries figures.
    """
    blocks = [
        first["noise"]
        for _, group in groupby(records, key=lambda record: tuple(record.get(key) for key in GROUP))
        if (first := next(group)).get("noise")
    ]
    if not blocks:
        return None
    spreads = {
        name: ev.Spread(n=len(values), min=min(values), median=median(values), max=max(values)) if values else None
        for name in blocks[0]
        for values in [[block[name] for block in blocks if block.get(name) is not None]]
    }
    return ev.HostNoise(blocks=len(blocks), num_cores=num_cores, figures=spreads, advice=advise(blocks, num_cores))


def advise(blocks: Sequence[Mapping[str, float | None]], num_cores: int) -> list[str]:
    """Say in one sentence each what was seen that disturbs times, the likeliest cause first, and what to do."""

    def above(name: str, limit: float) -> tuple[float, str] | None:
        seen = [value for block in blocks if (value := block.get(name)) is not None and value > limit]
        return (max(seen), f"in {len(seen)} of {len(blocks)} blocks") if seen else None

    said: list[str] = []
    others = above("other_cpu_cores", MAX_OTHER_CORES)
    if others:
        said.append(
            f"other processes used up to {others[0]:.1f} of {num_cores} cores ({others[1]}): stop them, or give this run cores "
            "of its own (taskset) and [engine] threads for no more than those, since a pass waits for its slowest thread"
        )
    if found := above("steal_share", MAX_STEAL_SHARE):
        said.append(
            f"the hypervisor gave up to {found[0]:.0%} of the CPU time to other machines ({found[1]}): use a host that is not "
            "shared, or run again at another time"
        )
    if found := above("swapped_bytes", 0.0):
        said.append(
            f"the host swapped up to {found[0] / 2**20:.1f} MiB in a block ({found[1]}): free memory, or use a smaller model"
        )
    shown = [value for block in blocks if (value := block.get("cpu_mhz"))]
    if shown and min(shown) < MIN_FREQUENCY_RATIO * max(shown):
        said.append(
            f"the CPU frequency went from {min(shown):.0f} to {max(shown):.0f} MHz: fix it (performance governor), and "
            "look at cooling and power limits"
        )
    found = above("involuntary_switches_per_s", MAX_SWITCHES_PER_S)
    if found and not others:
        said.append(
            f"this process lost its core up to {found[0]:.0f} times a second ({found[1]}): set [engine] threads to at most the "
            "cores that it may use"
        )
    return said


def _children_s() -> float:
    """CPU time of the processes that this one started and of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        spent += times.user + times.system
    return float(spent)


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _swapped_bytes(proc: Path) -> int | None:
    try:
        pages = dict(line.split() for line in read(proc / "vmstat").splitlines())
    except Absent:
        return None
    if not {"pswpin", "pswpout"} <= pages.keys():
        return None
    return (int(pages["pswpin"]) + int(pages["pswpout"])) * resource.getpagesize()
