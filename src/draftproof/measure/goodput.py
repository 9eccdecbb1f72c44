"""Goodput: the requests that met every limit. Knows which limits there are; sets none."""

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof import evidence as ev
from draftproof.measure.times import time_per_output_token, time_to_first_token


def meets(record: Mapping[str, Any], limits: Mapping[str, float]) -> bool:
    """
    Whether a request met all limits.

    Parameters
    ----------
    record : request record
    limits : mapping
        Some of ``ttft_ms``, ``tpot_ms`` and ``latency_ms``, in ms. A request of one chunk has no TPOT, and meets that.
    """
    found = {
        "ttft_ms": time_to_first_token(record),
        "tpot_ms": time_per_output_token(record) or 0.0,
        "latency_ms": record["latency_ms"],
    }
    return all(found[name] <= limit for name, limit in limits.items())


def goodput(records: Sequence[Mapping[str, Any]], seconds: float, limits: Mapping[str, float]) -> ev.Goodput | None:
    """Count the requests that met all limits, over the arm's seconds; None without a limit."""
    if not limits:
        return None
    good = sum(meets(record, limits) for record in records)
    return ev.Goodput(
        limits=dict(limits),
        requests=good,
        share=good / len(records) if records else None,
        per_second=good / seconds if seconds > 0 else None,
    )
