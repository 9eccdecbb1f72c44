"""
An estimate with its limits.

Knows nothing about how the limits were found, nor at which confidence; the function that returns one says so.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and a two-sided interval in the unit of the estimate; ``None`` is "not estimable", never zero."""

    estimate: float | None
    low: float | None
    high: float | None
