"""What two environments must share before their measurements are compared. Pure: reads two tables, asks no machine."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["work", "machine", "software"]
# "work": another computation. "machine": the same one on other hardware or with other resources, so that its times tell
# nothing. "software": what may be the very thing that is compared.
MUST_MATCH: dict[Kind, tuple[str, ...]] = {
    "work": (
        *("engine.dtype", "engine.model.target.weights", "engine.model.target.config", "engine.model.target.tokenizer"),
        "engine.target_only.model",
    ),
    "machine": (
        *("machine", "cpu_model", "cpu_flags", "cpu_caches", "cpu_governor", "num_physical_cores", "num_logical_cores"),
        *("num_usable_cores", "memory_bytes", "gpus", "thread_variables"),
        *("engine.device", "engine.runtime.threads", "engine.runtime.gpu"),
    ),
    "software": (
        *("os", "python", "packages", "gpu_driver", "git_commit"),
        *("engine.runtime.torch", "engine.runtime.blas", "engine.runtime.cpu_capability"),
        *("engine.runtime.cuda", "engine.runtime.cudnn", "engine.runtime.onednn"),
        *("engine.attention", "engine.packed_weights"),
        *("engine.model.drafts.0.weights", "engine.model.drafts.0.config", "engine.model.drafts.0.tokenizer"),
        *("engine.target_only.server", "engine.target_only.version"),
        *("engine.speculative.server", "engine.speculative.version"),
        *("measurement.pass_shapes", "measurement.synchronisation"),
    ),
}
# the same virtual machine shows a little more or less memory from start to start
MEMORY_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """
    One fact that two environments do not share.

    Attributes
    ----------
    kind : {"work", "machine", "software"}
        What it forbids: "work" any comparison, "machine" a comparison of times, "software" nothing.
    name : str
        Dotted, as in ``evidence.json``'s environment.
    a, b : JSON values
        None is not known, or not set.
    """

    kind: Kind
    name: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.a} and {self.b}"


def differences(environment_a: Mapping[str, Any], environment_b: Mapping[str, Any]) -> list[Difference]:
    """
    Name what differs between two environments among what must match.

    Parameters
    ----------
    environment_a, environment_b : mapping
        As `describe_environment` gives it and evidence stores it, with the engine's details under ``engine``.

    Returns
    -------
    list of Difference
        Work first, then machine, then software. A fact that one of them does not have at all (an older version did not
        record it) is passed over; one that is None on one side only is a difference.
    """
    found: list[Difference] = []
    for kind in MUST_MATCH:
        a, b = facts_of(environment_a, kind), facts_of(environment_b, kind)
        found.extend(
            Difference(kind=kind, name=name, a=a[name], b=b[name])
            for name in a
            if name in b and not _same(name, a[name], b[name])
        )
    return found


def facts_of(environment: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the facts of one kind by their dotted names, as far as they are recorded; packages one by one."""
    return facts_named(environment, MUST_MATCH[kind])


def facts_named(environment: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return some facts by their dotted names, as far as they are recorded; packages one by one."""
    found: dict[str, Any] = {}
    for name in names:
        for value in _at(environment, name):
            if name == "packages" and isinstance(value, Mapping):
                found |= {f"packages.{package}": version for package, version in value.items()}
            else:
                found[name] = value
    return found


def _at(environment: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield the value at a dotted name, or nothing; a number is a place in a list."""
    value: Any = environment
    for part in name.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            return
    yield value


def _same(name: str, a: Any, b: Any) -> bool:
    if name == "memory_bytes" and isinstance(a, int) and isinstance(b, int):
        return abs(a - b) <= MEMORY_TOLERANCE * max(a, b)
    return bool(a == b)
