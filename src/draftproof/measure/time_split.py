"""Where an arm's busy time went."""

from collections.abc import Mapping, Sequence
from typing import Any


def time_split(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """
    Split the busy time of an arm's requests.

    Returns
    -------
    dict, ms
        ``prefill`` (prompts read), ``propose``, ``score`` (the target's pass), ``sample`` (the decision) and ``host``: the
        rest of the busy time, such as tokenising, queueing and committing. Empty where no rounds were reported. Rounds that
        were not split count as score.

    Notes
    -----
    Every request of a round carries the whole round's times, so each counts with its share of them.
    """
    rounds = [item for record in records for item in record["rounds"]]
    if not rounds:
        return {}

    def spent(name: str) -> float:
        return float(sum((item.get(name) or 0.0) / item.get("num_rows", 1) for item in rounds))

    sample = spent("sample_ms")
    parts = {
        "prefill": spent("prefill_ms"),
        "propose": spent("propose_ms"),
        "score": spent("score_ms") - sample,
        "sample": sample,
    }
    busy = sum(record["busy_seconds"] - record.get("idle_seconds", 0.0) for record in records) * 1e3
    return {**parts, "host": max(0.0, busy - sum(parts.values()))}
