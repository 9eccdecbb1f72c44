"""
A verified rung as text for another engine: the command that starts a server, or Python. Pure; runs and reads nothing.

`commands` has what differs between servers and `generate_code` what transformers needs. A proof is of one engine: what a study
showed of another one does not carry over, and the text says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.errors import InputError, RefusedError
from draftproof.evidence import EXIT_CODES
from draftproof.gate import commands, generate_code
from draftproof.gate.commands import Parallel, Settings
from draftproof.gate.rung import Rung

REFUSED = EXIT_CODES["INCONCLUSIVE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """
    A rung that stands, and what it stands on.

    Attributes
    ----------
    number : int
        Of the rung in its ladder.
    rung : Rung
    study_hash, evidence_sha256 : str
        Of the study that passed.
    """

    number: int
    rung: Rung
    study_hash: str
    evidence_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    What an engine can be told, and how.

    Attributes
    ----------
    proposers : mapping of a proposer's name to what turns it on
        What is not here, the engine cannot do as the rung does.
    dtypes : tuple of str
        Of weights; empty where the file decides.
    write : callable
        From settings, what turns the proposer on, the comment's lines and the parallel layout to the text.
    has_threshold : bool
        Whether drafting can end at a confidence threshold.
    has_batches : bool
        Whether several requests run at once.
    file : str
        What the engine loads, in words.
    is_gguf : bool
    notes : tuple of str
        What the text warns of.
    """

    proposers: Mapping[str, Callable[[Settings], Any]]
    dtypes: tuple[str, ...]
    write: Callable[[Settings, Any, list[str], Parallel], str]
    has_threshold: bool = False
    has_batches: bool = True
    file: str = "a folder with safetensors, or a hub name"
    is_gguf: bool = False
    notes: tuple[str, ...] = ()


TARGETS = {
    "vllm": Target(
        proposers=commands.VLLM, dtypes=("bfloat16", "float32"), write=commands.vllm, notes=commands.VLLM_NOTES
    ),
    "sglang": Target(
        proposers=commands.SGLANG, dtypes=("bfloat16", "float32"), write=commands.sglang, notes=commands.SGLANG_NOTES
    ),
    "llamacpp": Target(
        proposers=commands.LLAMACPP,
        dtypes=(),
        write=commands.llamacpp,
        has_threshold=True,
        file="a .gguf file",
        is_gguf=True,
        notes=commands.LLAMACPP_NOTES,
    ),
    "hf": Target(
        proposers=generate_code.PROPOSERS,
        dtypes=("bfloat16", "float32", "float64"),
        write=generate_code.write,
        has_threshold=True,
        has_batches=False,
    ),
}


def export(
    to: str, approved: Approved, *, parallel: Parallel | None = None, from_another_engine: bool = False
) -> tuple[str, list[str]]:
    """
    Return a rung as text for an engine, and what the user must be told besides.

    Parameters
    ----------
    to : {"vllm", "sglang", "llamacpp", "hf"}
    approved : Approved
    parallel : Parallel or None
        How vLLM spreads one replica; None is one device.
    from_another_engine : bool
        Go on where the study ran on another engine than this.

    Raises
    ------
    InputError
        The engine cannot do what the rung does; the message names it and what is allowed.
    RefusedError
        The study ran on another engine, and ``from_another_engine`` is false.
    """
    parallel = parallel or Parallel()
    rung = approved.rung
    if to not in TARGETS:
        raise InputError(f"engine '{to}' cannot be exported to; allowed: {', '.join(TARGETS)}")
    if parallel != Parallel() and to != "vllm":
        raise InputError(f"a parallel layout was given, and only vllm takes one here; remove it for '{to}'")
    verified_on = _verified_on(rung)
    if rung.speculation.get("proposer") == "server":
        text = _as_launched(to, approved, verified_on, parallel)
        return text, _changed(parallel)
    _require_possible(to, rung)
    told = _changed(parallel)
    if verified_on != to:
        carries = f"the study ran on engine '{verified_on}', and its proof does not carry over to '{to}'"
        if not from_another_engine:
            raise RefusedError(
                f"{carries}; study it there, or write the text for such a study by --from-another-engine", REFUSED
            )
        told = [f"NOT VERIFIED: {carries}.", _remedy(to), *told]
    settings = Settings(rung=rung)
    proposed = TARGETS[to].proposers[rung.speculation["proposer"]](settings)
    comment = [*_origin(to, approved), *told, *TARGETS[to].notes]
    return TARGETS[to].write(settings, proposed, comment, parallel), told


def _verified_on(rung: Rung) -> str:
    """Name the engine that a rung's study ran on, as an export names it where there is one."""
    kind = str(rung.engine["kind"])
    if kind != "openai_http":
        return kind
    named = rung.engine.get("server", "auto")
    launched = (rung.engine.get("launch") or {}).get("speculative") or ()
    return commands.server_of(launched) if named == "auto" and launched else str(named)


def _as_launched(to: str, approved: Approved, verified_on: str, parallel: Parallel) -> str:
    """Return the command that the study itself started its speculative server by."""
    launch: Mapping[str, Any] | None = approved.rung.engine.get("launch")
    if not launch:
        raise InputError(
            f"rung {approved.number} was measured on a server that ran already, so its arguments are not known; "
            "let the study start it ([engine.launch]) and promote that"
        )
    if verified_on != to:
        raise InputError(
            f"rung {approved.number} is a command for '{verified_on}', which has no meaning for '{to}'; "
            f"export it to '{verified_on}', or study '{to}'"
        )
    told = [part.replace("{target}", str(approved.rung.engine.get("target"))) for part in launch["speculative"]]
    command = [*told, *commands.parallel_options(parallel, told)]
    return commands.script(command, [*_origin(to, approved), *_changed(parallel)], launch.get("env") or {})


def _require_possible(to: str, rung: Rung) -> None:
    """Raise InputError for the first thing that an engine cannot do."""
    target, speculation, engine = TARGETS[to], rung.speculation, rung.engine
    proposer = speculation.get("proposer")
    if engine["kind"] == "scripted":
        raise InputError(f"{rung.label} is of the scripted fake, which has no model; nothing to export")
    if proposer not in target.proposers:
        raise InputError(f"proposer '{proposer}' does not run on '{to}'; allowed: {', '.join(target.proposers)}")
    if speculation.get("verification", "rejection") != "rejection":
        rule = speculation["verification"]
        raise InputError(
            f"verification '{rule}' is a rule of draftproof's own engine, not of '{to}'; allowed: rejection"
        )
    if not isinstance(speculation.get("num_speculative_tokens"), int):
        raise InputError(f"{rung.label} has no fixed K, and '{to}' needs one; roll back to a rung with a fixed K")
    if speculation.get("confidence_threshold") and not target.has_threshold:
        raise InputError(f"'{to}' has no confidence_threshold, which {rung.label} sets; export a rung with a fixed K")
    if rung.batch > 1 and not target.has_batches:
        raise InputError(f"'{to}' speculates for one request at a time, and this is {rung.label}; export batch 1")
    if target.dtypes and engine.get("dtype", "bfloat16") not in target.dtypes:
        raise InputError(f"dtype '{engine['dtype']}' does not run on '{to}'; allowed: {', '.join(target.dtypes)}")
    for name in rung.models:
        if name.lower().endswith(".gguf") != target.is_gguf:
            raise InputError(f"'{to}' does not load '{name}'; allowed: {target.file}")


def _origin(to: str, approved: Approved) -> list[str]:
    return [
        f"draftproof export {to}: rung {approved.number} ({approved.rung.label})",
        f"study    {approved.study_hash}",
        f"evidence {approved.evidence_sha256}",
    ]


def _remedy(to: str) -> str:
    if to == "hf":
        return 'Verify it by a study of its own with kind = "hf" before it serves anyone.'
    return 'Verify it by a study of its own (kind = "openai_http", this command in [engine.launch]) before it serves anyone.'


def _changed(parallel: Parallel) -> list[str]:
    if parallel == Parallel():
        return []
    return [
        f"CHANGED SINCE THE STUDY: {parallel.in_words}. Sums are rounded in another order; verify the replica as it will run."
    ]
