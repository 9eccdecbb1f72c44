"""``draftproof compare``: finished studies side by side; exit code 11 where they may not be compared."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftproof.cli.json_copy import require_copy
from draftproof.evidence import EXIT_CODES, write_whole

NOT_COMPARABLE = EXIT_CODES["INCONCLUSIVE"]


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Two or more: folders of finished studies, or their evidence.json.")
    ],
    across_machines: Annotated[
        bool, typer.Option("--across-machines", help="Take the ratios also where machines or threads differ.")
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the comparison here.")] = None,
) -> None:
    """Compare finished studies with the first of them. Exit code: 0, or 11 if they may not be compared."""
    from draftproof.measure.across import compare_runs
    from draftproof.measure.stored import load_runs
    from draftproof.report.runs import print_runs

    require_copy(json_path)
    stored = load_runs(runs)
    found = compare_runs(stored, across_machines=across_machines)
    if json_path:
        write_whole(json_path, found.model_dump_json(indent=2) + "\n")
    print_runs(stored, found, Console())
    if not found.comparable:
        raise typer.Exit(NOT_COMPARABLE)
