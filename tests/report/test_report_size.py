"""A report does not grow with the number of requests: what is drawn and listed is bounded."""

import re
from typing import Any

from report_evidence import full, make_requests

from draftproof.report.html import render_html
from draftproof.report.pairs import MOST_SHOWN, most_telling, pair_requests
from draftproof.report.plots import MOST_POINTS, latency_plot

TEXT = "a sentence of an answer " * 12


def requests(count: int, text: str = TEXT) -> list[dict[str, Any]]:
    """Pairs of which every hundredth differs, and which gain less and less."""
    found = []
    for number in range(count):
        for arm, latency in (("target_only", 400.0), ("speculative", 200.0 + number / count)):
            template = make_requests(f"p{number}")[0]
            tokens = [1, 3 if arm == "speculative" and number % 100 == 0 else 2]
            found.append(template | {"arm": arm, "latency_ms": latency, "token_ids": tokens, "text": text})
    return found


def test_the_page_of_many_requests_is_as_large_as_that_of_some() -> None:
    some, many = (render_html(full(), requests(count)) for count in (MOST_POINTS, 3 * MOST_POINTS))
    assert len(many) < 1.05 * len(some) and len(many) < 5_000_000
    assert f"{MOST_SHOWN} of\n{3 * MOST_POINTS} requests" in many


def test_the_plot_of_many_points_has_a_bounded_number_with_both_extremes() -> None:
    pairs = [(400.0, 100.0 + number) for number in range(5000)]
    drawn = latency_plot(pairs)
    assert drawn is not None and drawn.count("<use") < 2 * MOST_POINTS
    assert len(drawn) < 1.1 * len(latency_plot(pairs[:MOST_POINTS]) or "")
    few = latency_plot(pairs[:10])
    assert few is not None and len(re.findall("<use", drawn)) > len(re.findall("<use", few)) + 300


def test_what_is_listed_of_many_is_what_differs_and_what_gained_least() -> None:
    pairs = pair_requests(requests(1000, "x"))
    shown = most_telling(pairs)
    assert len(shown) == MOST_SHOWN and [pair.prompt_id for pair in shown if not pair.identical] == [
        f"p{number}" for number in range(0, 1000, 100)
    ]
    assert [pair.prompt_id for pair in shown[-100:]] == [f"p{number}" for number in range(1000) if number >= 900]
    assert most_telling(pairs[:MOST_SHOWN]) == pairs[:MOST_SHOWN]
