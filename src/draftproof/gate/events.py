"""
The events of a ladder, in one SQLite file. They are appended and never changed; what they mean is folded elsewhere.

A rollback journal and not a write-ahead log: one file at rest, also on a network disk, and a reader needs no side files.
``synchronous = EXTRA`` is FULL and syncs the folder too, so that an event that was acknowledged outlives a power cut.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from draftproof.errors import InputError, OutputError
from draftproof.evidence import VerdictName
from draftproof.gate.rung import Rung

APPLICATION_ID = 0x6470_6C64
SCHEMA_VERSION = 1
BUSY_S = 10.0
COLUMNS = (
    *("at", "kind", "promotion", "rung", "evidence_sha256", "study_hash", "verdict", "environment", "reason", "note"),
)
IN_JSON = ("rung", "environment")
SCHEMA = (
    """
    CREATE TABLE event (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, kind TEXT NOT NULL, promotion INTEGER, rung TEXT,
        evidence_sha256 TEXT, study_hash TEXT, verdict TEXT, environment TEXT, reason TEXT, note TEXT
    )
    """,
    "CREATE TRIGGER no_update BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, 'events are never changed'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON event BEGIN SELECT RAISE(ABORT, 'events are never removed'); END",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

Kind = Literal["created", "promoted", "refused", "failed", "expired", "rolled_back"]


class Event(BaseModel):
    """
    Something that happened to a ladder.

    Attributes
    ----------
    id : int
        Ascending from 1. That of a promotion is the rung's number.
    at : str
        UTC, ISO 8601.
    kind : str
    promotion : int or None
        Which rung fell; every rung above it fell with it.
    rung : Rung or None
    evidence_sha256, study_hash, verdict
        Of the evidence that was given.
    environment : dict or None
        Fingerprint of the environment that the evidence was measured in.
    reason : str or None
        Why, in words.
    note : str or None
        Whatever the user wanted to have noted, such as a name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: int
    at: str
    kind: Kind
    promotion: int | None = None
    rung: Rung | None = None
    evidence_sha256: str | None = None
    study_hash: str | None = None
    verdict: VerdictName | None = None
    environment: dict[str, Any] | None = None
    reason: str | None = None
    note: str | None = None


class Log:
    """The events of an open ladder."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path, self._connection = path, connection

    def read(self) -> list[Event]:
        """
        Return every event, oldest first.

        Raises
        ------
        InputError
            One of them is not an event.
        """
        rows = self._connection.execute(f"SELECT id, {', '.join(COLUMNS)} FROM event ORDER BY id").fetchall()
        try:
            return [_event(row) for row in rows]
        except (ValidationError, ValueError):
            raise InputError(f"ladder {self._path} holds an event that cannot be read; put a copy back") from None

    def append(self, kind: Kind, **values: Any) -> Event:
        """Append an event; it is there for good once the transaction has ended."""
        values |= {"kind": kind, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        event = Event(id=0, **values)
        fields = event.model_dump(mode="json")
        stored = [
            json.dumps(fields[name]) if name in IN_JSON and fields[name] is not None else fields[name]
            for name in COLUMNS
        ]
        marks = ", ".join("?" * len(COLUMNS))
        cursor = self._connection.execute(f"INSERT INTO event ({', '.join(COLUMNS)}) VALUES ({marks})", stored)
        return event.model_copy(update={"id": cursor.lastrowid})


def read_events(path: Path) -> list[Event]:
    """
    Return every event of a ladder, oldest first.

    Raises
    ------
    InputError
        There is no ladder, or the file cannot be used.
    """
    with _opened(path, "rw") as connection:
        if not _is_ladder(path, connection):
            raise _missing(path)
        return Log(path, connection).read()


@contextmanager
def writing(path: Path, *, create: bool = False) -> Iterator[Log]:
    """
    Hold a ladder alone; what was appended is stored, all or nothing, when the block ends without an error.

    Raises
    ------
    InputError, OutputError
        There is no ladder and ``create`` is false, or the file cannot be used or written.
    """
    with _opened(path, "rwc" if create else "rw") as connection:
        connection.execute("BEGIN IMMEDIATE")
        log = Log(path, connection)
        if not _is_ladder(path, connection):
            if not create:
                raise _missing(path)
            for statement in SCHEMA:
                connection.execute(statement)
            log.append("created")
        yield log
        connection.execute("COMMIT")


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    try:
        address = f"file:{quote(str(path.absolute()))}?mode={mode}"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            yield connection
    except sqlite3.Error as error:
        raise _translated(path, error, mode) from None


def _is_ladder(path: Path, connection: sqlite3.Connection) -> bool:
    """Whether a file has a ladder's tables; an empty one has not, and what is another's is refused."""
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    if found == [APPLICATION_ID, SCHEMA_VERSION]:
        return True
    if found[0] == APPLICATION_ID:
        raise InputError(
            f"ladder {path} has schema version {found[1]}, and this draftproof reads {SCHEMA_VERSION}; use the draftproof "
            "that wrote it, or begin another --ladder"
        )
    if found != [0, 0] or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise InputError(f"{path} is a database of another program; choose another --ladder")
    return False


def _missing(path: Path) -> InputError:
    return InputError(
        f"there is no ladder at {path} that can be read; check --ladder, or begin one: draftproof ladder promote EVIDENCE"
    )


def _translated(path: Path, error: sqlite3.Error, mode: str) -> InputError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_CANTOPEN and mode == "rw":
        return _missing(path)
    if code == sqlite3.SQLITE_NOTADB:
        return InputError(f"{path} is no ladder: the file is not a database; choose another --ladder")
    if code == sqlite3.SQLITE_BUSY:
        return OutputError(f"ladder {path} has been locked by another process for {BUSY_S:g} s; try again")
    return OutputError(f"ladder {path} cannot be used: {error}; check the file, its folder and the disk")


def _event(row: tuple[Any, ...]) -> Event:
    values = dict(zip(("id", *COLUMNS), row, strict=True))
    return Event(**values | {name: json.loads(values[name]) for name in IN_JSON if values[name] is not None})
