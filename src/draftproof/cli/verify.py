"""``draftproof verify``: is the speculative output the target's output?"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftproof.cli.json_copy import require_copy
from draftproof.cli.quiet import Quiet, print_last
from draftproof.errors import InputError
from draftproof.report.tables import table, text
from draftproof.study.plan import Plan, parse_plan
from draftproof.study.study_file import load_plan

EARLY_EXIT = "early-exit:"


def verify(
    study: Annotated[Path | None, typer.Argument(help="The study, a TOML file; or name a target and a draft.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for everything the check writes.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The demo model's name, a folder, a .gguf, a hub name.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", help="A model as above, prompt-lookup, or early-exit:LAYER.")
    ] = None,
    num_speculative_tokens: Annotated[
        int | None, typer.Option("--num-speculative-tokens", help="K, the most tokens drafted per round.")
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Say what would be registered, what it could see, how long it takes.")
    ] = False,
    plant: Annotated[
        str | None, typer.Option("--plant", help="Put a defect or lossless variant into the engine, to see it judged.")
    ] = None,
    list_controls: Annotated[bool, typer.Option("--list-controls", help="List what --plant takes.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the check that is in the folder.")] = False,
    quiet: Quiet = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the result here.")] = None,
) -> None:
    """Check that the output is the target's. Exit code: 0 PASS, 11 INCONCLUSIVE, 12 FAIL."""
    from draftproof.cli.progress import TerminalProgress, progress_into
    from draftproof.evidence import OUTCOME_CODES, write_whole
    from draftproof.verify.controls import DEFECTS, LOSSLESS

    console = Console(quiet=quiet)
    controls = DEFECTS | LOSSLESS
    if list_controls:
        shown = table("", ("name", "kind", "part", "stands for"))
        for control in controls.values():
            shown.add_row(*map(text, (control.name, control.kind, control.part, control.stands_for)))
        Console().print(shown)
        return
    if plant is not None and plant not in controls:
        raise InputError(f"--plant {plant!r} is no control; --list-controls lists them")
    if plan_only and (plant is not None or resume):
        name = "--resume" if plant is None else "--plant"
        raise InputError(f"{name} and --plan-only were both given, and --plan-only checks nothing; leave one out")
    plan = _plan(study, target, draft, num_speculative_tokens)
    require_copy(json_path, None if plan_only else out)
    if not plan_only and out is None:
        raise InputError("--out is missing; give a folder for the result, or --plan-only")
    from draftproof.report.terminal import print_verification
    from draftproof.report.write import write_verification
    from draftproof.study.verify import plan_verification, verify_study

    if plan_only or out is None:
        with TerminalProgress(console) as progress:
            record, planned = plan_verification(plan, progress)
        Console().print_json(data=record)
        if json_path:
            values = {"registration": record, "planned": None if planned is None else planned.model_dump()}
            write_whole(json_path, json.dumps(values, indent=2) + "\n")
        return
    with progress_into(out, console) as progress:
        result = verify_study(plan, out, resume=resume, progress=progress, plant=controls[plant] if plant else None)
    path = write_verification(result, out)
    if json_path:
        write_whole(json_path, result.model_dump_json(indent=2) + "\n")
    print_verification(result, console)
    print_last(f"Outcome: {result.outcome}   report: {path}")
    raise typer.Exit(OUTCOME_CODES[result.outcome])


def _plan(study: Path | None, target: str | None, draft: str | None, k: int | None) -> Plan:
    named = {"--target": target, "--draft": draft, "--num-speculative-tokens": k}
    given = [name for name, value in named.items() if value is not None]
    if study is not None:
        if given:
            raise InputError(f"{given[0]} and a study were both given; put the value into the study, or leave it out")
        return load_plan(study)
    if target is None or draft is None:
        raise InputError("nothing to check: give a study, or --target and --draft")
    speculation: dict[str, Any] = {} if k is None else {"num_speculative_tokens": k}
    if draft == "prompt-lookup":
        speculation |= {"proposer": draft}
    elif draft.startswith(EARLY_EXIT):
        layer = draft.removeprefix(EARLY_EXIT)
        if not layer.isdecimal():
            raise InputError(f"--draft {draft}: {layer!r} is no layer; give a number, as early-exit:10")
        speculation |= {"proposer": "early-exit", "exit_layer": int(layer)}
    else:
        speculation |= {"proposer": "draft-model", "draft": draft}
    values = {"name": f"{target}, {draft}", "engine": {"target": target}, "speculation": speculation}
    return parse_plan(values, "from the command line")
