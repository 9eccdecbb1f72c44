"""Intervals of what a round accepts and emits, over prompts: from rounds, or from what a server counts. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.evidence import Acceptance, Interval
from draftproof.stats.ratio_of_sums import ratio_of_sums

Record = Mapping[str, Any]
Count = float | None  # None: not counted


def with_intervals(found: Acceptance | None, records: Sequence[Record], confidence: float) -> Acceptance | None:
    """
    Add the intervals of ``accepted_per_round`` and ``emitted_per_round``, where these are known.

    Parameters
    ----------
    found : Acceptance or None
        What was counted over all records.
    records : sequence of request records
        Of one arm.
    confidence : float
        Of the intervals, two-sided.
    """
    if found is None:
        return None
    told = [record for record in records if record["rounds"] or record.get("speculation")]
    counts = [_of_rounds(item["rounds"]) if item["rounds"] else _of_counts(item["speculation"]) for item in told]
    prompts = [record["prompt_id"] for record in told]

    def interval(value: float | None, above: int, below: int) -> Interval | None:
        counted, among = ([count for one in counts if (count := one[place]) is not None] for place in (above, below))
        if value is None or min(len(counted), len(among)) < len(counts):
            return None
        limits = ratio_of_sums(counted, among, prompts, confidence, seed=0)
        return Interval(estimate=value, low=limits.low, high=limits.high)

    return found.model_copy(
        update={
            "accepted_per_round_interval": interval(found.accepted_per_round, 0, 1),
            "emitted_per_round_interval": interval(found.emitted_per_round, 2, 3),
        }
    )


def _of_rounds(rounds: Sequence[Record]) -> tuple[Count, ...]:
    """Return accepted tokens, rounds that drafted, emitted tokens, rounds."""
    return (
        sum(item["num_accepted"] for item in rounds),
        sum(item["num_proposed"] > 0 for item in rounds),
        sum(item["emitted"] for item in rounds),
        len(rounds),
    )


def _of_counts(told: Record) -> tuple[Count, ...]:
    """Return the same of what a server counted; counts of several requests together are no single prompt's."""
    if told["num_requests"] > 1:
        return None, None, None, None
    return told["num_accepted_draft_tokens"], told["num_spec_steps"], None, None
