"""What disturbed a block is told from two readings, and the advice names what was seen."""

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftproof.measure.noise import Reading, advise, between, read_host, summarise_noise

START = Reading(
    at_s=100.0,
    busy_s=1000.0,
    steal_s=10.0,
    total_s=5000.0,
    own_s=50.0,
    switches=70,
    load_average=0.5,
    cpu_mhz=2000.0,
    swapped_bytes=0,
)
QUIET: dict[str, float | None] = {
    "load_average": 1.0,
    "own_cpu_cores": 2.0,
    "other_cpu_cores": 0.01,
    "steal_share": 0.0,
    "involuntary_switches_per_s": 3.0,
    "cpu_mhz": 2000.0,
    "swapped_bytes": 0.0,
}


def after(seconds: float, **added: float) -> Reading:
    """The reading so many seconds later on two cores; ``added`` to single counters."""
    later = replace(START, at_s=START.at_s + seconds, total_s=START.total_s + 2 * seconds)
    return replace(later, **{name: getattr(later, name) + value for name, value in added.items()})


def test_the_figures_are_those_of_the_block() -> None:
    found = between(START, after(4.0, busy_s=7.2, own_s=4.0, steal_s=0.4, switches=20, swapped_bytes=8192))
    assert found == {
        "load_average": 0.5,
        "own_cpu_cores": 1.0,
        "other_cpu_cores": pytest.approx(0.8),
        "steal_share": pytest.approx(0.05),
        "involuntary_switches_per_s": 5.0,
        "cpu_mhz": 2000.0,
        "swapped_bytes": 8192.0,
    }


def test_a_block_shorter_than_the_kernels_ticks_can_tell_has_no_shares() -> None:
    found = between(START, after(0.05, busy_s=0.1, switches=1))
    shares = ("own_cpu_cores", "other_cpu_cores", "steal_share", "involuntary_switches_per_s")
    assert [found[name] for name in shares] == [None] * 4 and found["load_average"] == 0.5


def test_ticks_that_come_late_give_no_negative_share() -> None:
    assert between(START, after(1.0, busy_s=0.9, own_s=1.0))["other_cpu_cores"] == 0.0


def test_what_the_host_does_not_show_is_none() -> None:
    hidden = {"load_average": None, "cpu_mhz": None, "swapped_bytes": None}
    found = between(replace(START, **hidden), replace(after(1.0), **hidden))
    assert [name for name, value in found.items() if value is None] == ["load_average", "cpu_mhz", "swapped_bytes"]


def test_this_host_is_read(tmp_path: Path) -> None:
    before = read_host()
    total = sum(number * number for number in range(3_000_000))
    now = read_host()
    assert total > 0 and now.own_s > before.own_s and now.at_s > before.at_s
    assert now.total_s >= now.busy_s > 0 and now.total_s >= before.total_s and now.switches >= before.switches


def test_a_process_that_this_one_started_is_its_own() -> None:
    code = "import sys; sum(n * n for n in range(3_000_000)); print('done', flush=True); sys.stdin.read()"
    before = read_host()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "done\n"
        running = read_host()
        child.stdin.close()
    assert running.own_s > before.own_s
    assert read_host().own_s >= running.own_s


def test_swap_is_read_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 12\npswpin 3\npswpout 4\n")
    assert read_host(tmp_path).swapped_bytes == 7 * resource.getpagesize()
    (tmp_path / "vmstat").write_text("nr_free_pages 12\n")
    assert read_host(tmp_path).swapped_bytes is None
    assert read_host(tmp_path / "nothing").swapped_bytes is None


def test_a_quiet_host_needs_no_advice() -> None:
    assert advise([QUIET] * 9, 2) == []


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        pytest.param(
            {"other_cpu_cores": 0.8}, "other processes used up to 0.8 of 2 cores (in 1 of 3 blocks)", id="cpu"
        ),
        pytest.param({"steal_share": 0.07}, "the hypervisor gave up to 7% of the CPU time", id="steal"),
        pytest.param({"swapped_bytes": 2.0**21}, "the host swapped up to 2.0 MiB", id="swap"),
        pytest.param({"cpu_mhz": 1500.0}, "went from 1500 to 2000 MHz", id="frequency"),
        pytest.param({"involuntary_switches_per_s": 400.0}, "lost its core up to 400 times a second", id="switches"),
    ],
)
def test_advice_names_what_was_seen_and_what_to_do(figures: dict[str, float], said: str) -> None:
    (advice,) = advise([QUIET, {**QUIET, **figures}, QUIET], 2)
    assert said in advice and ": " in advice


def test_another_process_explains_lost_cores_and_comes_first() -> None:
    busy = {**QUIET, "other_cpu_cores": 1.0, "involuntary_switches_per_s": 400.0, "steal_share": 0.5}
    advice = advise([busy], 2)
    assert len(advice) == 2 and advice[0].startswith("other processes") and advice[1].startswith("the hypervisor")


def record(block: str, noise: dict[str, Any] | None, prompt: str = "p") -> dict[str, Any]:
    return {"prompt_id": prompt, "repeat": 0, "concurrency": 2, "block": block, "noise": noise}


def test_a_block_counts_once_whatever_the_requests_in_it() -> None:
    loud = {**QUIET, "load_average": 5.0}
    records = [
        *(record("A1", QUIET, name) for name in ("p", "q")),
        *(record("B", loud, name) for name in ("p", "q")),
        *(record("A2", QUIET, name) for name in ("p", "q")),
        record("A1", loud, "r"),
    ]
    found = summarise_noise(records, 2)
    assert found is not None and (found.blocks, found.num_cores, found.advice) == (4, 2, [])
    load = found.figures["load_average"]
    assert load is not None and (load.n, load.min, load.median, load.max) == (4, 1.0, 3.0, 5.0)


def test_what_no_block_shows_is_none_and_records_without_figures_give_nothing() -> None:
    found = summarise_noise([record("A1", {**QUIET, "cpu_mhz": None})], 2)
    assert found is not None and found.figures["cpu_mhz"] is None
    assert summarise_noise([record("A1", None), {**record("B", None), "noise": {}}], 2) is None
    assert summarise_noise([], 2) is None
