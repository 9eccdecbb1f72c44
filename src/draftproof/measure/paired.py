"""One run's times over another's on the same prompts, with intervals over prompts. Pure."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any

from draftproof import evidence as ev
from draftproof.measure.times import time_per_output_token
from draftproof.stats.ratio import cluster_means, paired_log_ratio

Record = Mapping[str, Any]
Logs = dict[tuple[str, int], float]  # by prompt and concurrency


class Ratios(ev.Part):
    """
    One run against the first on the prompts of both, paired: above 1 the other run is faster.

    The times are the first run's over the other's; ``speedup`` is the other's speed-up over the first's. ``identical``: prompts
    whose speculative output is the same token for token.
    """

    prompts: int
    identical: int
    confidence: float
    target_only_latency: ev.Interval
    speculative_latency: ev.Interval
    target_only_tpot: ev.Interval
    speculative_tpot: ev.Interval
    speedup: ev.Interval


def paired_ratios(first: Iterable[Record], other: Iterable[Record], confidence: float) -> Ratios:
    """
    Pair two runs by prompt and concurrency.

    Parameters
    ----------
    first, other : iterables of request records without errors
    confidence : float, above 0 and below 1
        Of the intervals, two-sided.

    Returns
    -------
    Ratios
        Estimates are None where no prompt is in both.

    Notes
    -----
    Repeats, and the two target-only runs, are averaged in logarithms. The interval is over prompts
    (`stats.ratio.paired_log_ratio`): it says nothing of what changed on the host from one run to the other.
    """
    first, other = list(first), list(other)
    one, two = _logs(first), _logs(other)
    outputs = _outputs(first), _outputs(other)
    shared = outputs[0].keys() & outputs[1].keys()
    return Ratios(
        prompts=len(shared),
        identical=sum(outputs[0][prompt] == outputs[1][prompt] for prompt in shared),
        confidence=confidence,
        **{name: _ratio(one[name], two[name], confidence) for name in one},
    )


def _logs(records: list[Record]) -> dict[str, Logs]:
    found = {
        "target_only_latency": _mean_logs(records, _latency, speculative=False),
        "speculative_latency": _mean_logs(records, _latency, speculative=True),
        "target_only_tpot": _mean_logs(records, time_per_output_token, speculative=False),
        "speculative_tpot": _mean_logs(records, time_per_output_token, speculative=True),
    }
    before, after = found["target_only_latency"], found["speculative_latency"]
    return found | {"speedup": {cell: after[cell] - before[cell] for cell in before.keys() & after.keys()}}


def _mean_logs(records: list[Record], measure: Callable[[Any], float | None], *, speculative: bool) -> Logs:
    logs = defaultdict(list)
    for record in records:
        if (record["block"] == "B") == speculative and (value := measure(record)):
            logs[record["prompt_id"], record["concurrency"]].append(math.log(value))
    return {cell: fmean(values) for cell, values in logs.items()}


def _ratio(one: Logs, two: Logs, confidence: float) -> ev.Interval:
    shared = sorted(one.keys() & two.keys())
    if not shared:
        return ev.Interval(estimate=None, low=None, high=None)
    means = cluster_means([one[cell] - two[cell] for cell in shared], [prompt for prompt, _ in shared])
    found = paired_log_ratio(means, confidence, seed=0).interval
    return ev.Interval(estimate=found.estimate, low=found.low, high=found.high)


def _latency(record: Record) -> float | None:
    return None if record["latency_ms"] is None else float(record["latency_ms"])


def _outputs(records: list[Record]) -> dict[str, set[tuple[int, ...]]]:
    found = defaultdict(set)
    for record in records:
        if record["block"] == "B":
            found[record["prompt_id"]].add(tuple(record["token_ids"]))
    return found
