"""
The ladder of verified configurations: up by a passed study of one rung each, down to the last verified rung.

Rungs form a stack on target-only. What fails, expires or is rolled back takes every rung above it along. State is folded from
the events whenever it is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof import __version__
from draftproof.errors import DraftproofError, InputError, RefusedError
from draftproof.evidence import EXIT_CODES, Evidence, VerdictName
from draftproof.gate.events import Event, Log, read_events, writing
from draftproof.gate.fingerprint import MODELS, differences, fingerprint
from draftproof.gate.rung import Rung, misstep, read_rung

TARGET_ONLY = "target-only"
# a study that says so has shown something against its rung; an inconclusive one has shown nothing
AGAINST = ("KEEP_TARGET_ONLY", "ROLL_BACK")
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
        return _expire(log, present)


def promote(
    path: Path,
    evidence: Evidence,
    evidence_sha256: str,
    environment: Mapping[str, Any],
    *,
    concurrency: int | None = None,
    reason: str | None = None,
    note: str | None = None,
) -> tuple[Ladder, Event]:
    """
    Put the rung that a study measured on top of a ladder, which is begun if there is none.

    Parameters
    ----------
    evidence_sha256 : str
        Of the file that the evidence was read from.
    environment : mapping
        Of this machine, as `fingerprint.fingerprint` takes it.
    concurrency : int or None
        Which of the study's; None if it has one only.
    reason : str or None
        What was found, for a rung that had failed or was rolled back.
    note : str or None
        Stored with the event.

    Returns
    -------
    Ladder, Event
        The promotion; that of a rung which stood already is the old one.

    Raises
    ------
    RefusedError
        A rule stands against it. That is stored too; a study that speaks against a rung which stands takes it down.
    InputError, OutputError
        The evidence has no such rung, or the file cannot be used.
    """
    rung = read_rung(evidence, concurrency)
    present = fingerprint(environment, __version__)
    measured = fingerprint({**evidence.environment, "models": _hashed(evidence, rung)}, evidence.draftproof_version)
    # for a file that the study did not hash, it vouches as the file is now
    models = tuple(f"{MODELS}{name}." for name in rung.models)
    measured = {name: value for name, value in present.items() if name.startswith(models)} | measured
    verdict = _verdict(evidence, rung.batch)
    given: dict[str, Any] = {
        "rung": rung,
        "evidence_sha256": evidence_sha256,
        "study_hash": evidence.study.hash,
        "verdict": verdict,
        "environment": measured,
        "note": note,
    }
    with writing(path, create=True) as log:
        ladder = _expire(log, present)
        same = next((item for item in ladder.standing if rung_of(item).key == rung.key), None)
        against = [*_against_evidence(evidence, rung.batch, verdict), *_against_environment(measured, present)]
        if same is not None and not against:
            return ladder, same
        if same is None and not against:
            against = _against_step(log, ladder, rung, evidence_sha256, reason)
        if not against:
            event = log.append("promoted", reason=reason, **given)
            return fold(log.read()), event
        told = "; ".join(against)
        has_failed = verdict in AGAINST and evidence.decision.registered and not differences(measured, present)
        lost = same.id if has_failed and same is not None else None
        log.append("failed" if has_failed else "refused", promotion=lost, reason=told, **given)
        top = name_of(fold(log.read()).top)
    raise RefusedError(
        f"{rung.label} is refused: {told}; active: {top}", EXIT_CODES[verdict] or EXIT_CODES["INCONCLUSIVE"]
    )


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
        ladder = read_ladder(path)
    except DraftproofError as error:
        return Active(rung=None, number=0, reason=str(error))
    found = _first_expired(ladder, fingerprint(environment, __version__))
    standing = ladder.standing if found is None else ladder.standing[: ladder.standing.index(found[0])]
    why = "" if found is None else f"; {name_of(found[0])} has expired: {found[1]}"
    if not standing:
        return Active(rung=None, number=0, reason=f"no rung stands{why}")
    top = standing[-1]
    return Active(rung=rung_of(top), number=top.id, reason=f"promoted by study {(top.study_hash or '')[:12]}{why}")


def _first_expired(ladder: Ladder, present: Mapping[str, Any]) -> tuple[Event, str] | None:
    for item in ladder.standing:
        if changed := differences(item.environment or {}, present):
            return item, ", ".join(changed)
    return None


def _expire(log: Log, present: Mapping[str, Any]) -> Ladder:
    ladder = fold(log.read())
    found = _first_expired(ladder, present)
    if found is None:
        return ladder
    log.append("expired", promotion=found[0].id, rung=found[0].rung, reason=found[1])
    return fold(log.read())


def _hashed(evidence: Evidence, rung: Rung) -> dict[str, Mapping[str, Any]]:
    """Return the hashes that a study recorded of its models, by name."""
    recorded = (evidence.environment.get("engine") or {}).get("model") or {}
    parts = [recorded.get("target"), *(recorded.get("drafts") or ())]
    return {name: found for name, found in zip(rung.models, parts, strict=False) if found is not None}


def _verdict(evidence: Evidence, batch: int) -> VerdictName:
    """Return the worse of a study's own verdict and that at one concurrency."""
    decision = evidence.decision
    return max((decision.verdict, decision.by_concurrency.get(str(batch), "INCONCLUSIVE")), key=EXIT_CODES.__getitem__)


def _against_evidence(evidence: Evidence, batch: int, verdict: VerdictName) -> list[str]:
    decision, against = evidence.decision, []
    if verdict != "ADOPT":
        here = decision.by_concurrency.get(str(batch), "missing")
        against.append(f"the verdict is {decision.verdict}, and {here} at concurrency {batch}, not ADOPT")
    if not decision.registered:
        against.append("it was decided by another policy than the one that was locked before the run")
    if evidence.stopped is not None:
        against.append(f"the study stopped early ({evidence.stopped.rstrip('.')})")
    return against


def _against_environment(measured: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    changed = differences(measured, present)
    return [f"it was measured in another environment, so run the study here: {', '.join(changed)}"] if changed else []


def _against_step(log: Log, ladder: Ladder, rung: Rung, evidence_sha256: str, reason: str | None) -> list[str]:
    wrong = misstep(None if ladder.top is None else rung_of(ladder.top), rung)
    against = [] if wrong is None else [wrong]
    used = next((item for item in ladder.standing if item.evidence_sha256 == evidence_sha256), None)
    if used is not None:
        against.append(f"its evidence has promoted {name_of(used)} already, and each rung needs a study of its own")
    fall = next((item.by for item in ladder.fallen if item.rung.key == rung.key), None)
    if fall is None or fall.kind == "expired":
        return against
    if fall.kind == "failed" and any(
        event.evidence_sha256 == evidence_sha256 and event.id < fall.id for event in log.read()
    ):
        against.append(f"it failed after this evidence was given ({fall.at}); run a new study")
    if not reason:
        against.append(
            f"it {'failed' if fall.kind == 'failed' else 'was rolled back'} at {fall.at} ({fall.reason}); say by --reason what "
            "the cause was"
        )
    return against
