"""JUnit XML for continuous integration: a test case per criterion, check of the output and part of the workload. Judges nothing."""

from typing import Literal
from xml.etree import ElementTree

from draftproof.evidence import Evidence, Outcome, VerdictName
from draftproof.report.words import NOT_MEASURED, clean, parts_of, ratio_span

_Result = Literal["pass", "miss", "not estimable"]
_RESULTS: dict[Outcome, _Result] = {"PASS": "pass", "FAIL": "miss", "INCONCLUSIVE": "not estimable"}
# a part of the workload for which speculation does not pay breaks no build
_PART_RESULTS: dict[VerdictName, _Result] = {
    "ADOPT": "pass",
    "KEEP_TARGET_ONLY": "not estimable",
    "INCONCLUSIVE": "not estimable",
    "ROLL_BACK": "miss",
}


def render_junit(evidence: Evidence) -> str:
    """
    The evidence as one JUnit test suite.

    A criterion that is missed is a failure; one that could not be judged is skipped. The same for the greedy check,
    the sampled check and each control. Of the parts of the workload, those for which the verdict is not ADOPT are skipped, with
    that verdict.
    """
    cases = [*_criteria(evidence), *_checks(evidence), *_parts(evidence)]
    count = [result for _, _, result, _ in cases].count
    totals = {
        "name": evidence.study.name,
        "tests": str(len(cases)),
        "failures": str(count("miss")),
        "skipped": str(count("not estimable")),
        "errors": "0",
    }
    root = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(root, "testsuite", totals)
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (
        ("verdict", evidence.decision.verdict),
        ("study_hash", evidence.study.hash),
        ("draftproof_version", evidence.draftproof_version),
    ):
        ElementTree.SubElement(properties, "property", name=name, value=value)
    for group, name, result, detail in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=f"draftproof.{group}", name=name, time="0")
        if result == "pass":
            ElementTree.SubElement(case, "system-out").text = detail
        else:
            ElementTree.SubElement(case, "failure" if result == "miss" else "skipped", message=detail)
    ElementTree.indent(root)
    return clean(f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n')


def _criteria(evidence: Evidence) -> list[tuple[str, str, _Result, str]]:
    cases: list[tuple[str, str, _Result, str]] = []
    for row in evidence.decision.matrix:
        interval = "" if row.interval is None else f" ({row.interval})"
        detail = f"measured {row.measured}{interval}; asked for: {row.threshold}; leads to {row.consequence}"
        cases.append(("criterion", row.name, row.result, detail))
    return cases


def _checks(evidence: Evidence) -> list[tuple[str, str, _Result, str]]:
    equivalence = evidence.equivalence
    greedy = None if equivalence is None else equivalence.greedy
    sampled = None if equivalence is None else equivalence.sampled
    cases: list[tuple[str, str, _Result, str]] = []
    if equivalence is None or greedy is None:
        cases.append(("equivalence", "greedy", "not estimable", NOT_MEASURED))
    else:
        detail = f"{greedy.identical} of {greedy.prompts} prompts identical; claim {equivalence.claim}"
        cases.append(("equivalence", "greedy", _RESULTS[greedy.outcome], detail))
    if sampled is None:
        cases.append(("equivalence", "sampled", "not estimable", NOT_MEASURED))
    else:
        detail = "; ".join(sampled.reasons) or f"{sampled.outcome} over {sampled.tokens} tokens"
        cases.append(("equivalence", "sampled", _RESULTS[sampled.outcome], detail))
    for control in [] if equivalence is None else equivalence.controls:
        detail = f"{control.kind}, {'flagged' if control.flagged else 'not flagged'}: {control.detail}"
        cases.append(("control", control.name, "pass" if control.behaved else "miss", detail))
    return cases


def _parts(evidence: Evidence) -> list[tuple[str, str, _Result, str]]:
    cases: list[tuple[str, str, _Result, str]] = []
    for name, verdict, effect in parts_of(evidence.decision, evidence.comparison):
        speedup = NOT_MEASURED if effect is None else f"{ratio_span(effect.speedup)}, {effect.n} prompts"
        cases.append(("part", name, _PART_RESULTS[verdict], f"{verdict}: speed-up {speedup}"))
    return cases
