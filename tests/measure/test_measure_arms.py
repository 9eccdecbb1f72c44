"""What an arm is summed up as: throughput, goodput, where the time went, memory by part, energy; none of it from nothing."""

from pathlib import Path
from typing import Any

import pytest

from draftproof.measure import gauge as gauge_file
from draftproof.measure.arms import summarise_arms
from draftproof.measure.gauge import Gauge
from draftproof.measure.goodput import goodput, meets
from draftproof.measure.time_split import time_split

MIB = 2**20
PARTS = {
    "target_weights": 500 * MIB, "target_cache": 40 * MIB, "draft_weights": 100 * MIB, "draft_cache": 10 * MIB,
}  # fmt: skip


def request(block: str = "A1", prompt: str = "p", concurrency: int = 1, **changes: Any) -> dict[str, Any]:
    """Ten tokens: the first after 100 ms, then three chunks of three, 30 ms apart."""
    return {
        "arm": "speculative" if block == "B" else "target_only", "block": block, "prompt_id": prompt, "category": "c",
        "repeat": 0, "concurrency": concurrency, "token_ids": list(range(10)), "latency_ms": 190.0, "busy_seconds": 0.25,
        "chunks": [[1, 100.0], [3, 130.0], [3, 160.0], [3, 190.0]], "rounds": [], "error": None, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({}, True),
        ({"ttft_ms": 100.0}, True),
        ({"ttft_ms": 99.0}, False),
        ({"tpot_ms": 10.0}, True),
        ({"tpot_ms": 9.9}, False),
        ({"latency_ms": 189.0}, False),
        ({"ttft_ms": 100.0, "tpot_ms": 10.0, "latency_ms": 190.0}, True),
        ({"ttft_ms": 100.0, "tpot_ms": 1.0, "latency_ms": 190.0}, False),
    ],
)
def test_a_good_request_meets_every_limit(limits: dict[str, float], good: bool) -> None:
    assert meets(request(), limits) is good


def test_a_request_of_one_chunk_has_no_time_per_token_to_miss() -> None:
    assert meets(request(chunks=[[10, 190.0]]), {"tpot_ms": 0.1})


def test_goodput_counts_good_requests_by_the_second() -> None:
    slow = request(latency_ms=500.0, chunks=[[10, 500.0]])
    found = goodput([request(), request(), slow], 0.5, {"latency_ms": 200.0})
    assert found is not None and (found.requests, found.share, found.per_second) == (2, pytest.approx(2 / 3), 4.0)
    assert goodput([request()], 0.5, {}) is None


def summarised(records: list[dict[str, Any]], gauge: Gauge | None = None, **limits: float) -> Any:
    return summarise_arms(records, PARTS, 3, gauge or Gauge(), limits)


def test_throughput_is_over_the_arms_seconds() -> None:
    arms = summarised([request("A1"), request("B", busy_seconds=0.125), request("A2")], latency_ms=190.0)
    before, after = arms.target_only.throughput, arms.speculative.throughput
    assert (before.tokens_per_second, before.tokens_per_minute, before.requests_per_second) == (40.0, 2400.0, 4.0)
    assert (after.tokens_per_second, after.requests_per_second, after.goodput.per_second) == (80.0, 8.0, 8.0)


def test_each_load_has_arms_of_its_own() -> None:
    records = [request(block, concurrency=level, busy_seconds=level) for level in (1, 8) for block in ("A1", "B", "A2")]
    arms = summarised(records)
    assert {name: part.speculative.throughput.seconds for name, part in arms.by_concurrency.items()} == {"1": 1, "8": 8}
    assert summarised(records[:3]).by_concurrency == {}


def test_a_hundred_requests_have_no_p99_not_even_of_their_gaps() -> None:
    arm = summarised([request("B", f"p{number}") for number in range(100)]).speculative
    assert (arm.itl.n, arm.icl.n, arm.latency.n, arm.itl.prompts) == (900, 300, 100, 100)
    for times in (arm.latency, arm.ttft, arm.itl, arm.icl, arm.tpot):
        assert times.p95.estimate is not None and times.p99.estimate is None
    assert (arm.itl.p95.estimate, arm.icl.p95.estimate, arm.tpot.p50.estimate) == pytest.approx((10.0, 30.0, 10.0))


def part_of_round(rows: int, **times: float | None) -> dict[str, Any]:
    values = {"propose_ms": 8.0, "score_ms": 40.0, "sample_ms": 4.0, "prefill_ms": 0.0, "num_rows": rows}
    values |= {"num_proposed": 0, "num_accepted": 0, "emitted": 1, "next_token": "target"}
    return values | times


def test_the_time_split_counts_a_round_once_whatever_its_batch() -> None:
    """Two requests in one round of 48 ms after 20 ms of prefill, then one of them alone; 16 ms of 132 were the host's."""
    both, alone = part_of_round(2, prefill_ms=20.0), part_of_round(1)
    records = [request(rounds=[both], busy_seconds=0.066), request(rounds=[both, alone], busy_seconds=0.066)]
    assert time_split(records) == pytest.approx(
        {"prefill": 20.0, "propose": 16.0, "score": 72.0, "sample": 8.0, "host": 16.0}
    )
    assert time_split([request()]) == {}


def test_idle_time_is_not_the_hosts_and_an_unsplit_round_is_all_score() -> None:
    record = request(rounds=[part_of_round(1, sample_ms=None)], busy_seconds=1.0, idle_seconds=0.95)
    assert time_split([record]) == pytest.approx(
        {"prefill": 0.0, "propose": 8.0, "score": 40.0, "sample": 0.0, "host": 2.0}
    )


def test_memory_is_told_by_part_for_each_arm() -> None:
    gauge = Gauge()
    gauge.before_loading_bytes = 300 * MIB
    peaks = {"A1": 980 * MIB, "B": 1000 * MIB, "A2": 990 * MIB}
    arms = summarised([request(block, peak_bytes=peak) for block, peak in peaks.items()], gauge)
    before, after = arms.target_only.memory, arms.speculative.memory
    assert (before.weights, before.caches, before.peak, before.working) == (500 * MIB, 40 * MIB, 990 * MIB, 40 * MIB)
    assert (after.weights, after.caches, after.peak, after.working) == (600 * MIB, 50 * MIB, 1000 * MIB, 50 * MIB)
    assert before.peak_rss == after.peak_rss == gauge.process_peak_bytes


def test_working_memory_is_never_below_nothing() -> None:
    """Weights that are mapped and not yet read make the process smaller than its parts."""
    memory = summarised([request("B", peak_bytes=1 * MIB)]).speculative.memory
    assert memory.working is None and "on disk" in memory.why


def test_energy_is_none_unless_every_request_has_it() -> None:
    gauge = Gauge()
    arms = summarised([request("A1", joules=5.0), request("A2", joules=7.0), request("B", joules=None)], gauge)
    assert (arms.target_only.energy.joules, arms.target_only.energy.joules_per_token) == (12.0, 0.6)
    assert arms.speculative.energy.joules is None and arms.speculative.energy.source == gauge.energy_source


def test_the_peak_of_a_block_is_its_own_and_the_processes_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    gauge = Gauge()
    with gauge.opened("cpu"):
        if gauge.why_no_peak:
            pytest.skip(gauge.why_no_peak)
        gauge.start()
        held = bytearray(200 * MIB)
        held[:: 2**12] = b"x" * len(held[:: 2**12])
        large = gauge.stop().peak_bytes
        del held
        gauge.start()
        small = gauge.stop().peak_bytes
    assert large is not None and small is not None and large > small + 150 * MIB
    assert gauge.process_peak_bytes >= large


def test_a_system_that_resets_no_peak_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauge_file, "CLEAR_REFS", tmp_path / "no" / "such")
    gauge = Gauge()
    with gauge.opened("cpu"):
        gauge.start()
        assert gauge.stop().peak_bytes is None
    assert gauge.why_no_peak is not None and "reset its peak" in gauge.why_no_peak


def test_an_engine_of_no_device_is_not_read() -> None:
    gauge = Gauge()
    with gauge.opened(None):
        gauge.start()
        reading = gauge.stop()
    assert reading.peak_bytes is None and reading.joules is None
