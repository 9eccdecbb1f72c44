"""``draftproof import``: result files of other load generators as performance evidence."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftproof import evidence as ev
from draftproof.errors import OutputError


def import_command(
    target_only: Annotated[
        Path, typer.Argument(help="A result file of vllm bench serve, AIPerf or GuideLLM, target-only.")
    ],
    speculative: Annotated[Path, typer.Argument(help="One of the same tool and load, with speculation on.")],
    out: Annotated[Path, typer.Option("--out", help="A new or empty folder for evidence.json and the reports.")],
    policy: Annotated[
        Path | None, typer.Option("--policy", help="Thresholds, a TOML file; the defaults without it.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write evidence.json's content here.")] = None,
) -> None:
    """Read a load generator's two result files as evidence. Exit code: 11, since times alone prove nothing of the output."""
    from draftproof.gate.policy import Policy, load_policy
    from draftproof.report.terminal import print_report
    from draftproof.report.write import write_reports
    from draftproof.study.imported import import_results
    from draftproof.study.lock import alone

    evidence = import_results(target_only, speculative, Policy() if policy is None else load_policy(policy))
    if json_path:
        ev.require_writable(json_path)
    with alone(out):
        if any(out.iterdir()):
            raise OutputError(f"{out} holds files; choose an empty or a new folder for --out")
        ev.save(evidence, out / "evidence.json")
        write_reports(evidence, out, None)
    if json_path:
        ev.save(evidence, json_path)
    print_report(evidence, Console())
    raise typer.Exit(ev.EXIT_CODES[evidence.decision.verdict])
