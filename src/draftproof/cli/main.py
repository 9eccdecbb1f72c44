"""
The command line. Each command does one thing; errors are one line and exit code 2.

What takes long to import is imported by the command that needs it.
"""

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftproof import __version__
from draftproof import evidence as ev
from draftproof.cli.check import check
from draftproof.cli.compare import compare
from draftproof.cli.export import export
from draftproof.cli.imported import import_command
from draftproof.cli.json_copy import require_copy
from draftproof.cli.ladder import ladder_app
from draftproof.cli.predict import predict
from draftproof.cli.progress import progress_into
from draftproof.cli.quiet import Quiet, print_last
from draftproof.cli.rerun import rerun
from draftproof.cli.sweep import sweep
from draftproof.cli.verify import verify
from draftproof.errors import DraftproofError, InputError
from draftproof.gate.decide import decide
from draftproof.gate.policy import load_policy
from draftproof.report.terminal import print_report
from draftproof.study.plan import Plan, parse_plan
from draftproof.study.study_file import load_plan

app = typer.Typer(
    name="draftproof",
    help="Speculative decoding with proof: measure it, prove the output is the target's, decide by thresholds set beforehand.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Out = Annotated[Path, typer.Option("--out", help="Folder for everything the study writes.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the study that is in the folder.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write evidence.json's content here.")]


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        sys.exit(app(standalone_mode=False))
    except DraftproofError as error:
        # a key or a path that was given may hold anything, line ends too
        sys.stderr.write(f"draftproof: {' '.join(str(error).splitlines())}\n")
        sys.exit(error.exit_code)
    except Exception as error:
        # a wrong option or argument; the library's class for it has no public name
        if not hasattr(error, "format_message"):
            raise
        said = " ".join(str(error.format_message()).split())
        sys.stderr.write(f"draftproof: {said or 'a command is missing'} (--help lists what there is)\n")
        sys.exit(2)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def demo(out: Out = Path("runs/demo"), resume: Resume = False, quiet: Quiet = False, json_path: Json = None) -> None:
    """Run the shipped study on a real model. Exit code: 0 ADOPT, 10 KEEP_TARGET_ONLY, 11 INCONCLUSIVE, 12 ROLL_BACK."""
    import tomllib

    text = files("draftproof.study").joinpath("demo.toml").read_text(encoding="utf-8")
    _run(parse_plan(tomllib.loads(text), "demo"), out, resume, quiet, json_path)


@app.command()
def run(
    study: Annotated[Path, typer.Argument(help="The study, a TOML file.")],
    out: Out,
    resume: Resume = False,
    quiet: Quiet = False,
    json_path: Json = None,
) -> None:
    """Run a study. Exit code: 0 ADOPT, 10 KEEP_TARGET_ONLY, 11 INCONCLUSIVE, 12 ROLL_BACK."""
    _run(load_plan(study), out, resume, quiet, json_path)


@app.command(name="decide")
def decide_command(
    evidence: Annotated[Path, typer.Argument(help="An evidence.json.")],
    policy: Annotated[Path, typer.Argument(help="Thresholds, a TOML file.")],
    json_path: Json = None,
) -> None:
    """Decide again from stored evidence. With another policy than the locked one the verdict is marked not registered."""
    stored, thresholds = ev.load(evidence), load_policy(policy)
    locked = stored.study.plan.get("policy")
    taken_at = locked.get("confidence") if isinstance(locked, dict) else None
    if taken_at not in (None, thresholds.confidence):
        raise InputError(
            f"policy {policy}: confidence is {thresholds.confidence:g}, and the intervals of {evidence} were taken at "
            f"{taken_at}; give that, or run a study with the other"
        )
    require_copy(json_path)
    decision = decide(
        arms=stored.arms,
        equivalence=stored.equivalence,
        comparison=stored.comparison,
        policy=thresholds,
        stopped=stored.stopped,
        registered=thresholds.model_dump(mode="json") == stored.study.plan.get("policy"),
    )
    changed = stored.model_copy(update={"decision": decision})
    if json_path:
        ev.save(changed, json_path)
    print_report(changed, Console())
    raise typer.Exit(ev.EXIT_CODES[decision.verdict])


@app.command()
def report(
    evidence: Annotated[Path, typer.Argument(help="An evidence.json.")],
    out: Annotated[Path | None, typer.Option("--out", help="Folder; the evidence's own by default.")] = None,
    json_path: Json = None,
) -> None:
    """Write report.html, junit.xml and summary.md again from stored evidence."""
    from draftproof.report.write import write_reports

    stored = ev.load(evidence)
    require_copy(json_path, out or evidence.parent)
    beside = evidence.parent / "requests.jsonl"
    requests: list[dict[str, Any]] | None = None
    if beside.exists():
        try:
            requests = [json.loads(line) for line in beside.read_text(encoding="utf-8").splitlines()]
        except (ValueError, OSError):
            raise InputError(f"{beside} is not JSON lines; go on with the study by --resume, or remove it") from None
    path = write_reports(stored, out or evidence.parent, requests)
    if json_path:
        ev.save(stored, json_path)
    Console().print(str(path), markup=False, highlight=False, soft_wrap=True)


app.command()(check)
app.command()(verify)
app.command()(compare)
app.command()(rerun)
app.command()(predict)
app.command()(sweep)
app.command()(export)
app.command(name="import")(import_command)
app.add_typer(ladder_app, name="ladder")


def _run(plan: Plan, out: Path, resume: bool, quiet: bool, json_path: Path | None) -> None:
    console = Console(quiet=quiet)
    with progress_into(out, console) as progress:
        require_copy(json_path, out)
        from draftproof.report.write import write_reports
        from draftproof.study.run import run_study

        evidence, records = run_study(plan, out, resume=resume, progress=progress)
    path = write_reports(evidence, out, records)
    if json_path:
        ev.save(evidence, json_path)
    print_report(evidence, console)
    print_last(f"Verdict: {evidence.decision.verdict}   report: {path}")
    raise typer.Exit(ev.EXIT_CODES[evidence.decision.verdict])


if __name__ == "__main__":
    main()
