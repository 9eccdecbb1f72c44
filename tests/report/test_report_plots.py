"""Plots draw what is there, leave out what is not, and are None when nothing is."""

import math
from xml.etree import ElementTree

import pytest
from report_evidence import (
    HOSTILE,
    UNKNOWN,
    between,
    full,
    halfway,
    make_acceptance,
    make_arms,
    make_comparison,
    make_prediction,
    make_sampled,
)

from draftproof.evidence import Acceptance, Comparison
from draftproof.report import plots

ARMS = make_arms()
COMPARISON = make_comparison("a study")
ACCEPTANCE = make_acceptance()


def words_in(svg: str | None) -> str:
    assert svg is not None
    assert svg.startswith("<svg") and svg.endswith("</svg>")
    assert "<metadata" not in svg
    return " ".join(ElementTree.fromstring(svg).itertext())


def with_effects(comparison: Comparison, name: str) -> Comparison:
    return comparison.model_copy(update={"by_category": {name: comparison.overall}})


def test_latency_of_pairs() -> None:
    text = words_in(plots.latency_plot([(400.0, 250.0), (300.0, 320.0), (math.nan, 1.0)]))
    assert "target-only latency (ms)" in text


@pytest.mark.parametrize("pairs", [[], [(math.nan, 1.0)]])
def test_no_pairs_no_plot(pairs: list[tuple[float, float]]) -> None:
    assert plots.latency_plot(pairs) is None


def test_latencies_of_zero_are_drawn() -> None:
    assert plots.latency_plot([(0.0, 0.0)]) is not None


def test_quantiles() -> None:
    assert "speculative" in words_in(plots.quantile_plot(ARMS))
    first = halfway().arms
    assert first is not None
    assert "speculative" not in words_in(plots.quantile_plot(first))
    nothing = first.target_only.latency.model_copy(update={"p50": UNKNOWN, "p95": UNKNOWN})
    target = first.target_only.model_copy(update={"latency": nothing})
    assert plots.quantile_plot(first.model_copy(update={"target_only": target})) is None


def test_acceptance_by_position() -> None:
    assert "position in the draft" in words_in(plots.acceptance_plot(ACCEPTANCE))
    empty = ACCEPTANCE.model_copy(update={"by_position": [None], "by_position_conditional": []})
    assert plots.acceptance_plot(empty) is None


@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_tokens_per_round(counts: list[int]) -> None:
    assert "rounds" in words_in(plots.tokens_per_round_plot(ACCEPTANCE))
    nothing: Acceptance = ACCEPTANCE.model_copy(update={"emitted_histogram": counts})
    assert plots.tokens_per_round_plot(nothing) is None


def test_effects_have_a_row_each_and_the_threshold() -> None:
    text = words_in(plots.effect_plot(COMPARISON, 1.05))
    for label in ("overall", "a study", "chat", "concurrency 1", "A/A", "not estimable", "asked for: 1.05x"):
        assert label in text
    assert "asked for" not in words_in(plots.effect_plot(COMPARISON, None))


def test_an_estimate_without_an_interval_is_still_drawn() -> None:
    overall = COMPARISON.overall.model_copy(update={"speedup": between(1, 2).model_copy(update={"low": None})})
    alone = Comparison(overall=overall, total_time_ratio=None, memory_ratio=None, by_category={}, by_concurrency={})
    assert "overall" in words_in(plots.effect_plot(alone, None))


def test_no_effect_no_plot() -> None:
    overall = COMPARISON.overall.model_copy(update={"speedup": UNKNOWN, "aa": UNKNOWN})
    alone = Comparison(overall=overall, total_time_ratio=None, memory_ratio=None, by_category={}, by_concurrency={})
    assert plots.effect_plot(alone, 1.05) is None


@pytest.mark.parametrize("name", [HOSTILE, "$x_", "漢字😀", 'id="a" href="#b"', "", "x" * 500, "\0\n"])
def test_any_name_can_label_a_row(name: str) -> None:
    svg = plots.effect_plot(with_effects(COMPARISON, name), 1.05)
    assert svg is not None and "<script" not in svg
    text = words_in(svg)
    if len(name) < 20:
        assert " ".join(name.replace("\0", "\ufffd").split()) in text


def test_gaps_of_differences() -> None:
    greedy = full().equivalence.greedy
    text = words_in(plots.gap_plot(greedy.triage))
    assert "tau = 0.25" in text and "to 0.125" in text and "above 0.5" in text
    nothing = greedy.triage.model_copy(update={"gap_histogram": [(0.0, 0), (None, 0)]})
    assert plots.gap_plot(nothing) is None


def test_predicted_and_measured_speedup() -> None:
    text = words_in(plots.prediction_plot(make_prediction(), "1"))
    assert all(label in text for label in ("predicted", "extrapolated", "measured", "drafted tokens per round (k)"))
    rows = make_prediction().by_k
    short = make_prediction(by_k=rows[:3], measured=UNKNOWN)
    text = words_in(plots.prediction_plot(short, "1"))
    assert "predicted" in text and "extrapolated" not in text and "measured" not in text
    blind = [row.model_copy(update={"speedup": UNKNOWN}) for row in rows]
    assert plots.prediction_plot(make_prediction(by_k=blind), "1") is None


def test_total_variation() -> None:
    text = words_in(plots.tv_plot(make_sampled()))
    assert "upper bound" in text and "delta = 0.02" in text
    assert plots.tv_plot(make_sampled(tv_by_n=[])) is None


def test_the_same_input_gives_the_same_bytes() -> None:
    assert plots.tv_plot(make_sampled()) == plots.tv_plot(make_sampled())
