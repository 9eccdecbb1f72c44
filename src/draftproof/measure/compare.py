"""From request records to arms and paired effects. Reads records; runs nothing."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from draftproof import evidence as ev
from draftproof.measure.counted import counted_acceptance
from draftproof.measure.goodput import goodput
from draftproof.measure.noise import summarise_noise
from draftproof.measure.per_round import with_intervals
from draftproof.measure.time_split import time_split
from draftproof.measure.times import (
    inter_chunk_gaps,
    inter_token_gaps,
    time_per_chunk,
    time_per_output_token,
    time_to_first_token,
)
from draftproof.stats.interval import Interval
from draftproof.stats.quantile import quantile_interval
from draftproof.stats.quantile_ratio import quantile_ratio
from draftproof.stats.ratio import cluster_means, paired_log_ratio

Record = dict[str, Any]


def distribution(values: Sequence[float], num_draws: int | None = None, confidence: float = 0.95) -> ev.Distribution:
    """
    Summarise times in ms.

    Parameters
    ----------
    num_draws : int or None
        Prompts, or blocks of arrivals, that the values are of; a quantile needs as many as it needs draws. None: each value is
        a draw.
    confidence : float
        Of the quantiles' intervals.
    """
    return ev.Distribution(
        n=len(values),
        prompts=num_draws,
        mean=float(np.mean(values)) if values else None,
        max=max(values, default=None),
        **{
            name: _interval(_quantile(values, q, num_draws, confidence))
            for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        },
    )


def summarise_arm(
    records: Sequence[Record],
    memory: ev.Memory,
    num_draft_tokens: int | None,
    *,
    limits: Mapping[str, float] | None = None,
    energy: ev.Energy | None = None,
    confidence: float = 0.95,
) -> ev.Arm:
    """
    Summarise one arm.

    Parameters
    ----------
    records : sequence of request records
    memory : Memory
    num_draft_tokens : int or None
        K, or None for the target-only arm.
    limits : mapping or None
        Of goodput; see `measure.goodput.meets`.
    energy : Energy or None
    confidence : float
        Of every interval.
    """
    tokens, seconds = sum(len(record["token_ids"]) for record in records), sum(r["busy_seconds"] for r in records)
    rate = tokens / seconds if seconds > 0 else None
    rounds = [item for record in records for item in record["rounds"]]
    draws = len(set(map(_unit, records)))

    def of_each(times: Callable[[Record], Sequence[float]]) -> ev.Distribution:
        return distribution([value for record in records for value in times(record)], draws, confidence)

    return ev.Arm(
        latency=of_each(lambda record: [record["latency_ms"]]),
        ttft=of_each(lambda record: [time_to_first_token(record)]),
        itl=of_each(inter_token_gaps),
        icl=of_each(inter_chunk_gaps),
        tpot=of_each(lambda record: [] if (value := time_per_output_token(record)) is None else [value]),
        throughput=ev.Throughput(
            tokens=tokens,
            seconds=seconds,
            tokens_per_second=rate,
            tokens_per_minute=rate * 60 if rate else None,
            requests=len(records),
            requests_per_second=len(records) / seconds if seconds > 0 else None,
            goodput=goodput(records, seconds, limits or {}),
        ),
        memory=memory,
        acceptance=with_intervals(
            summarise_acceptance(rounds, num_draft_tokens)
            if num_draft_tokens and rounds
            else counted_acceptance(records),
            records,
            confidence,
        ),
        time_split_ms=time_split(records),
        energy=energy,
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
        proposed_per_round=proposed / len(rounds) if rounds else None,
        emitted_per_round=sum(item["emitted"] for item in rounds) / len(rounds) if rounds else None,
        by_position=[hit / len(drafted) if drafted else None for hit in hits],
        by_position_conditional=[hit / count if count else None for hit, count in zip(hits, tried, strict=True)],
        emitted_histogram=histogram,
    )


def compare_arms(records: Sequence[Record], confidence: float, memory_ratio: float | None) -> ev.Comparison:
    """
    Pair the arms on the same prompts: A (target-only), B (speculative), A again, run one after the other.

    The speed-up is mean(A1, A2) over B per prompt; A1 over A2 is the noise. The unit is the prompt, or under open-loop
    arrival the block of arrivals, whose requests wait for one another.
    """
    whole = cells_of(records)
    categories = sorted({cell["B"]["category"] for cell in whole})
    levels = sorted({cell["B"]["concurrency"] for cell in whole})
    overall = _effect(whole, confidence)

    def part(category: str | None = None, level: int | None = None) -> ev.Effect | None:
        chosen = [
            cell
            for cell in whole
            if category in (None, cell["B"]["category"]) and level in (None, cell["B"]["concurrency"])
        ]
        return overall if len(chosen) == len(whole) else _effect(chosen, confidence) if chosen else None

    def parts(names: Sequence[Any], of: Callable[[Any], ev.Effect | None]) -> dict[str, ev.Effect]:
        return {str(name): effect for name in names if (effect := of(name)) is not None}

    return ev.Comparison(
        overall=overall.model_copy(update={"latency_ratio_p95_interval": _p95_interval(whole, confidence)}),
        total_time_ratio=overall.total_time_ratio,
        memory_ratio=memory_ratio,
        by_category=parts(categories, lambda name: part(category=name)),
        by_concurrency=parts(levels, lambda level: part(level=level)),
        by_cell={name: parts(levels, lambda level, name=name: part(name, level)) for name in categories},  # type: ignore[misc]
        load="open" if _is_open(whole) else "closed",
        noise=summarise_noise(records, os.cpu_count() or 1),
    )


def cells_of(records: Sequence[Record]) -> list[dict[str, Record]]:
    """Return the records of a prompt, repeat and concurrency by block, where all three blocks are there."""
    cells: dict[tuple[str, int, int], dict[str, Record]] = {}
    for record in records:
        key = (record["prompt_id"], record["repeat"], record["concurrency"])
        cells.setdefault(key, {})[record["block"]] = record
    return [cell for cell in cells.values() if {"A1", "B", "A2"} <= cell.keys()]


def _effect(cells: Sequence[dict[str, Record]], confidence: float) -> ev.Effect:
    units = [_unit(cell["B"]) for cell in cells]
    draws = len(set(units))

    def ratio(of: Callable[[dict[str, Record]], float | None]) -> tuple[ev.Interval, str]:
        found = [(value, unit) for cell, unit in zip(cells, units, strict=True) if (value := of(cell)) is not None]
        return _ratio([value for value, _ in found], [unit for _, unit in found], confidence)

    def slower(time_of: Callable[[Record], float | None]) -> Callable[[dict[str, Record]], float | None]:
        """Log of B over mean(A1, A2); None where one of them has no such time, or none passed."""

        def of(cell: dict[str, Record]) -> float | None:
            one, two, three = (time_of(cell[block]) for block in ("A1", "A2", "B"))
            return math.log(three / ((one + two) / 2)) if one and two and three else None

        return of

    speedup, method = ratio(lambda cell: math.log(_before(cell) / cell["B"]["latency_ms"]))
    p95_before = _quantile(
        [cell[block]["latency_ms"] for cell in cells for block in ("A1", "A2")], 0.95, draws, confidence
    )
    p95_after = _quantile([cell["B"]["latency_ms"] for cell in cells], 0.95, draws, confidence)
    after = sum(cell["B"]["latency_ms"] for cell in cells)
    return ev.Effect(
        n=_prompts(cells),
        speedup=speedup,
        latency_ratio_p95=p95_after.estimate / p95_before.estimate
        if p95_after.estimate and p95_before.estimate
        else None,
        itl_ratio=ratio(slower(time_per_output_token))[0],
        icl_ratio=ratio(slower(time_per_chunk))[0],
        aa=ratio(lambda cell: math.log(cell["A1"]["latency_ms"] / cell["A2"]["latency_ms"]))[0],
        total_time_ratio=sum(map(_before, cells)) / after if after else None,
        method=method + (" over blocks of arrivals" if _is_open(cells) else ""),
    )


def _before(cell: dict[str, Record]) -> float:
    return float((cell["A1"]["latency_ms"] + cell["A2"]["latency_ms"]) / 2)


def _is_open(cells: Sequence[dict[str, Record]]) -> bool:
    return any(cell["B"].get("arrived_ms") is not None for cell in cells)


def _unit(record: Record) -> str:
    """Return what a request belongs to of the things that were drawn independently: its prompt, or its block of arrivals."""
    return str(record["prompt_id"] if record.get("arrived_ms") is None else record["group"])


def _prompts(cells: Sequence[dict[str, Record]]) -> int:
    return len({cell["B"]["prompt_id"] for cell in cells})


def _p95_interval(cells: Sequence[dict[str, Record]], confidence: float) -> ev.Interval:
    after = [[cell["B"]["latency_ms"]] for cell in cells]
    before = [[cell["A1"]["latency_ms"], cell["A2"]["latency_ms"]] for cell in cells]
    return _interval(quantile_ratio(after, before, [_unit(cell["B"]) for cell in cells], 0.95, confidence, seed=0))


def _ratio(values: Sequence[float], clusters: Sequence[str], confidence: float) -> tuple[ev.Interval, str]:
    if not values:
        return ev.Interval(estimate=None, low=None, high=None), "none"
    result = paired_log_ratio(cluster_means(values, clusters), confidence, seed=0)
    return _interval(result.interval), result.method


def _quantile(values: Sequence[float], quantile: float, num_draws: int | None, confidence: float) -> Interval:
    return quantile_interval(values, quantile, confidence, num_draws) if values else Interval(None, None, None)


def _interval(value: Interval) -> ev.Interval:
    return ev.Interval(estimate=value.estimate, low=value.low, high=value.high)
