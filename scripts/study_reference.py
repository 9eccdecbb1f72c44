"""Write docs/study.md: every key of a study file, from the models that read it."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from draftproof.engines.script import Script
from draftproof.gate.policy import OFF
from draftproof.study.plan import Plan

PAGE = Path(__file__).parent.parent / "docs" / "study.md"
HEAD = """# Every key of a study

Written by `python scripts/study_reference.py`. A study is a TOML file; only `name` is needed, and a table or key that is left
out takes its default ("-" is none). A key that is not known, and a value that an engine would ignore, are refused. A policy
for `draftproof decide` is a file with the keys of `[policy]`.

`base = "other.toml"` at the top lays a file's keys, table by table, over those of another study, whose path is seen from this
file's folder: `studies/` has one study on three engines. What is stored is the whole.
"""


def render() -> str:
    """Return the page."""
    top = [(name, field) for name, field in Plan.model_fields.items() if _model(field) is None]
    parts = [HEAD, _table("At the top", top)]
    parts += [_table(f"`[{name}]`", list(model.model_fields.items())) for name, model in _tables(Plan)]
    script = [f"| `{item.name}` | {_shown(item.default)} |" for item in dataclasses.fields(Script)]
    parts.append(
        '## `[engine.script]`\n\nWhat the fake does (`kind = "scripted"`); see `draftproof.engines.script.Script`.\n\n'
        "| key | default |\n|---|---|\n" + "\n".join(script) + "\n"
    )
    return "\n".join(parts)


def _tables(model: type[BaseModel], head: str = "") -> list[tuple[str, type[BaseModel]]]:
    """Return every table below a model, those inside a table after it."""
    found = []
    for name, field in model.model_fields.items():
        inner = _model(field)
        if inner is not None:
            found += [(f"{head}{name}", inner), *_tables(inner, f"{head}{name}.")]
    return found


def _model(field: FieldInfo) -> type[BaseModel] | None:
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _table(title: str, fields: list[tuple[str, FieldInfo]]) -> str:
    rows = [
        f"| `{name}` | {_default(field)} | {_allowed(field)} | {' '.join((field.description or '').split())} |"
        for name, field in fields
    ]
    return f"## {title}\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _default(field: FieldInfo) -> str:
    return "needed" if field.is_required() else _shown(field.default)


def _shown(value: Any) -> str:
    if value is None or dataclasses.is_dataclass(value) or isinstance(value, BaseModel):
        return "-"
    return f"`{json.dumps(value)}`"


def _allowed(field: FieldInfo) -> str:
    signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    metadata = [*field.metadata]
    choices = [f'`"{OFF}"`'] if any(isinstance(item, BeforeValidator) for item in field.metadata) else []
    for part in get_args(field.annotation):
        metadata += getattr(part, "__metadata__", ())
        inner = getattr(part, "__metadata__", None)
        for info in inner or ():
            metadata += getattr(info, "metadata", ())
        choices += [f"`{json.dumps(item)}`" for item in get_args(part) or (part,) if isinstance(item, str | int)]
    bounds = [
        f"{word} {getattr(item, sign):g}" for sign, word in signs.items() for item in metadata if hasattr(item, sign)
    ]
    return ", ".join([*choices, *bounds]) or _kind(field.annotation)


def _kind(annotation: Any) -> str:
    if _model(FieldInfo(annotation=annotation)) is not None:
        return "table"
    names = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}
    inner = [part for part in get_args(annotation) if part is not type(None) and part is not Ellipsis]
    if str(annotation).startswith("dict"):
        return "table"
    if str(annotation).startswith("tuple"):
        return "list of " + {"whole number": "whole numbers", "text": "texts"}[names[inner[0]]]
    return names.get(annotation) or (names.get(inner[0], "") if inner else "table")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name} written\n")
