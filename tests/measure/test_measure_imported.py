"""Result files of other load generators: what they have is ours in our units, what they lack is missing, bad ones are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.errors import InputError
from draftproof.evidence import Distribution
from draftproof.measure.imported import DISTRIBUTIONS, FORMATS, read_results

FILES = Path(__file__).parent / "imported"
TOOLS = {"vllm": "vllm bench serve", "aiperf": "AIPerf", "guidellm": "GuideLLM"}


def shown(found: Distribution) -> tuple[float | None, ...]:
    return tuple(
        None if value is None else round(value, 6)
        for value in (found.mean, found.p50.estimate, found.p95.estimate, found.p99.estimate, found.max)
    )


NONE = (None, None, None, None, None)
# mean, median, p95, p99, max, in ms; of 40 requests there is no p95
EXPECTED = {
    "vllm": {
        "latency": (4813.5, 4790.0, None, None, None),
        "ttft": (61.5, 60.0, None, None, None),
        "itl": NONE,
        "icl": (48.5, 47.0, None, None, None),
        "tpot": (48.0, 47.5, None, None, None),
    },
    "aiperf": {
        "latency": (4800.0, 4704.0, None, None, 7200.0),
        "ttft": (62.0, 60.76, None, None, 93.0),
        "itl": NONE,
        "icl": (48.0, 47.04, None, None, 72.0),
        "tpot": (48.0, 47.04, None, None, 72.0),
    },
    "guidellm": {
        "latency": (4800.0, 4704.0, None, None, 7200.0),
        "ttft": (62.0, 60.76, None, None, 93.0),
        "itl": (47.9, None, None, None, None),
        "icl": NONE,
        "tpot": NONE,
    },
}


@pytest.mark.parametrize("tool", TOOLS)
def test_times_are_ours_in_ms_and_what_is_not_there_is_none(tool: str) -> None:
    read = read_results(FILES / f"{tool}_target_only.json")
    assert read.format == TOOLS[tool]
    assert {name: shown(getattr(read.arm, name)) for name in DISTRIBUTIONS} == EXPECTED[tool]
    assert all(getattr(read.arm, name).p50.low is None for name in DISTRIBUTIONS)
    absent = {name for name, values in EXPECTED[tool].items() if values == NONE}
    assert absent <= set(read.missing) and not ({*DISTRIBUTIONS} - absent) & set(read.missing)
    assert (read.arm.latency.n, read.arm.latency.prompts) == (40, 40)
    assert read.arm.acceptance is None and read.arm.energy is None and read.arm.time_split_ms == {}
    assert read.arm.memory.peak is None and read.arm.memory.why


@pytest.mark.parametrize("tool", TOOLS)
def test_throughput_is_tokens_over_seconds(tool: str) -> None:
    told = read_results(FILES / f"{tool}_target_only.json").arm.throughput
    assert (told.tokens, told.seconds, told.requests) == (4000, 50.0, 40)
    assert (told.tokens_per_second, told.tokens_per_minute, told.requests_per_second) == (80.0, 4800.0, 0.8)


@pytest.mark.parametrize(
    ("tool", "by_position"), [("vllm", [0.75, 0.6, 0.45, 0.3, 0.15]), ("aiperf", [])], ids=["vllm", "aiperf"]
)
def test_acceptance_is_recomputed_from_counts(tool: str, by_position: list[float]) -> None:
    told = read_results(FILES / f"{tool}_speculative.json").arm.acceptance
    assert told is not None and told.rounds is None
    assert (told.drafted_rounds, told.proposed, told.accepted) == (1200, 6000, 2700)
    assert (told.rate, told.accepted_per_round, told.by_position) == (0.45, 2.25, by_position)


def test_failed_requests_are_counted_and_unknown_where_no_one_counts_them() -> None:
    failed = {tool: read_results(FILES / f"{tool}_speculative.json").failed for tool in TOOLS}
    assert failed == {"vllm": 0, "aiperf": 2, "guidellm": 1}
    assert read_results(FILES / "aiperf_target_only.json").failed is None


MANY: dict[str, Callable[[dict[str, Any], int], Any]] = {
    "vllm": lambda value, count: value.update(completed=count, p95_e2el_ms=5400.0),
    "aiperf": lambda value, count: value["request_count"].update(avg=count),
    "guidellm": lambda value, count: value["benchmarks"][0]["metrics"]["request_totals"].update(successful=count),
}
TAIL = {"vllm": (5400.0, 5600.0), "aiperf": (6240.0, 6720.0), "guidellm": (6240.0, 6720.0)}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("count", "shown_of_tail"), [(71, 0), (72, 1), (100, 1), (367, 1), (368, 2)])
def test_a_tail_is_told_from_as_many_requests_as_its_interval_would_need(
    tmp_path: Path, tool: str, count: int, shown_of_tail: int
) -> None:
    read = read_results(changed(tmp_path, f"{tool}_target_only.json", lambda value: MANY[tool](value, count)))
    latency = read.arm.latency
    assert (latency.p95.estimate, latency.p99.estimate) == (*TAIL[tool][:shown_of_tail], None, None)[:2]
    assert ("p99 of latency" in read.missing) is (shown_of_tail < 2)


Change = Callable[[dict[str, Any]], Any]


def changed(folder: Path, name: str, change: Change) -> Path:
    value = json.loads((FILES / name).read_text(encoding="utf-8"))
    change(value)
    path = folder / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


@pytest.mark.parametrize("zero", [0, 0.0])
def test_a_zero_time_is_not_measured(tmp_path: Path, zero: float) -> None:
    """These tools write 0 where a server did not stream."""
    keys = {"mean_ttft_ms": zero, "median_ttft_ms": zero, "p99_ttft_ms": zero}
    read = read_results(changed(tmp_path, "vllm_target_only.json", lambda value: value.update(keys)))
    assert shown(read.arm.ttft) == NONE and "ttft" in read.missing and read.arm.ttft.n == 0


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        pytest.param("vllm_target_only.json", lambda value: value.pop("completed"), "shape of no known", id="unknown"),
        pytest.param(
            "vllm_target_only.json",
            lambda value: value.pop("total_output_tokens"),
            "lacks total_output_tokens",
            id="tokens",
        ),
        pytest.param(
            "vllm_target_only.json",
            lambda value: value.update(mean_ttft_ms="fast"),
            "mean_ttft_ms is 'fast'",
            id="text",
        ),
        pytest.param(
            "vllm_target_only.json",
            lambda value: value.update(mean_ttft_ms=-1),
            "allowed: a number from 0 up",
            id="negative",
        ),
        pytest.param(
            "vllm_target_only.json", lambda value: value.update(mean_ttft_ms=float("nan")), "it holds NaN", id="nan"
        ),
        pytest.param(
            "vllm_speculative.json",
            lambda value: value.update(spec_decode_accepted_tokens=6001),
            "spec_decode_accepted_tokens is 6001; allowed: at most the 6000 drafted tokens",
            id="more-accepted-than-drafted",
        ),
        pytest.param(
            "aiperf_target_only.json",
            lambda value: value["request_latency"].update(unit="min"),
            "in 'min'; allowed",
            id="unit",
        ),
        pytest.param(
            "aiperf_target_only.json", lambda value: value.update(was_cancelled=True), "was cancelled", id="cancelled"
        ),
        pytest.param(
            "guidellm_target_only.json",
            lambda value: value["benchmarks"].append({}),
            "holds 2 runs",
            id="several-loads",
        ),
        pytest.param(
            "guidellm_target_only.json", lambda value: value["benchmarks"].clear(), "shape of no known", id="none"
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path: Path, name: str, change: Change, said: str) -> None:
    path = changed(tmp_path, name, change)
    with pytest.raises(InputError, match=said) as refused:
        read_results(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"{", "is not JSON .line 1", id="cut"),
        pytest.param(b"{}\n{}", "it holds several results, give one", id="appended"),
        pytest.param(b"\xff", "not UTF-8", id="binary"),
        pytest.param(b"[1]", "shape of no known result file; allowed: vllm bench serve, AIPerf, GuideLLM", id="list"),
        pytest.param(None, "cannot read", id="missing"),
    ],
)
def test_what_is_no_result_file_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_results(path)


def test_no_file_has_the_signs_of_two_formats() -> None:
    assert {row.name for row in FORMATS} == set(TOOLS.values())
    for tool, name in TOOLS.items():
        for arm in ("target_only", "speculative"):
            assert read_results(FILES / f"{tool}_{arm}.json").format == name
