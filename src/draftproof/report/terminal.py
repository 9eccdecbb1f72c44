"""The report in a terminal. Lays evidence out; computes nothing."""

from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from draftproof.evidence import Arm, Arms, Comparison, Decision, Equivalence, Evidence, VerdictName, Verification
from draftproof.report import words
from draftproof.report.tables import table, text

_VERDICT_STYLES: dict[VerdictName, str] = {
    "ADOPT": "green",
    "KEEP_TARGET_ONLY": "blue",
    "INCONCLUSIVE": "yellow",
    "ROLL_BACK": "red",
}
_RESULT_STYLES = {
    "pass": "green",
    "miss": "red",
    "not estimable": "yellow",
    "PASS": "green",
    "FAIL": "red",
    "INCONCLUSIVE": "yellow",
}
# rows that few studies have
_IF_KNOWN = {"goodput", "working memory", "energy per token"}


def print_report(evidence: Evidence, console: Console) -> None:
    """
    Print the verdict, its reasons, the decision matrix, both arms, the categories, the checks and the limits.

    Text from the study is printed as it is: markup in it has no effect.
    """
    decision = evidence.decision
    console.print(_verdict(evidence))
    if not decision.registered:
        console.print(Text(words.UNREGISTERED, style="yellow"))
    _lines(console, "Reasons", [(reason, "") for reason in decision.reasons])
    console.print(_matrix(decision))
    console.print(_arms(evidence.arms))
    effects = evidence.comparison
    console.print(_groups("Category", decision.by_category, effects))
    console.print(_groups("Concurrency", decision.by_concurrency, effects))
    if len(decision.by_concurrency) > 1:
        console.print(_cells(decision, effects))
    for level, found in (effects.prediction if effects else {}).items():
        _lines(console, f"Cost model, {level} at a time", [(line, "") for line in words.prediction(found)])
    _lines(console, "Equivalence", equivalence_lines(evidence.equivalence))
    limits = [(limit, "") for limit in evidence.limits]
    _lines(console, "What was not measured and may not be claimed", limits)


def print_verification(verification: Verification, console: Console) -> None:
    """Print the outcome, its reasons, the checks and the limits."""
    outcome = verification.outcome
    style = _RESULT_STYLES[outcome]
    body = Text(outcome, style=f"bold {style}")
    body.append(f"\n{words.OUTCOME_MEANINGS[outcome]}", style="default not bold")
    if verification.planted:
        body.append(f"\n'{verification.planted}' was planted in the engine on purpose.", style="yellow not bold")
    console.print(Panel(body, title=text(verification.study.name), title_align="left", border_style=style))
    _lines(console, "Reasons", [(reason, "") for reason in verification.reasons])
    _lines(console, "Equivalence", equivalence_lines(verification.equivalence))
    _lines(console, "What was not checked and may not be claimed", [(limit, "") for limit in verification.limits])


def _lines(console: Console, title: str, lines: Sequence[tuple[str, str]]) -> None:
    console.print(Text(title, style="bold"))
    for line, style in lines:
        console.print(Text("  - ").append(text(line, style)))
    if not lines:
        console.print(Text("  none"))


def _verdict(evidence: Evidence) -> Panel:
    verdict = evidence.decision.verdict
    style = _VERDICT_STYLES[verdict]
    body = Text(verdict, style=f"bold {style}")
    body.append(f"\n{words.VERDICT_MEANINGS[verdict]}", style="default not bold")
    if (parts := words.not_everywhere(evidence.decision)) is not None:
        body.append(f"\n{words.clean(parts)}", style="default not bold")
    return Panel(body, title=text(evidence.study.name), title_align="left", border_style=style)


def _matrix(decision: Decision) -> Table:
    shown = table("Decision matrix", ("criterion", "threshold", "measured", "interval", "result"))
    for row in decision.matrix:
        shown.add_row(
            text(row.name),
            text(row.threshold),
            text(row.measured),
            text(row.interval or ""),
            text(row.result, _RESULT_STYLES[row.result]),
        )
    if not decision.matrix:
        shown.add_row(words.NOT_MEASURED)
    return shown


def _arms(arms: Arms | None) -> Table:
    shown = table("Arms (times in ms, with interval)", ("", "target-only", "speculative"))
    if arms is None:
        shown.add_row("", words.NOT_MEASURED, words.NOT_MEASURED)
        return shown
    target = arm_rows(arms.target_only, "does not apply")
    speculative = {} if arms.speculative is None else arm_rows(arms.speculative, words.NOT_MEASURED)
    for name, value in target.items():
        other = speculative.get(name, words.NOT_MEASURED)
        if name not in _IF_KNOWN or {value, other} != {words.NOT_MEASURED}:
            shown.add_row(name, value, other)
    return shown


def arm_rows(arm: Arm, absent: str) -> dict[str, str]:
    """Name and value of each row; ``absent`` stands where the arm has no acceptance."""
    acceptance = arm.acceptance
    return {
        "latency p50": words.span(arm.latency.p50),
        "latency p95": words.span(arm.latency.p95),
        "latency p99": words.span(arm.latency.p99),
        "ttft p50": words.span(arm.ttft.p50),
        "itl p50": words.span(arm.itl.p50),
        "icl p50": words.span(arm.icl.p50),
        "tpot p50": words.span(arm.tpot.p50),
        "tokens/s": words.number(arm.throughput.tokens_per_second),
        "tokens/min": words.number(arm.throughput.tokens_per_minute),
        "requests/s": words.number(arm.throughput.requests_per_second),
        "goodput": words.good(arm.throughput.goodput),
        "weights": words.size(arm.memory.weights),
        "caches": words.size(arm.memory.caches),
        "working memory": words.size(arm.memory.working),
        "peak memory": words.size(arm.memory.peak_rss),
        "energy per token": words.amount(None if arm.energy is None else arm.energy.joules_per_token, "J"),
        "acceptance rate": absent if acceptance is None else words.percent(acceptance.rate),
        "accepted per round": absent
        if acceptance is None
        else words.per_round(acceptance.accepted_per_round, acceptance.accepted_per_round_interval),
        "emitted per round": absent
        if acceptance is None
        else words.per_round(acceptance.emitted_per_round, acceptance.emitted_per_round_interval),
    }


def _groups(kind: str, verdicts: dict[str, VerdictName], comparison: Comparison | None) -> Table:
    shown = table(f"By {kind.lower()}", (kind.lower(), "speed-up", "verdict"))
    effects = {}
    if comparison is not None:
        effects = comparison.by_category if kind == "Category" else comparison.by_concurrency
    for name, verdict in verdicts.items():
        effect = effects.get(name)
        speedup = words.NOT_MEASURED if effect is None else words.ratio_span(effect.speedup)
        shown.add_row(text(name), speedup, text(verdict, _VERDICT_STYLES[verdict]))
    if not verdicts:
        shown.add_row(words.NOT_MEASURED)
    return shown


def _cells(decision: Decision, comparison: Comparison | None) -> Table:
    """Category by concurrency: verdict and speed-up of each."""
    levels = list(decision.by_concurrency)
    shown = table("By category and concurrency", ("category", *(f"{level} at a time" for level in levels)))
    effects = {} if comparison is None else comparison.by_cell
    for category, verdicts in decision.by_cell.items():
        row = [text(category)]
        for level in levels:
            verdict, effect = verdicts.get(level), effects.get(category, {}).get(level)
            if verdict is None or effect is None:
                row.append(Text(words.NOT_MEASURED))
            else:
                row.append(text(verdict, _VERDICT_STYLES[verdict]).append(f"\n{words.ratio_span(effect.speedup)}", ""))
        shown.add_row(*row)
    return shown


def equivalence_lines(equivalence: Equivalence | None) -> list[tuple[str, str]]:
    """What was shown about the output, one sentence and its style each."""
    if equivalence is None:
        return [(words.NOT_MEASURED, "")]
    greedy, sampled = equivalence.greedy, equivalence.sampled
    lines = [(f"claim {equivalence.claim}: {words.CLAIM_MEANINGS[equivalence.claim]}", "")]
    if greedy is None:
        lines.append((f"greedy: {words.NOT_MEASURED}", ""))
    else:
        told = f"greedy {greedy.outcome}: {greedy.identical} of {greedy.prompts} prompts identical"
        lines.append((f"{told}, {greedy.tokens} tokens; {greedy.how}", _RESULT_STYLES[greedy.outcome]))
        told = words.smallest_rate(greedy.smallest_rate)
        lines.append((f"smallest rate of differing tokens that this run could have seen: {told}", ""))
        lines += [(line, "") for line in words.differences(greedy)]
    if sampled is None:
        lines.append((f"sampled: {words.NOT_MEASURED}", ""))
    else:
        told = f"sampled {sampled.outcome}: total variation upper bound {words.number(sampled.tv_upper_bound)}"
        told += f" (delta {sampled.delta:g}), p-value {words.number(sampled.p_value)}, {sampled.tokens} tokens, "
        told += f"by {words.judged_by(sampled)}"
        lines.append((told, _RESULT_STYLES[sampled.outcome]))
        if sampled.smallest_deviation is not None:
            told = words.smallest_seen(sampled.smallest_deviation)
            lines.append((f"smallest deviation that this run could have seen: {told}", ""))
    wrong = [control.name for control in equivalence.controls if not control.behaved]
    if not equivalence.controls:
        lines.append((f"controls: {words.NOT_MEASURED}", ""))
    elif wrong:
        lines.append((f"controls that misbehaved: {', '.join(wrong)}", "red"))
    else:
        lines.append((f"controls: all {len(equivalence.controls)} behaved", "green"))
    return lines
