"""Times of one request, from its chunks. A chunk of three tokens is three tokens; one without a token is none."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

Record = Mapping[str, Any]


def chunks(record: Record) -> list[tuple[int, float]]:
    """Return (tokens, ms since the request) of each chunk that held a token."""
    return [(count, at) for count, at in record["chunks"] if count]


def time_to_first_token(record: Record) -> float:
    """Return ms from the request to the first chunk with a token."""
    return chunks(record)[0][1]


def inter_token_gaps(record: Record) -> list[float]:
    """Return ms per token after the first chunk: a chunk's gap is split among its tokens."""
    held = chunks(record)
    return [(at - before) / count for (_, before), (count, at) in pairwise(held) for _ in range(count)]


def inter_chunk_gaps(record: Record) -> list[float]:
    """Return ms between chunks."""
    held = chunks(record)
    return [at - before for (_, before), (_, at) in pairwise(held)]


def time_per_output_token(record: Record) -> float | None:
    """Return (latency - TTFT) / (tokens - first chunk's tokens) in ms, or None when there was one chunk."""
    held = chunks(record)
    later = sum(count for count, _ in held[1:])
    return (held[-1][1] - held[0][1]) / later if later else None


def time_per_chunk(record: Record) -> float | None:
    """Return the mean gap between chunks in ms, or None when there was one chunk."""
    gaps = inter_chunk_gaps(record)
    return sum(gaps) / len(gaps) if gaps else None
