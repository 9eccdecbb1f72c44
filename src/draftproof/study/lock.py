"""The lock: what a study will do is hashed and stored before the first token; what only loading can tell is appended."""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftproof.engines.digest import digest_of
from draftproof.environment import write_probe
from draftproof.errors import OutputError, PlanError
from draftproof.evidence import UNFINISHED, SampledPlanned, Study, write_whole
from draftproof.study.plan import Plan
from draftproof.study.study_file import as_study_file
from draftproof.workload.prompts import WorkloadPrompt


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """
    Keep other runs out of a folder while this one writes into it; clear what a run that was killed had half written.

    Folders made on the way are removed again if nothing was stored in them.

    Raises
    ------
    OutputError
        Another run is in it, or it cannot be made.
    """
    made = [path for path in (out, *out.parents) if not path.exists()]
    write_probe(out)
    handle = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"another run is writing into {out}; wait for it, or choose another --out") from None
        except OSError as error:
            raise OutputError(
                f"{out} cannot be locked: {error.strerror}; choose a folder on a file system that has locks"
            ) from None
        for left in out.glob(f".*{UNFINISHED}"):
            left.unlink()
        yield
    finally:
        os.close(handle)
        with suppress(OSError):
            for path in made:
                path.rmdir()


def open_study(plan: Plan, prompts: Sequence[WorkloadPrompt], out: Path, resume: bool) -> Study:
    """
    Hash the plan, and its prompts (SHA-256 of canonical JSON each), and see that the folder is free for it; writes nothing yet.

    Raises
    ------
    OutputError
        The folder holds a study and ``resume`` is false, or something else.
    PlanError
        The folder's study has another plan or other prompts.
    """
    values = plan.model_dump(mode="json")
    texts = hash_of_prompts(prompts)
    digest = digest_of(values)
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
        if stored["prompts"] != texts:
            raise PlanError(f"{out} was locked with other prompts; changed prompts need another --out")
        locked_at = stored["locked_at"]
    elif any(out.iterdir()):
        raise OutputError(f"{out} holds files and no study's lock; choose an empty or a new folder for --out")
    return Study(name=plan.name, hash=digest, locked_at=locked_at, plan=values, prompts=texts)


def hash_of_prompts(prompts: Sequence[WorkloadPrompt]) -> str:
    """Return the SHA-256 of the canonical JSON of prompts, which a lock and evidence record."""
    return digest_of([asdict(prompt) for prompt in prompts])


def write_lock(study: Study, out: Path, loaded: dict[str, Any]) -> None:
    """
    Store the lock, or append to it how this start of the study resolved what the plan left open.

    The plan is written as ``study.toml`` too, to be read and run again; nothing reads it from there.

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
    lock: dict[str, Any] = {"hash": study.hash, "locked_at": study.locked_at, "plan": study.plan}
    lock |= {"prompts": study.prompts, "loaded": []}
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
    write_whole(out / "study.toml", as_study_file(study.plan))


def append_planned(out: Path, planned: SampledPlanned) -> None:
    """Append to the lock what a pilot says that the sampled check will see, before its first token is drawn."""
    path = out / "lock.json"
    lock = _read(path)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    lock["planned"] = [*lock.get("planned", []), {**planned.model_dump(), "at": at}]
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
        _ = str(lock["hash"]), str(lock["locked_at"]), list(lock["loaded"]), str(lock["prompts"])
    except (OSError, ValueError, KeyError, TypeError):
        raise PlanError(f"{path} is not a lock of a study; choose another --out") from None
    assert isinstance(lock, dict)
    return lock
