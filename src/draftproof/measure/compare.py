"""From request records to arms and paired effects. Reads records; runs nothing."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from draftproof import evidence as ev
from draftproof.stats.interval import Interval
from draftproof.stats.quantile import quantile_interval
from draftproof.stats.ratio import cluster_means, paired_log_ratio

Record = dict[str, Any]


def inter_token_gaps(record: Record) -> list[float]:
    """Return ms per token after the first chunk: a chunk of three tokens is three tokens, its gap split among them."""
    gaps: list[float] = []
    for (_, before), (count, at) in zip(record["chunks"], record["chunks"][1:], strict=False):
        gaps.extend([(at - before) / count] * count)
    return gaps


def inter_chunk_gaps(record: Record) -> list[float]:
    """Return ms between chunks."""
    return [at - before for (_, before), (_, at) in zip(record["chunks"], record["chunks"][1:], strict=False)]


def time_per_output_token(record: Record) -> float | None:
    """Return (latency - TTFT) / (tokens - first chunk's tokens) in ms, or None when there was one chunk."""
    chunks = record["chunks"]
    later = sum(count for count, _ in chunks[1:])
    return (chunks[-1][1] - chunks[0][1]) / later if later else None


def distribution(values: Sequence[float]) -> ev.Distribution:
    """Summarise times in ms."""
    return ev.Distribution(
        n=len(values),
        mean=float(np.mean(values)) if values else None,
        **{name: _interval(_quantile(values, q)) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))},
    )


def summarise_arm(records: Sequence[Record], seconds: float, memory: ev.Memory, num_draft_tokens: int | None) -> ev.Arm:
    """
    Summarise one arm.

    Parameters
    ----------
    records : sequence of request records
    seconds : float
        The arm's busy time: the sum of its batches' wall times.
    memory : Memory
    num_draft_tokens : int or None
        K, or None for the target-only arm.
    """
    tokens = sum(len(record["token_ids"]) for record in records)
    rate = tokens / seconds if seconds > 0 else None
    rounds = [item for record in records for item in record["rounds"]]
    return ev.Arm(
        latency=distribution([record["latency_ms"] for record in records]),
        ttft=distribution([record["chunks"][0][1] for record in records]),
        itl=distribution([gap for record in records for gap in inter_token_gaps(record)]),
        icl=distribution([gap for record in records for gap in inter_chunk_gaps(record)]),
        tpot=distribution([value for value in map(time_per_output_token, records) if value is not None]),
        throughput=ev.Throughput(
            tokens=tokens, seconds=seconds, tokens_per_second=rate, tokens_per_minute=rate * 60 if rate else None
        ),
        memory=memory,
        acceptance=summarise_acceptance(rounds, num_draft_tokens) if num_draft_tokens and rounds else None,
        time_split_ms={
            "propose": sum(item["propose_ms"] for item in rounds),
            "score": sum(item["score_ms"] for item in rounds),
        }
        if rounds
        else {},
    )


def summarise_acceptance(rounds: Sequence[Record], num_draft_tokens: int) -> ev.Acceptance:
    """Count what was really proposed and accepted; correction and bonus tokens are in neither."""
    drafted = [item for item in rounds if item["num_proposed"]]
    proposed = sum(item["num_proposed"] for item in drafted)
    accepted = sum(item["num_accepted"] for item in drafted)
    at = range(1, num_draft_tokens + 1)
    hits = [sum(item["num_accepted"] >= place for item in drafted) for place in at]
    tried = [
        sum(item["num_proposed"] >= place and item["num_accepted"] >= place - 1 for item in drafted) for place in at
    ]
    histogram = [0] * (num_draft_tokens + 2)
    for item in rounds:
        histogram[item["emitted"]] += 1
    return ev.Acceptance(
        rounds=len(rounds),
        drafted_rounds=len(drafted),
        proposed=proposed,
        accepted=accepted,
        corrections=sum(item["next_token"] == "correction" for item in rounds),
        bonuses=sum(item["next_token"] == "bonus" for item in rounds),
        rate=accepted / proposed if proposed else None,
        accepted_per_round=accepted / len(drafted) if drafted else None,
        emitted_per_round=sum(item["emitted"] for item in rounds) / len(rounds) if rounds else None,
        by_position=[hit / len(drafted) if drafted else None for hit in hits],
        by_position_conditional=[hit / count if count else None for hit, count in zip(hits, tried, strict=True)],
        emitted_histogram=histogram,
    )


def compare_arms(records: Sequence[Record], confidence: float, memory_ratio: float | None) -> ev.Comparison:
    """
    Pair the arms on the same prompts: A (target-only), B (speculative), A again, run one after the other.

    The speed-up is mean(A1, A2) over B per prompt; A1 over A2 is the noise.
    """
    whole = cells_of(records)

    def part(name: str, wanted: Callable[[Record], bool]) -> ev.Effect:
        return _effect([cell for cell in whole if wanted(cell["B"])], confidence)

    categories = sorted({cell["B"]["category"] for cell in whole})
    levels = sorted({cell["B"]["concurrency"] for cell in whole})
    total_a = sum((cell["A1"]["latency_ms"] + cell["A2"]["latency_ms"]) / 2 for cell in whole)
    total_b = sum(cell["B"]["latency_ms"] for cell in whole)
    return ev.Comparison(
        overall=_effect(whole, confidence),
        total_time_ratio=total_a / total_b if total_b else None,
        memory_ratio=memory_ratio,
        by_category={name: part(name, lambda record, name=name: record["category"] == name) for name in categories},  # type: ignore[misc]
        by_concurrency={
            str(level): part(str(level), lambda record, level=level: record["concurrency"] == level)  # type: ignore[misc]
            for level in levels
        },
    )


def cells_of(records: Sequence[Record]) -> list[dict[str, Record]]:
    """Return the records of a prompt, repeat and concurrency by block, where all three blocks are there."""
    cells: dict[tuple[str, int, int], dict[str, Record]] = {}
    for record in records:
        key = (record["prompt_id"], record["repeat"], record["concurrency"])
        cells.setdefault(key, {})[record["block"]] = record
    return [cell for cell in cells.values() if {"A1", "B", "A2"} <= cell.keys()]


def _effect(cells: Sequence[dict[str, Record]], confidence: float) -> ev.Effect:
    ids = [cell["B"]["prompt_id"] for cell in cells]
    speed = [
        math.log((cell["A1"]["latency_ms"] + cell["A2"]["latency_ms"]) / 2 / cell["B"]["latency_ms"]) for cell in cells
    ]
    noise = [math.log(cell["A1"]["latency_ms"] / cell["A2"]["latency_ms"]) for cell in cells]
    pace: list[tuple[str, float]] = []
    for name, cell in zip(ids, cells, strict=True):
        one, two, three = (time_per_output_token(cell[block]) for block in ("A1", "A2", "B"))
        if one and two and three:
            pace.append((name, math.log(three / ((one + two) / 2))))
    before = [(c["A1"]["latency_ms"] + c["A2"]["latency_ms"]) / 2 for c in cells]
    p95_before, p95_after = _quantile(before, 0.95), _quantile([c["B"]["latency_ms"] for c in cells], 0.95)
    speedup = _ratio(speed, ids, confidence)
    return ev.Effect(
        n=len(set(ids)),
        speedup=speedup[0],
        latency_ratio_p95=p95_after.estimate / p95_before.estimate
        if p95_after.estimate and p95_before.estimate
        else None,
        itl_ratio=_ratio([value for _, value in pace], [name for name, _ in pace], confidence)[0],
        aa=_ratio(noise, ids, confidence)[0],
        method=speedup[1],
    )


def _ratio(values: Sequence[float], clusters: Sequence[str], confidence: float) -> tuple[ev.Interval, str]:
    if not values:
        return ev.Interval(estimate=None, low=None, high=None), "none"
    result = paired_log_ratio(cluster_means(values, clusters), confidence, seed=0)
    return _interval(result.interval), result.method


def _quantile(values: Sequence[float], quantile: float) -> Interval:
    return quantile_interval(values, quantile) if values else Interval(None, None, None)


def _interval(value: Interval) -> ev.Interval:
    return ev.Interval(estimate=value.estimate, low=value.low, high=value.high)
