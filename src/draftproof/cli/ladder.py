"""``draftproof ladder``: which configuration is verified here, up by a study, down at any time."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from draftproof.cli.json_copy import require_copy
from draftproof.errors import InputError, RefusedError
from draftproof.report.tables import table, text

if TYPE_CHECKING:
    from draftproof.gate.ladder import Ladder

ladder_app = typer.Typer(
    help="Which configuration is verified: up by one passed study for each rung, down at any time.",
    no_args_is_help=True,
)

At = Annotated[Path, typer.Option("--ladder", help="The ladder, an SQLite file.")]
Note = Annotated[str | None, typer.Option("--note", help="Stored with the event, such as who did it.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write what is shown here.")]
DEFAULT = Path("ladder.sqlite")


@ladder_app.command()
def status(at: At = DEFAULT, json_path: Json = None) -> None:
    """Show the rungs and which is active. What no longer fits this machine is taken off and recorded."""
    from draftproof.gate.ladder import refresh

    require_copy(json_path)
    _show(refresh(at, environment_of(models_of(at))), at, json_path)


@ladder_app.command()
def promote(
    evidence: Annotated[Path, typer.Argument(help="The evidence.json of a study with the verdict ADOPT.")],
    at: At = DEFAULT,
    concurrency: Annotated[int | None, typer.Option(help="Which of the study's; needed if it has several.")] = None,
    reason: Annotated[str | None, typer.Option(help="The cause that was found, if the rung had failed before.")] = None,
    note: Note = None,
    json_path: Json = None,
) -> None:
    """Put a study's rung on top. Exit code: 0; refused by a rule: the verdict's, 10 to 12, or 11 for ADOPT."""
    from draftproof import evidence as ev
    from draftproof.engines.digest import sha256
    from draftproof.gate import ladder as rungs
    from draftproof.gate import promote as up
    from draftproof.gate.rung import read_rung

    require_copy(json_path)
    stored, digest = ev.load(evidence), sha256(evidence)
    environment = environment_of({*read_rung(stored, concurrency).models, *models_of(at)})
    try:
        ladder, event = up.promote(at, stored, digest, environment, concurrency=concurrency, reason=reason, note=note)
    except RefusedError:
        _show(rungs.read_ladder(at), at, json_path)
        raise
    _show(ladder, at, json_path)
    _say(f"{rungs.name_of(event)} stands; active: {rungs.name_of(ladder.top)}")


@ladder_app.command()
def rollback(
    reason: Annotated[str, typer.Option(help="Why; it stays in the history.")],
    to: Annotated[
        str | None, typer.Option(help="A rung's number, or target-only; by default the next one down.")
    ] = None,
    at: At = DEFAULT,
    note: Note = None,
    json_path: Json = None,
) -> None:
    """Go down to a lower rung, at the bottom target-only. Needs no study and looks at no environment."""
    from draftproof.gate.ladder import TARGET_ONLY, name_of, roll_back

    require_copy(json_path)
    if to is not None and to != TARGET_ONLY and not to.isdecimal():
        raise InputError(f"--to {to} is no rung; allowed: {TARGET_ONLY}, or a number that `ladder status` shows")
    wanted = None if to is None else 0 if to == TARGET_ONLY else int(to)
    ladder, _ = roll_back(at, to=wanted, reason=reason, note=note)
    _show(ladder, at, json_path)
    _say(f"rolled back; active: {name_of(ladder.top)}")


@ladder_app.command()
def history(at: At = DEFAULT, json_path: Json = None) -> None:
    """Show every event, oldest first."""
    from draftproof.evidence import write_whole
    from draftproof.gate.events import read_events

    require_copy(json_path)
    events = read_events(at)
    if json_path:
        write_whole(json_path, json.dumps([event.model_dump(mode="json") for event in events], indent=2) + "\n")
    for event in events:
        fell = f"from rung {event.promotion} up" if event.promotion else None
        parts = (event.kind.replace("_", " "), event.rung.label if event.rung else None, fell, event.verdict)
        _say(f"{event.id:>4}  {event.at}  {', '.join(filter(None, parts))}")
        evidence = event.evidence_sha256 and f"{event.evidence_sha256[:12]} of study {(event.study_hash or '')[:12]}"
        for name, value in (("why", event.reason), ("evidence", evidence), ("note", event.note)):
            if value:
                _say(f"      {name}: {value}")


def models_of(at: Path) -> set[str]:
    """Return the models of the rungs that stand; a ladder that is not there yet has none."""
    from draftproof.gate.ladder import read_ladder, rung_of

    try:
        return {name for item in read_ladder(at).standing for name in rung_of(item).models}
    except InputError:
        return set()


def environment_of(models: Iterable[str]) -> dict[str, Any]:
    """Return what the fingerprint of this machine is taken of."""
    from draftproof.environment import describe_environment
    from draftproof.gate.model_files import hash_models

    return {**describe_environment(), "models": hash_models(sorted(models))}


def _show(ladder: "Ladder", at: Path, json_path: Path | None) -> None:
    """Print the rungs bottom to top, then what does not stand."""
    from draftproof.evidence import write_whole
    from draftproof.gate.ladder import rung_of

    rungs = _rungs(ladder)
    if json_path:
        active = ladder.top.id if ladder.top else 0
        write_whole(json_path, json.dumps({"ladder": str(at), "active": active, "rungs": rungs}, indent=2) + "\n")
    if ladder.top:
        rung = rung_of(ladder.top)
        parts = (rung.engine["kind"], *rung.models, str(rung.speculation.get("proposer")))
        _say(f"{at}: {', '.join(parts)}")
    shown = table("", ("rung", "configuration", "state", "claim", "why"))
    columns = ("number", "label", "state", "claim", "why")
    for row in rungs:
        shown.add_row(*(text("" if row[key] is None else row[key]) for key in columns))
    Console().print(shown)


def _rungs(ladder: "Ladder") -> list[dict[str, Any]]:
    from draftproof.gate.ladder import TARGET_ONLY, rung_of

    top = ladder.top
    bottom = {"number": 0, "label": TARGET_ONLY, "rung": None, "claim": None}
    rows = [bottom | {"state": "verified" if top else "active", "why": None}]
    for item in ladder.standing:
        row = item.model_dump(mode="json", include={"rung", "at", "evidence_sha256", "study_hash", "environment"})
        row |= {"number": item.id, "label": rung_of(item).label, "claim": rung_of(item).claim}
        is_top = item.id == ladder.standing[-1].id
        rows.append(
            row | {"state": "active" if is_top else "verified", "why": None if is_top else "a higher one is active"}
        )
    for fallen in ladder.fallen:
        row = {"number": None, "label": fallen.rung.label, "rung": fallen.rung.model_dump(mode="json"), "claim": None}
        rows.append(row | {"state": fallen.by.kind.replace("_", " "), "why": fallen.by.reason})
    return rows


def _say(line: str) -> None:
    Console().print(line, markup=False, highlight=False, soft_wrap=True)
