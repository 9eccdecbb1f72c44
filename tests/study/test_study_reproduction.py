"""A rerun is judged by verdict, claim, tokens and speed-up, and only where two runs may be compared."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftproof.measure.stored import StoredRun, load_run
from draftproof.study.reproduction import RERUN_CODES, Reproduction, judge_rerun
from draftproof.study.run import run_study
from support.scripted import WITHOUT_SAMPLED, Silent, make_plan


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    folder = tmp_path_factory.mktemp("first")
    run_study(make_plan(folder, **WITHOUT_SAMPLED), folder / "out", resume=False, progress=Silent())
    return load_run(folder / "out")


Change = Callable[[StoredRun], StoredRun]


def part(name: str, **changes: Any) -> Change:
    """The same run with other values in one part of its evidence."""

    def change(run: StoredRun) -> StoredRun:
        values = getattr(run.evidence, name)
        changed = {**values, **changes} if isinstance(values, dict) else values.model_copy(update=changes)
        return replace(run, evidence=run.evidence.model_copy(update={name: changed}))

    return change


def speedup(low: float | None, high: float | None) -> Change:
    def change(run: StoredRun) -> StoredRun:
        assert run.evidence.comparison is not None
        overall = run.evidence.comparison.overall
        interval = overall.speedup.model_copy(update={"low": low, "high": high})
        return part("comparison", overall=overall.model_copy(update={"speedup": interval}))(run)

    return change


def other_token(block: str) -> Change:
    """The last token of one prompt in one block is another."""

    def change(run: StoredRun) -> StoredRun:
        records = [dict(record) for record in run.records or ()]
        record = next(item for item in records if (item["prompt_id"], item["block"]) == ("p3", block))
        record["token_ids"] = [*record["token_ids"][:-1], record["token_ids"][-1] + 1]
        return replace(run, records=tuple(records))

    return change


def without_last_request(run: StoredRun) -> StoredRun:
    return replace(run, records=(run.records or ())[:-1])


def without_requests(run: StoredRun) -> StoredRun:
    return replace(run, records=None)


def judged(run: StoredRun, *changes: Change) -> Reproduction:
    """Hold the run, changed, against itself."""
    other = run
    for change in changes:
        other = change(other)
    return judge_rerun(run, replace(other, name="again"))


UP_TO_TIES = part("equivalence", claim="up_to_ties")
NOISY = part("decision", verdict="INCONCLUSIVE")
OTHER_TORCH = part("environment", packages={"torch": "0.0"})


@pytest.mark.parametrize(
    ("changes", "outcome", "said"),
    [
        pytest.param((), "REPRODUCED", None, id="the-same"),
        pytest.param((speedup(0.1, 100.0),), "REPRODUCED", None, id="intervals-overlap"),
        pytest.param((OTHER_TORCH,), "REPRODUCED", None, id="other-software"),
        pytest.param((OTHER_TORCH, other_token("B")), "REPRODUCED", None, id="other-bits-of-other-software"),
        pytest.param(
            (part("decision", verdict="KEEP_TARGET_ONLY"),), "NOT_REPRODUCED", "verdict: ADOPT, then KEEP", id="verdict"
        ),
        pytest.param((UP_TO_TIES,), "NOT_REPRODUCED", "claim: bitwise, then up_to_ties", id="claim"),
        pytest.param(
            (other_token("B"),), "NOT_REPRODUCED", "speculative tokens: 5 of 6 the same; prompt 'p3' differs from token 12",
            id="speculative-tokens",
        ),
        pytest.param((other_token("A2"),), "NOT_REPRODUCED", "target-only tokens: 5 of 6 the same", id="target-tokens"),
        pytest.param((without_last_request,), "NOT_REPRODUCED", "finished by one of the runs only", id="lost-request"),
        pytest.param((speedup(100.0, 101.0),), "NOT_REPRODUCED", "the intervals do not overlap", id="speed-up"),
        pytest.param((NOISY,), "INCONCLUSIVE", "ADOPT, then INCONCLUSIVE", id="noise"),
        pytest.param((NOISY, speedup(100.0, 101.0)), "INCONCLUSIVE", "one of the runs allows no claim", id="noisy-times"),
        pytest.param((NOISY, other_token("B")), "NOT_REPRODUCED", "speculative tokens", id="noise-changes-no-token"),
        pytest.param((speedup(None, None),), "INCONCLUSIVE", "speed-up: not estimable", id="no-interval"),
        pytest.param((without_requests,), "INCONCLUSIVE", "no requests.jsonl lies beside", id="no-requests"),
        pytest.param(
            (part("environment", cpu_model="another"), speedup(100.0, 101.0)), "INCONCLUSIVE", "cpu_model (machine)",
            id="other-machine",
        ),
        pytest.param(
            (part("study", prompts="0" * 64), other_token("B")), "INCONCLUSIVE", "prompts (work)", id="other-work"
        ),
    ],
)  # fmt: skip
def test_the_outcome_follows_from_what_came_out_again(
    run: StoredRun, changes: tuple[Change, ...], outcome: str, said: str | None
) -> None:
    found = judged(run, *changes)
    assert found.outcome == outcome
    assert found.reasons == [] if said is None else any(said in reason for reason in found.reasons)


def test_tokens_that_no_claim_promises_may_differ_and_are_told(run: StoredRun) -> None:
    weaker = UP_TO_TIES(run)
    found = judge_rerun(weaker, replace(other_token("B")(weaker), name="again"))
    assert found.outcome == "REPRODUCED"
    tokens = next(item for item in found.findings if item.name == "speculative tokens")
    assert tokens.result == "may differ" and "claim up_to_ties does not promise" in tokens.why


def test_other_software_is_named_where_tokens_differ(run: StoredRun) -> None:
    found = judged(run, OTHER_TORCH, other_token("B"))
    tokens = next(item for item in found.findings if item.name == "speculative tokens")
    assert tokens.result == "may differ" and "packages.torch changed" in tokens.why
    assert [item.name for item in found.runs.others[0].differences] == ["packages.torch"]


def test_in_the_open_loop_the_same_batch_promises_no_tokens(run: StoredRun) -> None:
    arrival = {**run.evidence.study.plan, "workload": {"arrival": {"rate_per_s": 1.0}}}
    batched = part("equivalence", claim="bitwise_same_batch")(part("study", plan=arrival)(run))
    assert judge_rerun(batched, replace(other_token("B")(batched), name="again")).outcome == "REPRODUCED"
    closed = part("equivalence", claim="bitwise_same_batch")(run)
    assert judge_rerun(closed, replace(other_token("B")(closed), name="again")).outcome == "NOT_REPRODUCED"


def test_the_codes_are_those_of_the_verdicts() -> None:
    assert RERUN_CODES == {"REPRODUCED": 0, "INCONCLUSIVE": 11, "NOT_REPRODUCED": 12}
