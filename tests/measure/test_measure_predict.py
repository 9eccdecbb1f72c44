"""On a virtual clock, where every step takes the time that the script says, prediction and measurement are one number."""

import math
from pathlib import Path
from typing import Any

import pytest

from draftproof import evidence as ev
from draftproof.study import run
from draftproof.study.run import run_study
from support.repeating import SCRIPT, write_repeating
from support.scripted import WITHOUT_SAMPLED, Restricted, Silent, make_plan


def study(folder: Path, k: int = 4, concurrency: int = 1, **script: float) -> ev.Evidence:
    folder.mkdir(exist_ok=True)
    plan = make_plan(
        folder,
        script={**SCRIPT, **script},
        speculation={"num_speculative_tokens": k, "prompt_lookup_max": 1},
        workload={"prompts": str(write_repeating(folder)), "max_tokens": 24, "concurrency": [concurrency]},
        **WITHOUT_SAMPLED,
    )
    return run_study(plan, folder / f"k{k}", resume=False, progress=Silent())[0]


def prediction(evidence: ev.Evidence) -> ev.Prediction:
    assert evidence.comparison is not None
    (found,) = evidence.comparison.prediction.values()
    return found


@pytest.mark.parametrize("k", [1, 4])
def test_prediction_and_measurement_are_equal_on_a_steady_clock(tmp_path: Path, k: int) -> None:
    """Also where drafting takes time for each token; every pass with drafted tokens takes the same."""
    found = prediction(study(tmp_path, k, draft_ms=3.0))
    assert found.predicted.estimate == pytest.approx(found.measured.estimate, rel=1e-9)
    assert found.parts["not explained"] == pytest.approx(1.0)
    assert found.ideal * math.prod(found.parts.values()) == pytest.approx(found.measured.estimate)
    costs = found.costs_ms
    assert (costs.plain_step, costs.score, costs.idle_round) == pytest.approx((40.0, 44.0, 40.0))
    assert costs.draft == pytest.approx(3.0 * k) and costs.host == pytest.approx(0.0, abs=1e-9)
    assert found.break_even is not None and found.acceptance is not None


def test_requests_that_run_together_agree_too(tmp_path: Path) -> None:
    """A round of the batch costs a block as soon as one of its requests drafted, so that means are not exact."""
    found = prediction(study(tmp_path, concurrency=4, draft_ms=3.0))
    assert found.measured_over_predicted == pytest.approx(1.0, abs=0.1)
    # the time of a draft is told apart from that of the batch's other drafts
    assert found.costs_ms.draft > 3.0


def test_tokens_per_round_for_another_k_are_about_those_of_a_study_with_it(tmp_path: Path) -> None:
    """
    From K = 8 down; allowed 10 %, since a shorter draft looks up again in the middle of a longer one and may find better.

    The formula in the acceptance by position is further off: where its rounds begin depends on k.
    """
    rounds = {}
    for k in (1, 2, 4, 8):
        evidence = study(tmp_path, k)
        assert evidence.arms is not None and evidence.arms.speculative is not None
        assert evidence.arms.speculative.acceptance is not None
        rounds[k] = evidence.arms.speculative.acceptance
    rows = {row.num_speculative_tokens: row for row in prediction(evidence).by_k}
    for k in (1, 2, 4):
        true = rounds[k].emitted_per_round
        held = [share or 0.0 for share in rounds[8].by_position[:k]]
        by_position = 1 + sum(held) * rounds[8].drafted_rounds / rounds[8].rounds
        assert true is not None and rows[k].tokens_per_round == pytest.approx(true, rel=0.1), k
        assert abs(rows[k].tokens_per_round - true) < abs(by_position - true), k


def test_where_no_round_accepted_everything_nothing_is_said_beyond_k(tmp_path: Path) -> None:
    found = prediction(study(tmp_path, 8, spread=0.6))
    assert [row.num_speculative_tokens for row in found.by_k] == list(range(1, 9))


def test_the_fastest_k_is_by_time(tmp_path: Path) -> None:
    cheap, dear = prediction(study(tmp_path / "a", draft_ms=0.5)), prediction(study(tmp_path / "b", draft_ms=30.0))
    assert cheap.best is not None and cheap.best >= 4
    assert dear.best in (None, 1)


def test_a_draft_that_is_better_but_too_slow_is_kept_out_with_its_cost_named(tmp_path: Path) -> None:
    evidence = study(tmp_path, draft_ms=60.0)
    assert evidence.decision.verdict == "KEEP_TARGET_ONLY"
    (reason,) = [reason for reason in evidence.decision.reasons if reason.startswith("The speed-up is")]
    assert "drafting takes 240 of its 284 ms" in reason and "at these costs no acceptance breaks even" in reason
    assert "if drafting took no time, the speed-up would be 1." in reason


def test_a_slow_pass_is_not_blamed_on_the_draft(tmp_path: Path) -> None:
    evidence = study(tmp_path, block_ms=400.0)
    assert evidence.decision.verdict == "KEEP_TARGET_ONLY"
    assert not any("drafting" in reason for reason in evidence.decision.reasons)
    found = prediction(evidence)
    assert min(found.parts, key=lambda name: found.parts[name]) == "wider passes" and found.break_even is None


def test_an_engine_without_rounds_has_no_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_engine = run.open_engine

    def blind(*inputs: Any) -> Restricted:
        return Restricted(open_engine(*inputs), reports_rounds=False)

    monkeypatch.setattr(run, "open_engine", blind)
    evidence = study(tmp_path)
    assert evidence.comparison is not None and evidence.comparison.prediction == {}
    assert evidence.comparison.overall.speedup.estimate is not None
