"""Facts that a host may not show: each is looked for alone, and one that is absent says why."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Absent(LookupError):
    """The host does not show a fact; the text says why."""


def gather(finders: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return each fact by its name; one that is absent is None, and the table ``absent`` gives the reason."""
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name, find in finders.items():
        try:
            found[name] = find()
        except Absent as reason:
            found[name] = None
            absent[name] = str(reason)
    return {**found, "absent": absent}


def read(path: Path) -> str:
    """
    Return a small file of the kernel without its last line break.

    Raises
    ------
    Absent
        It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError as error:
        raise Absent(f"{path}: {error.strerror}") from None
