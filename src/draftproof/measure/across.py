"""
Finished runs side by side: what differs between them, and whether their times may be compared at all. Pure; reads no file.

The first run is the one that the others are compared with.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from draftproof import evidence as ev
from draftproof.environment import differences
from draftproof.measure.paired import Ratios, paired_ratios
from draftproof.measure.stored import StoredRun

Kind = Literal["work", "machine", "software", "plan"]
KINDS: tuple[Kind, ...] = ("work", "machine", "software", "plan")
# keys of the plan that say what work is done
WORK = ("workload.max_tokens", "workload.concurrency", "sampling.")
# prompts, target and dtype are compared by what they resolved to
PASSED_OVER = (
    *("name", "schema_version", "workload.prompts", "workload.limit", "workload.seed", "engine.target", "engine.dtype"),
)
DEFAULT_CONFIDENCE = 0.95
UNKNOWN = "not recorded"


class RunDifference(ev.Part):
    """
    A fact that a run does not share with the first one, and both values.

    "work" forbids any comparison, "machine" one of times; "software" and "plan" may be what is compared, and forbid nothing.
    """

    kind: Kind
    name: str
    first: Any
    other: Any


class Other(ev.Part):
    """A run against the first. ``ratios`` is None where none can or may be taken, and ``why_not`` says why."""

    name: str
    comparable: bool
    differences: list[RunDifference]
    ratios: Ratios | None
    why_not: str | None


class AcrossRuns(ev.Part):
    """Runs against the first of them; ``comparable`` if all of them are."""

    first: str
    comparable: bool
    others: list[Other]


def compare_runs(runs: Sequence[StoredRun], *, across_machines: bool = False) -> AcrossRuns:
    """
    Compare runs with the first of them.

    Parameters
    ----------
    runs : sequence of StoredRun, two or more
    across_machines : bool
        Take ratios also where the machines differ; they then compare the machines too.
    """
    first, *rest = runs
    others = [_against(first, other, across_machines) for other in rest]
    return AcrossRuns(first=first.name, comparable=all(other.comparable for other in others), others=others)


def run_differences(first: ev.Evidence, other: ev.Evidence) -> list[RunDifference]:
    """Name every difference between two studies: work, then machine, software and plan."""
    found = [
        RunDifference(kind=item.kind, name=item.name, first=item.a, other=item.b)
        for item in differences(first.environment, other.environment)
    ]
    found.extend(_resolved(first, other))
    one, two = (dict(_leaves(evidence.study.plan)) for evidence in (first, other))
    for name in dict.fromkeys([*one, *two]):
        if name not in PASSED_OVER and one.get(name) != two.get(name):
            kind: Kind = "work" if name.startswith(WORK) else "plan"
            found.append(RunDifference(kind=kind, name=name, first=one.get(name), other=two.get(name)))
    return sorted(found, key=lambda item: KINDS.index(item.kind))


def _against(first: StoredRun, other: StoredRun, across_machines: bool) -> Other:
    found = run_differences(first.evidence, other.evidence)
    kinds = {item.kind for item in found}
    why_not, ratios = None, None
    if "work" in kinds:
        why_not = "they did not do the same work"
    elif "machine" in kinds and not across_machines:
        why_not = "they ran on other machines, or with other threads; --across-machines takes the ratios all the same"
    comparable = why_not is None
    if comparable and (first.records is None or other.records is None):
        why_not = "a run has no requests.jsonl beside its evidence.json"
    elif comparable and first.records is not None and other.records is not None:
        confidence = first.evidence.study.plan.get("policy", {}).get("confidence", DEFAULT_CONFIDENCE)
        ratios = paired_ratios(first.records, other.records, confidence)
    return Other(name=other.name, comparable=comparable, differences=found, ratios=ratios, why_not=why_not)


def _resolved(first: ev.Evidence, other: ev.Evidence) -> Iterator[RunDifference]:
    """Compare the prompts by their hash; target and dtype by the plan, where an engine did not record what it loaded."""
    pairs = {"prompts": (first.study.prompts, other.study.prompts)}
    for name, recorded in (("target", "engine.model.target.weights"), ("dtype", "engine.dtype")):
        if None in (dict(_leaves(evidence.environment)).get(recorded) for evidence in (first, other)):
            asked_first, asked_other = (evidence.study.plan.get("engine", {}).get(name) for evidence in (first, other))
            pairs[f"engine.{name}"] = asked_first, asked_other
    for name, (one, two) in pairs.items():
        if one is None or one != two:
            yield RunDifference(kind="work", name=name, first=one or UNKNOWN, other=two or UNKNOWN)


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by their dotted names."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
