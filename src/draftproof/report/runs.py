"""Finished runs side by side in a terminal. Lays the comparison out; computes nothing."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.evidence import Evidence
from draftproof.measure.across import AcrossRuns, Other, RunDifference
from draftproof.measure.stored import StoredRun
from draftproof.report import words
from draftproof.report.tables import table, text
from draftproof.report.terminal import arm_rows

KIND_MEANINGS = {
    "work": "must match",
    "machine": "must match for times",
    "software": "may differ",
    "plan": "may differ",
}
RATIO_NAMES = {
    "speculative_latency": "speculative latency",
    "speculative_tpot": "speculative time per token",
    "target_only_latency": "target-only latency",
    "target_only_tpot": "target-only time per token",
    "speedup": "speed-up",
}
DIGEST_SHOWN = 12
# a launch command is a page; --json has all of it
VALUE_SHOWN = 60


def print_runs(runs: Sequence[StoredRun], found: AcrossRuns, console: Console) -> None:
    """
    Print whether the runs may be compared, every difference, verdicts, both arms, and the paired ratios.

    Text from the studies is printed as it is: markup in it has no effect.
    """
    for other in found.others:
        console.print(_match(found.first, other))
    for other in found.others:
        if other.differences:
            console.print(_differences(found.first, other))
    console.print(_rows("Verdicts", runs, [_verdict_rows(run.evidence) for run in runs]))
    arms = [run.evidence.arms for run in runs]
    target = [arm_rows(one.target_only, "does not apply") if one else {} for one in arms]
    speculative = [arm_rows(one.speculative, words.NOT_MEASURED) if one and one.speculative else {} for one in arms]
    console.print(_rows("Target-only (times in ms, with interval)", runs, target))
    console.print(_rows("Speculative (times in ms, with interval)", runs, speculative))
    console.print(_ratios(found))


def _match(first: str, other: Other) -> Text:
    said = f"{first} and {other.name}: "
    said += "comparable" if other.comparable else "not comparable"
    if other.why_not:
        said += f"; no ratios, since {other.why_not}"
    return text(said, "green" if other.comparable else "yellow")


def _differences(first: str, other: Other) -> Table:
    shown = table(f"What differs: {first} and {other.name}", ["", "fact", first, other.name])
    for item in other.differences:
        shown.add_row(text(KIND_MEANINGS[item.kind]), text(item.name), *map(text, _values(item)))
    return shown


def _values(item: RunDifference) -> list[str]:
    """Both values; of a hash, and of what is long, only the beginning."""
    shown = [words.plain(value) for value in (item.first, item.other)]
    shown = [value[:DIGEST_SHOWN] if len(value) == 64 and value.isalnum() else value for value in shown]
    return [value if len(value) <= VALUE_SHOWN else f"{value[:VALUE_SHOWN]} ..." for value in shown]


def _verdict_rows(evidence: Evidence) -> dict[str, str]:
    effect = None if evidence.comparison is None else evidence.comparison.overall
    claim = words.NOT_MEASURED if evidence.equivalence is None else evidence.equivalence.claim
    engine = evidence.environment.get("measurement", {}).get("engine") or evidence.study.plan.get("engine", {}).get(
        "kind"
    )
    return {
        "verdict": evidence.decision.verdict,
        "engine": words.plain(engine),
        "claim": claim,
        "speed-up": words.NOT_MEASURED if effect is None else words.ratio_span(effect.speedup),
        "time per token, ratio": words.NOT_MEASURED if effect is None else words.ratio_span(effect.itl_ratio),
        "A/A (noise)": words.NOT_MEASURED if effect is None else words.ratio_span(effect.aa),
    }


def _rows(title: str, runs: Sequence[StoredRun], columns: Sequence[dict[str, str]]) -> Table:
    shown = table(title, ["", *(run.name for run in runs)])
    for name in dict.fromkeys(name for column in columns for name in column):
        shown.add_row(name, *(text(column.get(name, words.NOT_MEASURED)) for column in columns))
    return shown


def _ratios(found: AcrossRuns) -> Table:
    taken = [other for other in found.others if other.ratios is not None]
    shown = table(
        f"Paired by prompt: {found.first} over the other run (above 1: the other is faster)",
        ["", *(other.name for other in taken)],
    )
    if not taken:
        shown.add_row(words.NOT_MEASURED)
        return shown
    ratios = [other.ratios for other in taken if other.ratios is not None]
    for name, title in RATIO_NAMES.items():
        shown.add_row(title, *(words.ratio_span(getattr(one, name)) for one in ratios))
    shown.add_row("same speculative output", *(f"{one.identical} of {one.prompts} prompts" for one in ratios))
    return shown
