"""JUnit: one case per criterion and check, counted right."""

from xml.etree import ElementTree

import pytest
from report_evidence import HOSTILE, full, halfway, make_greedy, make_sampled, partial, several_loads

from draftproof.evidence import Evidence
from draftproof.report.junit import render_junit


def suite(evidence: Evidence) -> ElementTree.Element:
    root = ElementTree.fromstring(render_junit(evidence).encode())
    assert root.tag == "testsuites"
    (found,) = root
    assert found.attrib == root.attrib
    cases = found.findall("testcase")
    assert int(found.attrib["tests"]) == len(cases)
    assert int(found.attrib["failures"]) == len(found.findall("testcase/failure"))
    assert int(found.attrib["skipped"]) == len(found.findall("testcase/skipped"))
    return found


def outcomes(evidence: Evidence) -> dict[str, str]:
    kinds = {"failure": "failed", "skipped": "skipped", "system-out": "passed"}
    return {case.attrib["name"]: kinds[case[0].tag] for case in suite(evidence).findall("testcase")}


def test_results_become_passed_failed_and_skipped() -> None:
    assert outcomes(full("odd")) == {
        "speed-up": "passed",
        "memory": "failed",
        "odd": "passed",  # the category of that name comes last
        "greedy": "skipped",
        "sampled": "passed",
        "accept too much": "passed",
        "chat": "skipped",
    }
    found = suite(full("odd"))
    assert (found.attrib["tests"], found.attrib["failures"], found.attrib["skipped"]) == ("9", "2", "3")


def test_each_part_of_the_workload_is_a_case_and_none_that_does_not_pay_is_a_failure() -> None:
    evidence = several_loads()
    cases = {case.attrib["name"]: case[0] for case in suite(evidence).findall("testcase[@classname='draftproof.part']")}
    assert {name: (found.tag, found.get("message") or found.text) for name, found in cases.items()} == {
        "copying at 1": ("system-out", "ADOPT: speed-up 1.500x (1.400x to 1.600x), 24 prompts"),
        "copying at 8": ("skipped", "INCONCLUSIVE: speed-up not measured"),
        "prose at 1": ("failure", "ROLL_BACK: speed-up not measured"),
        "prose at 8": ("skipped", "KEEP_TARGET_ONLY: speed-up 0.900x (0.800x to 1.000x), 24 prompts"),
    }


def test_a_message_says_what_was_measured_and_asked_for() -> None:
    failure = suite(full()).find("testcase[@name='memory']/failure")
    assert failure is not None
    assert failure.attrib["message"] == "measured 1.712x; asked for: at least 1.050x; leads to KEEP_TARGET_ONLY"


@pytest.mark.parametrize("outcome, expected", [("PASS", "passed"), ("FAIL", "failed"), ("INCONCLUSIVE", "skipped")])
def test_each_outcome_of_the_checks(outcome: str, expected: str) -> None:
    equivalence = full().equivalence
    assert equivalence is not None
    changes = {"greedy": make_greedy(outcome=outcome), "sampled": make_sampled(outcome=outcome)}
    found = outcomes(full().model_copy(update={"equivalence": equivalence.model_copy(update=changes)}))
    assert (found["greedy"], found["sampled"]) == (expected, expected)


@pytest.mark.parametrize("evidence", [partial(), halfway()])
def test_what_was_not_measured_is_skipped(evidence: Evidence) -> None:
    assert outcomes(evidence) == {"greedy": "skipped", "sampled": "skipped"}


def test_hostile_names_stay_text() -> None:
    names = [case.attrib["name"] for case in suite(full(HOSTILE)).findall("testcase")]
    assert HOSTILE.replace("\x1b", "\ufffd") in names
