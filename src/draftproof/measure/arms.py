"""Both arms of a study, whole and at each load: times, throughput, memory by part, energy."""

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof import evidence as ev
from draftproof.measure.compare import summarise_arm
from draftproof.measure.gauge import Gauge

ARMS = ("target_only", "speculative")
Record = dict[str, Any]


def summarise_arms(
    records: Sequence[Record],
    parts: Mapping[str, int | None],
    num_draft_tokens: int,
    gauge: Gauge,
    limits: Mapping[str, float],
    confidence: float = 0.95,
) -> ev.Arms:
    """
    Summarise what was measured.

    Parameters
    ----------
    records : sequence of request records
        Of requests that did not fail.
    parts : mapping
        Of `EngineProtocol.memory`.
    num_draft_tokens : int
        K.
    gauge : Gauge
        The one that read the blocks.
    limits : mapping
        Of goodput.
    confidence : float
        Of every interval.
    """
    levels = sorted({record["concurrency"] for record in records})

    def arms(chosen: Sequence[Record], by_concurrency: dict[str, ev.Arms]) -> ev.Arms:
        target_only, speculative = ([item for item in chosen if item["arm"] == name] for name in ARMS)
        return ev.Arms(
            target_only=summarise_arm(
                target_only,
                _memory(target_only, parts, gauge, "target"),
                None,
                limits=limits,
                confidence=confidence,
                energy=_energy(target_only, gauge),
            ),
            speculative=summarise_arm(
                speculative,
                _memory(speculative, parts, gauge, "target", "draft"),
                num_draft_tokens,
                limits=limits,
                confidence=confidence,
                energy=_energy(speculative, gauge),
            ),
            by_concurrency=by_concurrency,
        )

    each = {str(level): arms([r for r in records if r["concurrency"] == level], {}) for level in levels}
    return arms(records, each if len(levels) > 1 else {})


def _memory(records: Sequence[Record], parts: Mapping[str, int | None], gauge: Gauge, *models: str) -> ev.Memory:
    def size(part: str, names: Sequence[str]) -> int | None:
        known = [value for name in names if (value := parts[f"{name}_{part}"]) is not None]
        return sum(known) if known else None

    if all(part is None for part in parts.values()):
        # an engine that knows nothing of its memory runs elsewhere, and ours is not its
        return ev.Memory(weights=None, caches=None, peak_rss=None, why="the engine does not report its memory")
    peaks = [peak for record in records if (peak := record.get("peak_bytes")) is not None]
    peak = max(peaks, default=None)
    everything = sum(size(part, ("target", "draft")) or 0 for part in ("weights", "cache"))
    rest = None if peak is None else peak - everything - (0 if gauge.on_gpu else gauge.before_loading_bytes)
    return ev.Memory(
        weights=size("weights", models),
        caches=size("cache", models),
        peak_rss=gauge.process_peak_bytes,
        peak=peak,
        working=rest if rest is not None and rest >= 0 else None,
        on_gpu=gauge.on_gpu,
        why=gauge.why_no_peak or ("weights are still on disk in part" if rest is not None and rest < 0 else None),
    )


def _energy(records: Sequence[Record], gauge: Gauge) -> ev.Energy:
    tokens = sum(len(record["token_ids"]) for record in records)
    known = [record["joules"] for record in records if record.get("joules") is not None]
    if not records or len(known) < len(records):
        return ev.Energy(joules=None, joules_per_token=None, source=gauge.energy_source)
    return ev.Energy(
        joules=sum(known), joules_per_token=sum(known) / tokens if tokens else None, source=gauge.energy_source
    )
