"""``draftproof check``: the findings of the preflight as a table; exit code 2 if something is refused."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftproof.cli.json_copy import require_copy
from draftproof.errors import InputError
from draftproof.report.tables import table, text
from draftproof.study.study_file import load_plan

STYLES = {"fine": "green", "warn": "yellow", "refuse": "red"}


def check(
    study: Annotated[Path, typer.Argument(help="The study, a TOML file.")],
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the findings here.")] = None,
) -> None:
    """See whether a study can run: models, memory, context, a short self-test, break-even. Exit code: 0, or 2 if refused."""
    from draftproof.cli.progress import TerminalProgress
    from draftproof.evidence import write_whole
    from draftproof.study.preflight import preflight

    require_copy(json_path)
    console = Console()
    with TerminalProgress(console) as progress:
        findings = preflight(load_plan(study), progress)
    refused = [item.finding for item in findings if item.status == "refuse"]
    if json_path:
        values = {"study": str(study), "refused": refused, "findings": [asdict(item) for item in findings]}
        write_whole(json_path, json.dumps(values, indent=2) + "\n")
    shown = table("", ("finding", "result", "status", "why"))
    for item in findings:
        shown.add_row(text(item.finding), text(item.result), text(item.status, STYLES[item.status]), text(item.why))
    console.print(shown)
    num_warnings = sum(item.status == "warn" for item in findings)
    console.print(f"{len(findings)} findings: {len(refused)} refused, {num_warnings} warned", highlight=False)
    if refused:
        raise InputError(f"study {study} is refused: {', '.join(refused)}; the table says why and what to do")
