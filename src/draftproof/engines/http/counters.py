"""A server's own counts of its speculation, from its Prometheus page. Valid for a call only if nobody else asked meanwhile."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from draftproof.engines.http.dialects import Dialect
from draftproof.records import SpeculationMetrics, summarise_counts

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)")


@dataclass(frozen=True, slots=True)
class Counts:
    """What stood on the page: sums over the labels of each name; a name that is missing is not reported."""

    values: Mapping[str, float]

    @classmethod
    def read(cls, page: str) -> "Counts":
        """Read Prometheus' text format."""
        values: dict[str, float] = {}
        for line in page.splitlines():
            found = _SAMPLE.match(line)
            if found:
                try:
                    values[found[1]] = values.get(found[1], 0.0) + float(found[2])
                except ValueError:
                    continue
        return cls(values)

    def has(self, dialect: Dialect) -> bool:
        """Whether any count of speculation is there."""
        return any(name in self.values for name in dialect.counters.values())

    def idle(self, dialect: Dialect) -> bool:
        """Whether the server says that nothing runs, or does not say."""
        return not self.values.get(dialect.running, 0.0)

    def caught_up(self, dialect: Dialect, before: "Counts", num_requests: int) -> bool:
        """Whether all of a call's requests are in the counts, where the server counts them."""
        name = dialect.finished
        return name not in self.values or self.values[name] - before.values.get(name, 0.0) >= num_requests


def between(dialect: Dialect, before: Counts, after: Counts, num_requests: int) -> SpeculationMetrics | None:
    """
    Return what was counted between two readings, for all requests of the call together.

    None where the server reports nothing, or where others were served as well: their tokens cannot be told from ours.
    """
    if not (before.idle(dialect) and after.idle(dialect)):
        return None
    if dialect.finished in after.values:
        name = dialect.finished
        if after.values[name] - before.values.get(name, 0.0) != num_requests:
            return None
    found = {
        field: round(after.values[name] - before.values.get(name, 0.0))
        for field, name in dialect.counters.items()
        if name in after.values
    }
    if not found or min(found.values()) < 0:
        return None
    if found.get("num_accepted_draft_tokens", 0) > found.get("num_draft_tokens", math.inf):
        return None
    return summarise_counts(num_requests=num_requests, **found)
