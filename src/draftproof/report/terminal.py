"""The report in a terminal. Lays evidence out; computes nothing."""

from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from draftproof.evidence import Arm, Arms, Comparison, Decision, Equivalence, Evidence, VerdictName
from draftproof.report import words

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
    for level, found in (effects.prediction if effects else {}).items():
        _lines(console, f"Cost model, {level} at a time", [(line, "") for line in words.prediction(found)])
    _lines(console, "Equivalence", _equivalence(evidence.equivalence))
    limits = [(limit, "") for limit in evidence.limits]
    _lines(console, "What was not measured and may not be claimed", limits)


def _text(value: object, style: str = "") -> Text:
    return Text(words.clean(str(value)), style=style)


def _lines(console: Console, title: str, lines: Sequence[tuple[str, str]]) -> None:
    console.print(Text(title, style="bold"))
    for line, style in lines:
        console.print(Text("  - ").append(_text(line, style)))
    if not lines:
        console.print(Text("  none"))


def _verdict(evidence: Evidence) -> Panel:
    verdict = evidence.decision.verdict
    style = _VERDICT_STYLES[verdict]
    body = Text(verdict, style=f"bold {style}")
    body.append(f"\n{words.VERDICT_MEANINGS[verdict]}", style="default not bold")
    return Panel(body, title=_text(evidence.study.name), title_align="left", border_style=style)


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _matrix(decision: Decision) -> Table:
    table = _table("Decision matrix", ("criterion", "threshold", "measured", "interval", "result"))
    for row in decision.matrix:
        table.add_row(
            _text(row.name),
            _text(row.threshold),
            _text(row.measured),
            _text(row.interval or ""),
            _text(row.result, _RESULT_STYLES[row.result]),
        )
    if not decision.matrix:
        table.add_row(words.NOT_MEASURED)
    return table


def _arms(arms: Arms | None) -> Table:
    table = _table("Arms (times in ms, with interval)", ("", "target-only", "speculative"))
    if arms is None:
        table.add_row("", words.NOT_MEASURED, words.NOT_MEASURED)
        return table
    target = _arm_rows(arms.target_only, "does not apply")
    speculative = {} if arms.speculative is None else _arm_rows(arms.speculative, words.NOT_MEASURED)
    for name, value in target.items():
        table.add_row(name, value, speculative.get(name, words.NOT_MEASURED))
    return table


def _arm_rows(arm: Arm, absent: str) -> dict[str, str]:
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
        "weights": words.size(arm.memory.weights),
        "caches": words.size(arm.memory.caches),
        "peak memory": words.size(arm.memory.peak_rss),
        "acceptance rate": absent if acceptance is None else words.percent(acceptance.rate),
        "accepted per round": absent if acceptance is None else words.number(acceptance.accepted_per_round),
        "tokens per round": absent if acceptance is None else words.number(acceptance.emitted_per_round),
    }


def _groups(kind: str, verdicts: dict[str, VerdictName], comparison: Comparison | None) -> Table:
    table = _table(f"By {kind.lower()}", (kind.lower(), "speed-up", "verdict"))
    effects = {}
    if comparison is not None:
        effects = comparison.by_category if kind == "Category" else comparison.by_concurrency
    for name, verdict in verdicts.items():
        effect = effects.get(name)
        speedup = words.NOT_MEASURED if effect is None else words.ratio_span(effect.speedup)
        table.add_row(_text(name), speedup, _text(verdict, _VERDICT_STYLES[verdict]))
    if not verdicts:
        table.add_row(words.NOT_MEASURED)
    return table


def _equivalence(equivalence: Equivalence | None) -> list[tuple[str, str]]:
    if equivalence is None:
        return [(words.NOT_MEASURED, "")]
    greedy, sampled = equivalence.greedy, equivalence.sampled
    lines = [(f"claim {equivalence.claim}: {words.CLAIM_MEANINGS[equivalence.claim]}", "")]
    if greedy is None:
        lines.append((f"greedy: {words.NOT_MEASURED}", ""))
    else:
        told = f"greedy {greedy.outcome}: {greedy.identical} of {greedy.prompts} prompts identical"
        lines.append((f"{told}, {greedy.tokens} tokens; {greedy.how}", _RESULT_STYLES[greedy.outcome]))
        lines += [(line, "") for line in words.differences(greedy)]
    if sampled is None:
        lines.append((f"sampled: {words.NOT_MEASURED}", ""))
    else:
        told = f"sampled {sampled.outcome}: total variation upper bound {words.number(sampled.tv_upper_bound)}"
        told += f" (delta {sampled.delta:g}), p-value {words.number(sampled.p_value)}, {sampled.tokens} tokens"
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
