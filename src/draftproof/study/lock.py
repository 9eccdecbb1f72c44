"""The lock: what a study will do is hashed and stored before the first token; what only loading can tell is appended."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftproof.environment import write_probe
from draftproof.errors import OutputError, PlanError
from draftproof.evidence import Study, write_whole
from draftproof.study.plan import Plan


def open_study(plan: Plan, out: Path, resume: bool) -> Study:
    """
    Hash the plan (SHA-256 of its canonical JSON) and see that the folder is free for it; writes nothing yet.

    Raises
    ------
    OutputError
        The folder already holds a study and ``resume`` is false, or it cannot be written.
    PlanError
        The folder's study has another plan.
    """
    values = plan.model_dump(mode="json")
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    write_probe(out)
    path = out / "lock.json"
    locked_at = datetime.now(UTC).isoformat(timespec="seconds")
    if path.exists():
        if not resume:
            raise OutputError(f"{out} already holds a study; use --resume to go on with it, or another --out")
        stored = _read(path)
        if stored["hash"] != digest:
            raise PlanError(
                f"{out} was locked with another plan ({stored['hash'][:12]}); a changed plan needs another --out"
            )
        locked_at = stored["locked_at"]
    return Study(name=plan.name, hash=digest, locked_at=locked_at, plan=values)


def write_lock(study: Study, out: Path, loaded: dict[str, Any]) -> None:
    """
    Store the lock, or append to it how this start of the study resolved what the plan left open.

    Parameters
    ----------
    loaded : dict
        Threads, context limit, the engine's capabilities.

    Raises
    ------
    PlanError
        The study was begun under other facts, so that its parts could not be compared.
    """
    path = out / "lock.json"
    lock: dict[str, Any] = {"hash": study.hash, "locked_at": study.locked_at, "plan": study.plan, "loaded": []}
    if path.exists():
        lock = _read(path)
    begun, resumed = _leaves(lock["loaded"][0] if lock["loaded"] else {}), _leaves(json.loads(json.dumps(loaded)))
    for key, value in begun.items():
        if key != "at" and resumed.get(key) != value:
            raise PlanError(
                f"{out} was begun with {key} = {value}, and now it is {resumed.get(key)}; the parts could not be compared: "
                "use another --out, or remove the folder"
            )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lock["loaded"] = [*lock["loaded"], {**loaded, "at": now}]
    write_whole(path, json.dumps(lock, indent=2) + "\n")


def _leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _leaves(item, f"{name}.{key}" if name else str(key))
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        lock = json.loads(path.read_text(encoding="utf-8"))
        _ = str(lock["hash"]), str(lock["locked_at"]), list(lock["loaded"])
    except (OSError, ValueError, KeyError, TypeError):
        raise PlanError(f"{path} is not a lock of a study; choose another --out") from None
    assert isinstance(lock, dict)
    return lock
