"""A study file: read over its base into a plan, and a plan written back as TOML."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from draftproof.errors import PlanError
from draftproof.gate.policy import OFF
from draftproof.study.plan import Plan, parse_plan

_BARE = re.compile(r"[A-Za-z0-9_-]+")
# of no study file, but of the command line
_OF_A_SWEEP = "sweep"


def load_plan(path: Path) -> Plan:
    """
    Read a study file; its key ``base`` names another one, over whose values its own are laid.

    Raises
    ------
    PlanError
        A file is missing, is not TOML, or is not a valid plan.
    """
    return parse_plan(_read(path), str(path))


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


def _read(path: Path, among: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return a file's values over those of its ``base``, table by table."""
    if path.resolve() in among:
        raise PlanError(f"study {path} is its own base; remove that key there")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"cannot read study {path}: {error.strerror}; give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise PlanError(f"study {path} is not TOML: it is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"study {path} is not TOML: {error}; docs/study.md shows its shape") from None
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise PlanError(f"study {path}: base = {base!r}: give the path of another study, seen from this one's folder")
    return _over(_read(path.parent / base, (*among, path.resolve())), values)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    tables = {name for name in above if isinstance(above[name], dict) and isinstance(below.get(name), dict)}
    return {**below, **above, **{name: _over(below[name], above[name]) for name in tables}}


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
