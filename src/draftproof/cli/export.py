"""``draftproof export``: the command or code of a verified rung, for the engine that is to run it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli.ladder import DEFAULT, At, environment_of, models_of
from draftproof.errors import InputError, RefusedError

if TYPE_CHECKING:
    from draftproof.gate.events import Event
    from draftproof.gate.rung import Rung

DEMO = "smollm2-135m-instruct"


def export(
    to: Annotated[str, typer.Argument(help="The engine: vllm, sglang, llamacpp or hf.")],
    at: At = DEFAULT,
    rung: Annotated[
        int | None, typer.Option(help="Its number, as `ladder status` shows; by default the active one.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; by default it is printed.")] = None,
    tensor: Annotated[int, typer.Option("--tensor-parallel", help="vLLM: devices that share each layer.")] = 1,
    pipeline: Annotated[int, typer.Option("--pipeline-parallel", help="vLLM: groups of layers.")] = 1,
    nodes: Annotated[int, typer.Option("--nodes", help="vLLM: machines, joined by Ray.")] = 1,
    from_another_engine: Annotated[
        bool,
        typer.Option("--from-another-engine", help="Also where the study ran on another engine: then not verified."),
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the text and what it is of.")] = None,
) -> None:
    """Write how a verified rung is started elsewhere. Exit code: 0; 11 if the rung, or its proof there, does not hold."""
    from draftproof.evidence import require_writable, write_whole
    from draftproof.gate.commands import Parallel
    from draftproof.gate.export import TARGETS, Approved
    from draftproof.gate.export import export as write_rung

    if to not in TARGETS:
        raise InputError(f"engine '{to}' cannot be exported to; allowed: {', '.join(TARGETS)}")
    parallel = Parallel(tensor=tensor, pipeline=pipeline, nodes=nodes)
    event = _standing(at, rung)
    if event.rung is None or event.study_hash is None or event.evidence_sha256 is None:
        raise InputError(f"rung {event.id} of {at} names no study; promote it again by its evidence.json")
    approved = Approved(
        number=event.id, rung=_located(event.rung), study_hash=event.study_hash, evidence_sha256=event.evidence_sha256
    )
    text, told = write_rung(to, approved, parallel=parallel, from_another_engine=from_another_engine)
    for path in filter(None, (out, json_path)):
        require_writable(path)
    if json_path:
        shown = {"engine": to, "rung": event.id, "study": event.study_hash, "evidence": event.evidence_sha256}
        write_whole(json_path, json.dumps({**shown, "told": told, "text": text}, indent=2) + "\n")
    if out:
        write_whole(out, text)
    else:
        sys.stdout.write(text)
    for line in told:
        sys.stderr.write(f"draftproof: {line}\n")


def _standing(at: Path, number: int | None) -> "Event":
    """
    Return the promotion of a rung that holds here, the highest if no number is given.

    Raises
    ------
    RefusedError
        It does not hold, or none does.
    """
    from draftproof.gate.export import REFUSED
    from draftproof.gate.ladder import standing_here

    standing, why = standing_here(at, environment_of(models_of(at)))
    found = next((event for event in reversed(standing) if number is None or event.id == number), None)
    if found is not None:
        return found
    if number is None:
        raise RefusedError(f"no rung of {at} stands{why}; only a verified rung is exported", REFUSED)
    numbers = ", ".join(str(event.id) for event in standing) or "none"
    raise RefusedError(f"rung {number} of {at} does not stand{why}; allowed: {numbers}", REFUSED)


def _located(rung: "Rung") -> "Rung":
    """Put paths for names of models that only draftproof, or only a shell, would understand."""
    return rung.model_copy(
        update={
            "engine": rung.engine | _path(rung.engine, "target"),
            "speculation": rung.speculation | _path(rung.speculation, "draft"),
        }
    )


def _path(table: dict[str, Any], key: str) -> dict[str, str]:
    name = table.get(key)
    if not isinstance(name, str):
        return {}
    if name.lower() == DEMO:
        from draftproof.engines.resolve import resolve

        return {key: str(resolve(name, lambda message: None))}
    return {key: str(Path(name).expanduser())} if name.startswith("~") else {}
