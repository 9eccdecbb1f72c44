"""``draftproof rerun``: a study once more, and whether it came out the same."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftproof.cli.quiet import Quiet, print_last
from draftproof.evidence import require_writable, write_whole


def rerun(
    evidence: Annotated[Path, typer.Argument(help="A finished study: its folder, or its evidence.json.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the second run. By default the first one's, with -rerun.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the rerun that is in the folder.")] = False,
    quiet: Quiet = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write rerun.json's content here.")] = None,
) -> None:
    """Repeat a study by its stored plan. Exit code: 0 REPRODUCED, 11 INCONCLUSIVE or not comparable, 12 NOT_REPRODUCED."""
    from draftproof.cli.progress import TerminalProgress
    from draftproof.report.rerun import print_rerun
    from draftproof.report.write import write_reports
    from draftproof.study.reproduction import RERUN_CODES
    from draftproof.study.rerun import rerun_folder, rerun_study

    out = rerun_folder(evidence, out)
    # what lies beside the evidence is written where the study sees to it itself
    if json_path and json_path.parent.resolve() != out.resolve():
        require_writable(json_path)
    console = Console(quiet=quiet)
    try:
        with TerminalProgress(console) as progress:
            runs, found, records = rerun_study(evidence, out, resume=resume, progress=progress)
    except KeyboardInterrupt:
        sys.stderr.write(f"draftproof: interrupted; what was measured is in {out}, --resume goes on with it\n")
        raise typer.Exit(130) from None
    path = write_reports(runs[1].evidence, out, records)
    if json_path:
        write_whole(json_path, found.model_dump_json(indent=2) + "\n")
    print_rerun(runs, found, console)
    print_last(f"Rerun: {found.outcome}   report: {path}")
    raise typer.Exit(RERUN_CODES[found.outcome])
