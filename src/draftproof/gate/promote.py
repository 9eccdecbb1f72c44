"""The way up the ladder: a study's rung is promoted only where no rule stands against it, and every refusal is stored."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof import __version__
from draftproof.errors import RefusedError
from draftproof.evidence import EXIT_CODES, Evidence, VerdictName
from draftproof.gate.events import Event, Log, writing
from draftproof.gate.fingerprint import MODELS, SERVERS, differences, fingerprint
from draftproof.gate.ladder import Ladder, expire, fold, name_of, rung_of
from draftproof.gate.rung import Rung, misstep, read_rung

# a study that says so has shown something against its rung; an inconclusive one has shown nothing
AGAINST = ("KEEP_TARGET_ONLY", "ROLL_BACK")


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
    if rung.engine["kind"] != "openai_http":
        measured = {name: value for name, value in measured.items() if name not in SERVERS}
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
        ladder = expire(log, present)
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


def _hashed(evidence: Evidence, rung: Rung) -> dict[str, Mapping[str, Any]]:
    """Return the hashes that a study recorded of its models, by name."""
    engine = evidence.environment.get("engine")
    recorded = engine.get("model") if isinstance(engine, Mapping) else None
    if not isinstance(recorded, Mapping):
        return {}
    parts = [recorded.get("target"), *(recorded.get("drafts") or ())]
    return {name: found for name, found in zip(rung.models, parts, strict=False) if isinstance(found, Mapping)}


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
