"""What a round accepts and emits has an interval over prompts, from rounds and from what a server counts."""

from typing import Any

import pytest

from draftproof.evidence import Acceptance, Interval
from draftproof.measure.compare import summarise_acceptance
from draftproof.measure.counted import counted_acceptance
from draftproof.measure.per_round import with_intervals


def rounds(*accepted: int | None) -> list[dict[str, Any]]:
    """Rounds that proposed three tokens each; None proposed nothing."""
    return [
        {
            "num_proposed": 0 if count is None else 3,
            "num_accepted": count or 0,
            "emitted": (count or 0) + 1,
            "next_token": "target",
        }
        for count in accepted
    ]


def record(prompt: str, *accepted: int | None) -> dict[str, Any]:
    return {"prompt_id": prompt, "rounds": rounds(*accepted), "speculation": None}


def served(prompt: str, steps: int | None, accepted: int, requests: int = 1) -> dict[str, Any]:
    counts = {"num_spec_steps": steps, "num_draft_tokens": None, "num_accepted_draft_tokens": accepted}
    return {"prompt_id": prompt, "rounds": [], "speculation": {**counts, "num_requests": requests}}


def of_rounds(records: list[dict[str, Any]]) -> Acceptance:
    whole = summarise_acceptance([item for record in records for item in record["rounds"]], 3)
    found = with_intervals(whole, records, 0.95)
    assert found is not None
    return found


def test_the_interval_is_around_the_figure_and_rounds_without_a_draft_count_for_what_was_emitted_alone() -> None:
    found = of_rounds([record("p", 3, 2, None), record("q", 1, 1), record("r", 2, 3, None, None)])
    accepted, emitted = found.accepted_per_round_interval, found.emitted_per_round_interval
    assert accepted is not None and emitted is not None
    assert accepted.estimate == found.accepted_per_round == 2.0
    assert emitted.estimate == found.emitted_per_round == pytest.approx(21 / 9)
    for limits in (accepted, emitted):
        assert limits.low is not None and limits.high is not None and limits.estimate is not None
        assert limits.low < limits.estimate < limits.high


def test_repeats_of_a_prompt_make_no_interval_narrower() -> None:
    records = [record("p", 3, 2), record("q", 1, 1), record("r", 2, 3)]
    assert of_rounds(records).accepted_per_round_interval == of_rounds(records * 5).accepted_per_round_interval


def test_prompts_that_do_not_differ_have_no_limits() -> None:
    found = of_rounds([record("p", 2, 2), record("q", 2, 2)])
    assert found.accepted_per_round_interval == Interval(estimate=2.0, low=None, high=None)


def test_what_a_server_counts_for_each_request_has_one_too() -> None:
    records = [served("p", 4, 8), served("q", 5, 5), served("r", 3, 6)]
    found = with_intervals(counted_acceptance(records), records, 0.95)
    assert found is not None and found.accepted_per_round_interval is not None
    assert found.accepted_per_round_interval.estimate == pytest.approx(19 / 12)
    assert found.accepted_per_round_interval.low is not None and found.emitted_per_round_interval is None


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([served("p", 9, 12, 2), served("q", 9, 12, 2)], id="counted-together"),
        pytest.param([served("p", 4, 8), served("q", None, 3)], id="not-counted"),
    ],
)
def test_counts_that_are_not_each_requests_own_have_none(records: list[dict[str, Any]]) -> None:
    found = with_intervals(counted_acceptance(records), records, 0.95)
    assert found is not None and found.accepted_per_round_interval is None


def test_no_acceptance_is_none() -> None:
    assert with_intervals(None, [record("p")], 0.95) is None
