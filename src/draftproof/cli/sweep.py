"""``draftproof sweep``: a table of arms at each batch, and the lines of the study that should come next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from draftproof.cli.json_copy import require_copy
from draftproof.cli.quiet import Quiet, print_last
from draftproof.errors import InputError
from draftproof.report import words
from draftproof.report.tables import table, text
from draftproof.study.study_file import load_plan

if TYPE_CHECKING:
    from draftproof.study.sweep_result import Recommended


def sweep(
    study: Annotated[Path, typer.Argument(help="The study, a TOML file; its speculation is replaced arm by arm.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for everything the sweep writes.")],
    k: Annotated[str, typer.Option("--k", help="Numbers of drafted tokens per round.")] = "1,2,4,8",
    proposers: Annotated[
        str,
        typer.Option(help="Such as prompt-lookup,early-exit:10,draft-model:NAME. By default the study's own."),
    ] = "",
    batch: Annotated[str, typer.Option(help="Requests at a time. By default the study's concurrency.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep that is in the folder.")] = False,
    quiet: Quiet = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write sweep.json's content here.")] = None,
) -> None:
    """Find the fastest k and proposer for each batch; stops hopeless arms early. It explores: a study of its own decides."""
    from draftproof.cli.progress import progress_into
    from draftproof.evidence import write_whole
    from draftproof.study.arms import sweep_plan
    from draftproof.study.sweep import run_sweep

    require_copy(json_path, out)
    plan = load_plan(study)
    levels = _numbers("--batch", batch) if batch else plan.workload.concurrency
    swept = sweep_plan(plan, _numbers("--k", k), tuple(filter(None, proposers.split(","))), levels)
    console = Console(quiet=quiet)
    with progress_into(out, console) as progress:
        result = run_sweep(swept, out, resume=resume, progress=progress)
    if json_path:
        write_whole(json_path, result.model_dump_json(indent=2) + "\n")
    for best in result.recommended:
        names = ("proposer", "k", "prompts", "speed-up", "acceptance", "accepted per round", "")
        shown = table(f"{best.batch} at a time", names)
        for arm in result.arms:
            if arm.batch == best.batch:
                chosen = (arm.proposer, arm.num_speculative_tokens) == (best.proposer, best.num_speculative_tokens)
                shown.add_row(
                    text(arm.proposer),
                    str(arm.num_speculative_tokens),
                    str(arm.prompts),
                    words.ratio_span(arm.speedup),
                    words.percent(arm.acceptance_rate),
                    words.number(arm.accepted_per_round),
                    text("fastest" if chosen else f"dropped {arm.dropped.partition(':')[0]}" if arm.dropped else ""),
                    style="bold" if chosen else "",
                )
        console.print(shown)
        for line in _sentences(best):
            console.print(text(line))
        if best.study_lines:
            console.print(text(f"\n{best.study_lines}\n"))
    console.print(text(result.rule))
    console.print(text(result.note))
    fastest = "; ".join(f"{best.batch} at a time {_name(best)}" for best in result.recommended)
    print_last(f"Fastest: {fastest}   result: {out / 'sweep.json'}")


def _sentences(best: "Recommended") -> list[str]:
    if best.proposer is None:
        return ["fastest: target-only; no arm that was run to the end is faster"]
    said = [f"fastest: {_name(best)}, {words.ratio_span(best.speedup)}"]
    if not best.shown_faster:
        said.append("its interval does not lie above 1: it was not shown to be faster than target-only")
    if best.not_told_apart:
        said.append(f"not told apart from it: {', '.join(best.not_told_apart)}")
    if best.best_by_acceptance not in (None, _name(best)):
        said.append(f"the highest acceptance rate is that of {best.best_by_acceptance}, which is not the fastest")
    return said


def _name(best: "Recommended") -> str:
    return "target-only" if best.proposer is None else f"{best.proposer} k={best.num_speculative_tokens}"


def _numbers(option: str, given: str) -> tuple[int, ...]:
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"{option} = '{given}': allowed are whole numbers with commas between, such as 1,2,4")
    return tuple(map(int, parts))
