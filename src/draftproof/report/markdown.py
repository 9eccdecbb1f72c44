"""A summary in Markdown for a pull request or a job's page. Lays evidence out; computes nothing."""

import re
from collections.abc import Sequence

from draftproof.evidence import Comparison, Decision, Effect, Evidence, VerdictName, Verification
from draftproof.report import words
from draftproof.report.terminal import equivalence_lines

# marks inside a line; an underscore inside a word is none
_MARKUP = re.compile(r"[\\`*\[\]<>|~$&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# what begins a list or a line across the page; "1.05x" begins none
_BLOCK = re.compile(r"^(\d*)([-+=.)])(?!\d)")
# GitHub makes links of @name and #1, with or without a backslash before them; a space of no width keeps them apart
_LINK = re.compile(r"[@#]")


def render_markdown(evidence: Evidence) -> str:
    """
    Render verdict, reasons, decision matrix, effects, checks and limits.

    Text from the study stays text: markup, table borders, mentions and line ends in it have no effect.
    """
    decision, effects = evidence.decision, evidence.comparison
    parts = [
        _heading(decision.verdict, evidence.study.name),
        words.VERDICT_MEANINGS[decision.verdict],
        _text(words.not_everywhere(decision) or ""),
        "" if decision.registered else f"> {words.UNREGISTERED}",
        _list(decision.reasons),
        _matrix(decision),
        _groups("category", decision.by_category, effects.by_category if effects else {}),
        _groups("requests at a time", decision.by_concurrency, effects.by_concurrency if effects else {}),
        _cells(decision, effects) if len(decision.by_concurrency) > 1 else "",
        _list([line for line, _ in equivalence_lines(evidence.equivalence)]),
        _fold("What was not measured and may not be claimed", evidence.limits),
        f"Plan {_text(evidence.study.hash[:12])}, draftproof {_text(evidence.draftproof_version)}; "
        "`draftproof rerun evidence.json` repeats it.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def render_verification_markdown(verification: Verification) -> str:
    """Render outcome, reasons, checks and limits of ``draftproof verify``, in the same way."""
    planted = verification.planted
    parts = [
        _heading(verification.outcome, verification.study.name),
        words.OUTCOME_MEANINGS[verification.outcome],
        f"> {_text(repr(planted))} was planted in the engine on purpose." if planted else "",
        _list(verification.reasons),
        _list([line for line, _ in equivalence_lines(verification.equivalence)]),
        _fold("What was not checked and may not be claimed", verification.limits),
        f"Plan {_text(verification.study.hash[:12])}, draftproof {_text(verification.draftproof_version)}.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _text(value: str) -> str:
    """One line of text that Markdown shows as it is."""
    line = " ".join(words.clean(value).split())
    line = _MARKUP.sub(lambda found: f"\\{found[0]}", line)
    return _LINK.sub(lambda found: f"{found[0]}\u200b", _BLOCK.sub(r"\1\\\2", line))


def _heading(result: str, name: str) -> str:
    return f"## {result}: {_text(name)}"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _fold(title: str, lines: Sequence[str]) -> str:
    return f"<details><summary>{title}</summary>\n\n{_list(lines) or 'none'}\n\n</details>"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _matrix(decision: Decision) -> str:
    rows = [
        [*map(_text, (row.name, row.threshold, row.measured, row.interval or "")), _result(row.result)]
        for row in decision.matrix
    ]
    return _table(("criterion", "threshold", "measured", "interval", "result"), rows) if rows else ""


def _result(result: str) -> str:
    return result if result == "pass" else f"**{result}**"


def _groups(kind: str, verdicts: dict[str, VerdictName], effects: dict[str, Effect]) -> str:
    rows = []
    for name, verdict in verdicts.items():
        effect = effects.get(name)
        found = (str(effect.n), words.ratio_span(effect.speedup)) if effect else (words.NOT_MEASURED,) * 2
        rows.append([_text(name), *found, verdict])
    return _table((kind, "prompts", "speed-up", "verdict"), rows) if rows else ""


def _cells(decision: Decision, comparison: Comparison | None) -> str:
    """Category by concurrency: verdict and speed-up of each."""
    levels = list(decision.by_concurrency)
    effects = {} if comparison is None else comparison.by_cell
    rows = []
    for category, verdicts in decision.by_cell.items():
        row = [_text(category)]
        for level in levels:
            verdict, effect = verdicts.get(level), effects.get(category, {}).get(level)
            row.append(f"{verdict} {words.ratio_span(effect.speedup)}" if verdict and effect else words.NOT_MEASURED)
        rows.append(row)
    return _table(("category", *(f"{_text(level)} at a time" for level in levels)), rows)
