"""Wording of numbers: None and NaN are never a number, and small values do not read as zero."""

import math

import pytest
from report_evidence import UNKNOWN, between

from draftproof.evidence import EXIT_CODES, Interval
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
    assert words.times(None) == "not estimable"


def test_nested_tables_get_dotted_names() -> None:
    values = {"a": {"b": 1, "c": {"d": [True, None]}}, "e": {}, "f": (), "g": [{"h": 1}]}
    assert words.flat(values) == [("a.b", "1"), ("a.c.d", "yes, none"), ("e", "none"), ("f", "none"), ("g", "h = 1")]


def test_every_verdict_has_a_meaning() -> None:
    assert set(words.VERDICT_MEANINGS) == set(EXIT_CODES)


def test_clean_keeps_text_and_drops_control_characters() -> None:
    assert words.clean("a\tb\n漢😀") == "a\tb\n漢😀"
    assert words.clean("\0\x1b\ud800\uffff") == "\ufffd" * 4
