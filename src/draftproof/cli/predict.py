"""``draftproof predict``: the speed-up for every k, from a finished study or from given times and acceptance."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftproof import evidence as ev
from draftproof.cli.json_copy import require_copy
from draftproof.errors import InputError
from draftproof.measure.stored import evidence_file
from draftproof.report import words
from draftproof.report.tables import table, text

DEFAULT_K = 8
LARGEST_K = 128


def predict(
    source: Annotated[Path | None, typer.Argument(help="An evidence.json, or the folder of a finished study.")] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(
            help="Chance that a drafted token is accepted if those before it were; or one for each position, 0.8,0.6."
        ),
    ] = None,
    draft_ms: Annotated[float | None, typer.Option(help="Time of a drafted token.")] = None,
    target_ms: Annotated[float | None, typer.Option(help="Time of a target-only step.")] = None,
    score_ms: Annotated[
        float | None, typer.Option(help="Time of the pass that scores a draft; by default that of a step.")
    ] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option(help="Largest k; 8 by default.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the prediction here.")] = None,
) -> None:
    """Predict the speed-up for every k."""
    require_copy(json_path)
    given = {"--acceptance": acceptance, "--draft-ms": draft_ms, "--target-ms": target_ms}
    others = {"--score-ms": score_ms, "--num-speculative-tokens": num_speculative_tokens}
    if source is not None:
        named = [name for name, value in (given | others).items() if value is not None]
        if named:
            raise InputError(f"{source} and {', '.join(named)} are both given; give a study, or times and acceptance")
        values = _from_study(source)
    else:
        missing = [name for name, value in given.items() if value is None]
        if missing:
            raise InputError(f"{', '.join(missing)} missing; give a study, or --acceptance, --draft-ms and --target-ms")
        assert acceptance is not None and draft_ms is not None and target_ms is not None
        chances = _chances(acceptance, num_speculative_tokens)
        values = _from_times(chances, draft_ms, target_ms, target_ms if score_ms is None else score_ms)
    if json_path:
        ev.write_whole(json_path, json.dumps(values, indent=2) + "\n")


def _from_study(source: Path) -> dict[str, Any]:
    path = evidence_file(source)
    stored = ev.load(path)
    found = stored.comparison.prediction if stored.comparison else {}
    if not found:
        raise InputError(
            f"{path} has no prediction: its engine reports no rounds, none of them drafted, or an older version wrote it; "
            "run the study again on an engine that reports rounds"
        )
    console = Console()
    for level, prediction in found.items():
        shown = table(f"{level} at a time", ("k", "tokens per round", "ms per token", "speed-up", ""))
        for row in prediction.by_k:
            at_k = row.num_speculative_tokens == prediction.num_speculative_tokens
            shown.add_row(
                str(row.num_speculative_tokens),
                words.number(row.tokens_per_round),
                words.number(row.ms_per_token),
                words.ratio_span(row.speedup),
                f"measured {words.ratio_span(prediction.measured)}"
                if at_k
                else "extrapolated"
                if row.extrapolated
                else "",
            )
        console.print(shown)
        for line in words.prediction(prediction):
            console.print(text(f"  - {line}"))
    return {"prediction": {level: prediction.model_dump(mode="json") for level, prediction in found.items()}}


def _from_times(chances: list[float], draft_ms: float, target_ms: float, score_ms: float) -> dict[str, Any]:
    from draftproof.stats.by_acceptance import expected_by_k

    if not 0 <= draft_ms < math.inf:
        raise InputError(f"--draft-ms = {draft_ms:g}: allowed 0 or more, in ms")
    for name, value in (("--target-ms", target_ms), ("--score-ms", score_ms)):
        if not 0 < value < math.inf:
            raise InputError(f"{name} = {value:g}: allowed above 0, in ms")
    rows = expected_by_k(chances, draft_ms=draft_ms, target_ms=target_ms, score_ms=score_ms)
    best = max(rows, key=lambda row: row.speedup)
    shown = table("", ("k", "tokens per round", "ms per token", "speed-up", "break-even acceptance"))
    for row in rows:
        needed = "none" if row.break_even is None else f"{row.break_even:.2f}"
        shown.add_row(
            str(row.num_speculative_tokens),
            words.number(row.tokens_per_round),
            words.number(row.ms_per_token),
            words.times(row.speedup),
            needed,
            style="bold" if row is best and best.speedup > 1 else "",
        )
    console = Console()
    console.print(shown)
    told = f"fastest: k = {best.num_speculative_tokens}, {words.times(best.speedup)}"
    console.print(text(told if best.speedup > 1 else "target-only is fastest: no k pays at these times"))
    chosen = best.num_speculative_tokens if best.speedup > 1 else None
    return {"by_k": [row._asdict() for row in rows], "best": chosen}


def _chances(given: str, num_speculative_tokens: int | None) -> list[float]:
    try:
        chances = [float(part) for part in given.split(",")]
    except ValueError:
        chances = []
    if not chances or not all(0.0 <= chance <= 1.0 for chance in chances):
        raise InputError(
            f"--acceptance = '{given}': allowed are numbers from 0 to 1, one or one for each position, such as 0.7"
        )
    most = DEFAULT_K if len(chances) == 1 else len(chances)
    most = most if num_speculative_tokens is None else num_speculative_tokens
    if not 1 <= most <= LARGEST_K:
        raise InputError(f"--num-speculative-tokens = {most}: allowed 1 to {LARGEST_K}")
    if len(chances) == 1:
        return chances * most
    if most > len(chances):
        raise InputError(
            f"--acceptance has {len(chances)} positions and --num-speculative-tokens is {most}; give as many"
        )
    return chances[:most]
