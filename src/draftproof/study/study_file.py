"""A plan back as a study file: what differs from the defaults, as TOML. Reads and writes nothing."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from draftproof.gate.policy import OFF
from draftproof.study.plan import Plan, parse_plan

_BARE = re.compile(r"[A-Za-z0-9_-]+")
# of no study file, but of the command line
_OF_A_SWEEP = "sweep"


def as_study_file(plan: Mapping[str, Any]) -> str:
    """
    Return a study file that reads as a plan.

    Parameters
    ----------
    plan : mapping
        As a lock stores it; what a sweep adds to it is left out.
    """
    values = {name: value for name, value in plan.items() if name != _OF_A_SWEEP}
    whole: Plan = parse_plan(values, "in the lock")
    return "\n".join(_lines(whole.model_dump(mode="json", exclude_defaults=True))).lstrip() + "\n"


def _lines(table: Mapping[str, Any], name: str = "") -> Iterator[str]:
    for key, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            inner = f"{name}.{_key(key)}" if name else _key(key)
            yield f"\n[{inner}]"
            yield from _lines(value, inner)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    # a limit is the one thing that is None and has another default
    return json.dumps(OFF if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")
