"""Requests of the two arms are paired by what was asked."""

from report_evidence import make_requests

from draftproof.report.pairs import pair_requests


def test_pairs_keep_the_order_and_say_what_is_missing() -> None:
    pairs = pair_requests(make_requests())
    assert [pair.prompt_id for pair in pairs] == ["p1", "p2", "p3", "p4"]
    assert [pair.latencies for pair in pairs] == [(400.0, 251.5), (300.0, 320.0), None, None]
    assert [pair.identical for pair in pairs] == [True, False, None, None]


def test_repeats_and_concurrencies_are_kept_apart() -> None:
    first, second = make_requests()[:2]
    requests = [first, second, first | {"repeat": 1}, second | {"repeat": 1, "concurrency": 4}]
    pairs = pair_requests(requests)
    assert [pair.repeat for pair in pairs] == ["0", "1", "1 at concurrency 4"]
    assert [pair.latencies is None for pair in pairs] == [False, True, True]


def test_other_arms_and_empty_lines_are_left_out() -> None:
    assert pair_requests([{"arm": "warm_up", "prompt_id": "p"}, {}]) == []


def test_a_latency_that_is_no_number_is_not_measured() -> None:
    first, second = make_requests()[:2]
    (pair,) = pair_requests([first, second | {"latency_ms": None, "token_ids": None}])
    assert pair.latencies is None
    assert pair.identical is False
