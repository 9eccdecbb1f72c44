"""One prompt of a workload. Knows nothing about where it came from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPrompt:
    """
    A user message with its place in the workload.

    Attributes
    ----------
    id : str
        Unique within its set.
    category : str
        The kind of task, such as "code edit".
    text : str
        The message; never empty.
    """

    id: str
    category: str
    text: str
