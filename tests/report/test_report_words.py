"""Wording of numbers: None and NaN are never a number, and small values do not read as zero."""

import math

import pytest
from report_evidence import UNKNOWN, between, full, make_prediction, make_sampled, several_loads

from draftproof.evidence import EXIT_CODES, Interval, RuleIdentity, VerdictName
from draftproof.report import words


@pytest.mark.parametrize(
    "value, expected",
    [
        (0.0, "0"),
        (3.14159, "3.142"),
        (-12.345, "-12.35"),
        (123456.7, "123,457"),
        (0.00012345, "0.0001234"),
        (1e-9, "1e-09"),
        (None, "not estimable"),
        (math.nan, "not estimable"),
        (math.inf, "not estimable"),
    ],
)
def test_numbers(value: float | None, expected: str) -> None:
    assert words.number(value) == expected


def test_intervals() -> None:
    assert words.ratio_span(between(1.0, 2.0)) == "1.500x (1.000x to 2.000x)"
    assert words.span(UNKNOWN) == "not estimable"
    assert words.span(Interval(estimate=2.0, low=None, high=3.0)) == "2.000 (no interval)"


def test_other_units() -> None:
    assert (words.percent(0.5), words.percent(None)) == ("50.0 %", "not estimable")
    assert (words.size(2**21), words.size(None)) == ("2.0 MiB", "not measured")
    assert (words.times(None), words.times(9999.0), words.times(8.97e22)) == ("not estimable", "9999.000x", "8.97e+22x")


def test_nested_tables_get_dotted_names() -> None:
    values = {"a": {"b": 1, "c": {"d": [True, None]}}, "e": {}, "f": (), "g": [{"h": 1}]}
    assert words.flat(values) == [("a.b", "1"), ("a.c.d", "yes, none"), ("e", "none"), ("f", "none"), ("g", "h = 1")]


@pytest.mark.parametrize("environment", [{}, {"command": None}, {"command": []}, {"command": "draftproof run"}])
def test_a_command_line_that_was_not_recorded_is_none(environment: dict[str, object]) -> None:
    assert words.command(environment) is None
    assert words.command({"command": ["a", "b c", 1]}) == "a 'b c' 1"


def test_the_head_names_each_verdict_and_its_parts() -> None:
    assert words.not_everywhere(several_loads().decision) == (
        "Not the same everywhere (requests at a time): ADOPT for copying at 1; KEEP_TARGET_ONLY for prose at 8; "
        "INCONCLUSIVE for copying at 8; ROLL_BACK for prose at 1."
    )
    assert (
        words.not_everywhere(full("code").decision) == "Not the same everywhere: ADOPT for code; INCONCLUSIVE for chat."
    )
    many: dict[str, VerdictName] = {f"c{number}": "ADOPT" for number in range(9)}
    one = full().decision.model_copy(update={"by_category": many})
    assert words.not_everywhere(one) is None
    two = one.model_copy(update={"by_category": many | {"chat": "INCONCLUSIVE"}})
    assert "ADOPT for c0, c1, c2, c3, c4, c5 and 3 more; INCONCLUSIVE for chat." in (words.not_everywhere(two) or "")


def test_tokens_per_round_have_their_interval_where_one_was_recorded() -> None:
    assert words.per_round(2.0, None) == "2.000"
    assert words.per_round(2.0, between(1.5, 2.5)) == "2.000 (1.500 to 2.500)"


def test_every_verdict_has_a_meaning() -> None:
    assert set(words.VERDICT_MEANINGS) == set(EXIT_CODES)


def test_clean_keeps_text_and_drops_control_characters() -> None:
    assert words.clean("a\tb\n漢😀") == "a\tb\n漢😀"
    assert words.clean("\0\x1b\ud800\uffff") == "\ufffd" * 4


def test_a_prediction_says_whether_it_holds_and_what_is_fastest() -> None:
    found = make_prediction()
    assert "they agree within 10 %" in words.prediction(found)[0]
    assert "they differ by more than 10 %" in words.prediction(make_prediction(measured_over_predicted=0.85))[0]
    assert "break-even needs acceptance 0.52" in words.prediction(found)[2]
    hopeless = make_prediction(best=None, break_even=None, measured_over_predicted=None)
    said = words.prediction(hopeless)
    assert "agree" not in said[0] and "break-even needs no acceptance" not in said[2]
    assert "no acceptance breaks even" in said[2] and said[-1] == "no k is predicted to be faster than target-only"
    assert "most is lost" not in words.prediction(make_prediction(parts={"draft time": 1.0}))[1]


def test_what_was_checked_is_one_sentence_a_check() -> None:
    equivalence = full().equivalence
    assert equivalence is not None and equivalence.greedy is not None and equivalence.sampled is not None
    greedy, sampled = words.checked(equivalence)
    assert f"{equivalence.greedy.identical} of {equivalence.greedy.prompts} prompts token for token" in greedy
    assert f"claim {equivalence.claim}." in greedy
    assert f"total variation at most {words.number(equivalence.sampled.tv_upper_bound)} over" in sampled
    behaved = sum(control.behaved for control in equivalence.controls)
    assert f"{behaved} of {len(equivalence.controls)} controls behaved." in sampled
    assert words.checked(equivalence.model_copy(update={"greedy": None, "sampled": None})) == []


def test_a_verdict_on_the_accept_rule_alone_says_so() -> None:
    assert words.judged_by(make_sampled()) == "own pass"
    alone = make_sampled(tokens=0, identity=RuleIdentity(pairs=10, worst=0.5, tolerance=0.01, impossible=0))
    assert words.judged_by(alone) == "the accept rule alone, without a sample"
    assert words.judged_by(make_sampled(tokens=0)) == "own pass"
