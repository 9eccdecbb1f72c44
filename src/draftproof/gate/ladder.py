"""
The ladder of verified configurations: what stands, what has expired, and the way down to the last verified rung.

Rungs form a stack on target-only. What fails, expires or is rolled back takes every rung above it along. State is folded from
the events whenever it is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof import __version__
from draftproof.errors import DraftproofError, InputError
from draftproof.gate.events import Event, Log, read_events, writing
from draftproof.gate.fingerprint import differences, fingerprint
from draftproof.gate.rung import Rung

TARGET_ONLY = "target-only"
FALLS = ("failed", "expired", "rolled_back")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallen:
    """A configuration that does not stand, and the event that says why."""

    rung: Rung
    by: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """
    What the events say.

    Attributes
    ----------
    standing : tuple of Event
        The promotions that hold, bottom to top.
    fallen : tuple of Fallen
        Configurations that stood or failed and do not stand, each with what happened to it last.
    """

    standing: tuple[Event, ...]
    fallen: tuple[Fallen, ...]

    @property
    def top(self) -> Event | None:
        """The promotion of the active rung; None is target-only."""
        return self.standing[-1] if self.standing else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """
    What may run.

    Attributes
    ----------
    rung : Rung or None
        None is target-only.
    number : int
        Of the rung, 0 for target-only.
    reason : str
    """

    rung: Rung | None
    number: int
    reason: str


def fold(events: Sequence[Event]) -> Ladder:
    """Return what the events, oldest first, leave standing."""
    standing: list[Event] = []
    fallen: dict[str, Fallen] = {}
    for event in events:
        if event.kind == "promoted":
            standing.append(event)
            fallen.pop(rung_of(event).key, None)
        elif event.kind in FALLS:
            down = [event] if event.kind == "failed" else []
            while event.promotion is not None and standing and standing[-1].id >= event.promotion:
                down.append(standing.pop())
            fallen |= {rung_of(item).key: Fallen(rung=rung_of(item), by=event) for item in down}
    return Ladder(standing=tuple(standing), fallen=tuple(fallen.values()))


def rung_of(event: Event) -> Rung:
    """Return the rung of a promotion or a failure."""
    assert event.rung is not None
    return event.rung


def name_of(event: Event | None) -> str:
    """Return a promotion in words."""
    return TARGET_ONLY if event is None else f"rung {event.id} ({rung_of(event).label})"


def read_ladder(path: Path) -> Ladder:
    """
    Return a ladder as it was left, without a look at this machine.

    Raises
    ------
    InputError
        There is no ladder, or the file cannot be used.
    """
    return fold(read_events(path))


def refresh(path: Path, environment: Mapping[str, Any]) -> Ladder:
    """
    Return a ladder after what has expired on this machine was taken off it.

    Parameters
    ----------
    environment : mapping
        As `fingerprint.fingerprint` takes it.

    Raises
    ------
    InputError
        There is no ladder, or the file cannot be used.
    """
    present = fingerprint(environment, __version__)
    ladder = read_ladder(path)
    if _first_expired(ladder, present) is None:
        return ladder
    with writing(path) as log:
        return expire(log, present)


def roll_back(path: Path, *, to: int | None = None, reason: str, note: str | None = None) -> tuple[Ladder, Event]:
    """
    Go down to the last verified rung, whatever this machine is like.

    Parameters
    ----------
    to : int or None
        A lower rung's number, 0 for target-only; None is the next one down.
    reason : str
    note : str or None
        Stored with the event.

    Raises
    ------
    InputError
        There is no such rung below the active one, or the file cannot be used.
    """
    with writing(path) as log:
        standing = fold(log.read()).standing
        if not standing:
            raise InputError(f"ladder {path} is at {TARGET_ONLY}, and nothing is below it")
        below = [0, *(item.id for item in standing[:-1])]
        wanted = below[-1] if to is None else to
        if wanted not in below:
            numbers = ", ".join([TARGET_ONLY, *map(str, below[1:])])
            raise InputError(f"there is no rung {wanted} below the active {name_of(standing[-1])}; allowed: {numbers}")
        first = next(item for item in standing if item.id > wanted)
        event = log.append("rolled_back", promotion=first.id, rung=first.rung, reason=reason, note=note)
        return fold(log.read()), event


def active(path: Path, environment: Mapping[str, Any]) -> Active:
    """
    Return the highest rung that may run here, and target-only if there is none or the ladder cannot be read.

    Stores nothing: what has expired is passed over.

    Parameters
    ----------
    environment : mapping
        As `fingerprint.fingerprint` takes it.
    """
    try:
        standing, why = standing_here(path, environment)
    except DraftproofError as error:
        return Active(rung=None, number=0, reason=str(error))
    if not standing:
        return Active(rung=None, number=0, reason=f"no rung stands{why}")
    top = standing[-1]
    return Active(rung=rung_of(top), number=top.id, reason=f"promoted by study {(top.study_hash or '')[:12]}{why}")


def standing_here(path: Path, environment: Mapping[str, Any]) -> tuple[tuple[Event, ...], str]:
    """
    Return the promotions that hold on this machine, bottom to top, and why the others do not; stores nothing.

    Parameters
    ----------
    environment : mapping
        As `fingerprint.fingerprint` takes it.

    Raises
    ------
    InputError
        There is no ladder, or the file cannot be used.
    """
    ladder = read_ladder(path)
    found = _first_expired(ladder, fingerprint(environment, __version__))
    if found is None:
        return ladder.standing, ""
    standing = ladder.standing[: ladder.standing.index(found[0])]
    return standing, f"; {name_of(found[0])} has expired: {found[1]}"


def _first_expired(ladder: Ladder, present: Mapping[str, Any]) -> tuple[Event, str] | None:
    for item in ladder.standing:
        if changed := differences(item.environment or {}, present):
            return item, ", ".join(changed)
    return None


def expire(log: Log, present: Mapping[str, Any]) -> Ladder:
    """Take what differs from this machine's fingerprint off an open ladder."""
    ladder = fold(log.read())
    found = _first_expired(ladder, present)
    if found is None:
        return ladder
    log.append("expired", promotion=found[0].id, rung=found[0].rung, reason=found[1])
    return fold(log.read())
