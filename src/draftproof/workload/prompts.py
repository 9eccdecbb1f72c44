"""One prompt of a workload."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPrompt:
    """A prompt's id (unique in its set), its category and its text."""

    id: str
    category: str
    text: str
