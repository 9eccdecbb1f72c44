"""The lines of ``requests.jsonl`` side by side: one row per prompt, both arms. Computes no statistics."""

from dataclasses import dataclass
from typing import Any

from draftproof.report.words import known

MOST_SHOWN = 200  # so that a report of any study can be opened on a phone
_ARMS = ("target_only", "speculative")


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt's request in each arm; None where that arm has none."""

    prompt_id: str
    category: str
    repeat: str
    target_only: dict[str, Any] | None
    speculative: dict[str, Any] | None

    @property
    def latencies(self) -> tuple[float, float] | None:
        """Both latencies in ms; None where an arm is missing or failed."""
        target_only, speculative = latency(self.target_only), latency(self.speculative)
        return None if target_only is None or speculative is None else (target_only, speculative)

    @property
    def identical(self) -> bool | None:
        """Whether both arms gave the same tokens; None where an arm is missing or failed."""
        if self.target_only is None or self.speculative is None:
            return None
        if self.target_only.get("error") or self.speculative.get("error"):
            return None
        tokens = self.target_only.get("token_ids")
        return None if tokens is None else bool(tokens == self.speculative.get("token_ids"))


def latency(request: dict[str, Any] | None) -> float | None:
    """A request's latency in ms; None where it failed or has none."""
    if request is None or request.get("error"):
        return None
    value = request.get("latency_ms")
    return float(value) if isinstance(value, int | float) and known(value) else None


def pair_requests(requests: list[dict[str, Any]]) -> list[Pair]:
    """
    Pair the arms by prompt, repeat and, where it is given, concurrency; in the order of first appearance.

    Of two requests with the same key the later one counts. Other arms are left out.
    """
    found: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for request in requests:
        if request.get("arm") in _ARMS:
            key = (str(request.get("prompt_id")), str(request.get("repeat", 0)), str(request.get("concurrency", "")))
            found.setdefault(key, {})[request["arm"]] = request
    return [
        Pair(
            prompt_id=prompt_id,
            category=str(next(iter(arms.values())).get("category") or ""),
            repeat=repeat + (f" at concurrency {concurrency}" if concurrency else ""),
            target_only=arms.get("target_only"),
            speculative=arms.get("speculative"),
        )
        for (prompt_id, repeat, concurrency), arms in found.items()
    ]


def most_telling(pairs: list[Pair]) -> list[Pair]:
    """
    The pairs that a reader looks for, in their order: those that differ or failed, then those that gained least.

    At most ``MOST_SHOWN``; a pair that cannot be compared counts as one that failed.
    """
    if len(pairs) <= MOST_SHOWN:
        return pairs

    def telling(index: int) -> tuple[bool, float]:
        times = pairs[index].latencies
        return pairs[index].identical is True, float("-inf") if times is None else times[0] / times[1]

    return [pairs[index] for index in sorted(sorted(range(len(pairs)), key=telling)[:MOST_SHOWN])]
