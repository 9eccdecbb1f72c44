"""A study and its rerun in a terminal. Lays the judgement out; computes nothing."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.measure.stored import StoredRun
from draftproof.report import words
from draftproof.report.runs import print_runs
from draftproof.study.reproduction import Reproduction


def print_rerun(runs: Sequence[StoredRun], found: Reproduction, console: Console) -> None:
    """Print both runs side by side, then what had to be the same, and why the rerun is no reproduction if it is none."""
    print_runs(runs, found.runs, console)
    table = Table(title=Text("Reproduced?", style="bold"), title_justify="left")
    for heading in ("", runs[0].name, runs[1].name, "result", "why"):
        table.add_column(Text(words.clean(heading)), overflow="fold")
    for item in found.findings:
        table.add_row(*(Text(words.clean(text)) for text in (item.name, item.first, item.rerun, item.result, item.why)))
    console.print(table)
    for reason in found.reasons:
        console.print(Text(f"  - {words.clean(reason)}"))
