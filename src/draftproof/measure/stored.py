"""A study that was run before, read back: its evidence and its requests. Changes nothing in its folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof import evidence as ev
from draftproof.errors import InputError

NEEDED = ("prompt_id", "block", "repeat", "concurrency", "latency_ms", "chunks", "token_ids", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """
    A finished study.

    Attributes
    ----------
    name : str
        What tells it from the others.
    evidence : Evidence
    records : tuple of request records, or None
        Those without an error; None where no ``requests.jsonl`` lies beside the evidence.
    """

    name: str
    evidence: ev.Evidence
    records: tuple[dict[str, Any], ...] | None


def load_runs(paths: Sequence[Path]) -> list[StoredRun]:
    """
    Read studies.

    Parameters
    ----------
    paths : sequence of Path
        Each a study's folder or its evidence.json.

    Returns
    -------
    list of StoredRun
        Named by their folders, or by the paths as given where two folders have one name.

    Raises
    ------
    InputError
        There are fewer than two, or one cannot be read.
    """
    if len(paths) < 2:
        raise InputError(f"{len(paths)} run given: a comparison needs 2 or more; give folders of finished studies")
    names = [evidence_file(path).resolve().parent.name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [_load(evidence_file(path), name) for path, name in zip(paths, names, strict=True)]


def load_run(path: Path) -> StoredRun:
    """Read one study, as `load_runs` does."""
    file = evidence_file(path)
    return _load(file, file.resolve().parent.name)


def evidence_file(path: Path) -> Path:
    """Return the evidence.json of a study that is named by its folder or by that file."""
    return path / "evidence.json" if path.is_dir() else path


def _load(path: Path, name: str) -> StoredRun:
    if not path.exists() and (path.parent / "lock.json").exists():
        raise InputError(f"{path.parent} holds a study that has not finished; go on with it by --resume first")
    return StoredRun(name=name, evidence=ev.load(path), records=_requests(path.parent / "requests.jsonl"))


def _requests(path: Path) -> tuple[dict[str, Any], ...] | None:
    if not path.exists():
        return None
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return tuple(record for record in records if [record[key] for key in NEEDED] and not record["error"])
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; make it readable, or remove it") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path} is not the requests of a study; go on with the study by --resume, or remove it"
        ) from None
