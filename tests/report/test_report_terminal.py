"""The terminal report says the same as the page and obeys no markup from the study."""

import io

import pytest
from report_evidence import HOSTILE, full, halfway, partial
from rich.console import Console

from draftproof.evidence import Evidence
from draftproof.report.terminal import print_report


def printed(evidence: Evidence, width: int = 200, colour: bool = False) -> str:
    file = io.StringIO()
    print_report(
        evidence, Console(file=file, width=width, color_system="standard" if colour else None, force_terminal=colour)
    )
    return file.getvalue()


def test_values_appear() -> None:
    text = printed(full())
    for value in (
        "KEEP_TARGET_ONLY",
        "leave speculative decoding off",
        "exploratory",
        "because a study",
        "Not the same everywhere: ADOPT for a study; INCONCLUSIVE for chat.",
        "2.381 (2.100 to 2.700)",
        "3.063 (2.800 to 3.300)",
        "1.712x",
        "400.0 (397.0 to 403.0)",
        "30.03",
        "not estimable",
        "not measured",
        "1.500x (1.100x to 1.900x)",
        "claim bitwise_same_batch",
        "23 of 24 prompts identical",
        "differences: 1 x a study",
        "tau 0.2500 logits: the target's own noise between pass shapes is 0.06250 over 512 positions",
        "ties: 1 in 900 tokens (0.1 %); the target against itself flips 3 in 512 (0.6 %)",
        "worst case: prompt a study, token 7: a study, regret not measured",
        "why not PASS: 1 not explained",
        "upper bound 0.01670",
        "controls that misbehaved: a study",
        "no limit but a study",
        "Cost model, 1 at a time",
        "a round takes 33.00 ms to draft, 44.50 to score and 0.5000 outside, a plain step 41.00",
    ):
        assert value in text, value


@pytest.mark.parametrize("evidence", [partial(), halfway()])
def test_what_was_not_measured_reads_so(evidence: Evidence) -> None:
    text = printed(evidence)
    assert "INCONCLUSIVE" in text
    assert text.count("not measured") >= 5


def test_controls_that_behaved_are_counted() -> None:
    equivalence = full().equivalence
    assert equivalence is not None
    good = equivalence.model_copy(update={"controls": equivalence.controls[:1]})
    assert "controls: all 1 behaved" in printed(full().model_copy(update={"equivalence": good}))


def test_markup_and_escapes_have_no_effect() -> None:
    text = printed(full(HOSTILE))
    assert "because <script>" in text
    assert "[red]" in text
    assert "\x1b" not in text


def test_a_narrow_terminal_cuts_no_verdict() -> None:
    lines = printed(full(), width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert any("KEEP_TARGET_ONLY" in line for line in lines)


def test_verdicts_have_colour_where_the_terminal_does() -> None:
    assert "\x1b[" in printed(full(), colour=True)
