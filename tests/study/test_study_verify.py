"""``draftproof verify``: three outcomes, each with its reasons; registered before a token is drawn; what is planted is found."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftproof.errors import OutputError, PlanError
from draftproof.evidence import Verification
from draftproof.study.plan import SampledPlan, parse_plan
from draftproof.study.verify import plan_verification, verify_study
from draftproof.verify.controls import DEFECTS
from support.scripted import Silent, Stopping, json_lines, make_plan, study_values

COUPLED = {"verification": "coupled"}


def verified(folder: Path, *, plant: str | None = None, resume: bool = False, **tables: Any) -> Verification:
    control = None if plant is None else DEFECTS[plant]
    return verify_study(make_plan(folder, **tables), folder / "out", resume=resume, progress=Silent(), plant=control)


def test_a_correct_engine_passes_and_what_was_registered_is_in_the_lock(tmp_path: Path) -> None:
    result = verified(tmp_path)
    assert result.outcome == "PASS" and result.reasons == [] and result.planted is None
    stored = Verification.model_validate(
        json.loads((tmp_path / "out" / "verification.json").read_text(encoding="utf-8"))
    )
    assert stored == result
    lock = json.loads((tmp_path / "out" / "lock.json").read_text(encoding="utf-8"))
    registered = lock["loaded"][0]["registration"]
    assert registered["sha256"] == result.registration
    sampled = registered["record"]["sampled"]
    assert (sampled["alpha_fail"], sampled["delta"], sampled["sequences"]) == (1e-3, 0.12, 150)
    assert sampled["quotas"] == {"draft 1": 50, "draft 2+": 50, "bonus": 50}
    assert [item["expected"] for item in sampled["controls"]] == ["flagged", "flagged", "not flagged"]
    assert "above 0.01 on the lattice" in sampled["accept rule, before a token is drawn"] and sampled["power"] == 0.9
    assert result.equivalence.sampled is not None and result.equivalence.sampled.planned is not None
    (planned,) = lock["planned"]
    assert planned.pop("at") and planned == result.equivalence.sampled.planned.model_dump()
    assert len(json_lines(tmp_path / "out" / "requests.jsonl")) == 6 * 3
    assert "Nothing was timed." in result.limits


def test_arms_that_agree_because_nothing_was_drafted_show_nothing(tmp_path: Path) -> None:
    """No four words come twice, and prompt lookup asks for four."""
    prompts = tmp_path / "unlike.jsonl"
    text = " ".join(f"word{number}" for number in range(20))
    prompts.write_text(json.dumps({"id": "p", "category": "list", "prompt": text}) + "\n", encoding="utf-8")
    result = verified(
        tmp_path,
        speculation={"prompt_lookup_min": 4, "prompt_lookup_max": 4},
        workload={"prompts": str(prompts), "max_tokens": 6},
        sampled={"enabled": False},
    )
    rounds = [item for line in json_lines(tmp_path / "out" / "requests.jsonl") for item in line["rounds"]]
    assert rounds and not any(item["num_proposed"] for item in rounds)
    assert result.equivalence.greedy is not None and result.equivalence.greedy.outcome == "PASS"
    assert result.outcome == "INCONCLUSIVE" and "no token was drafted" in result.reasons[0]


@pytest.mark.parametrize("name", ["redraw from the target", "bonus from the draft"])
def test_a_planted_defect_is_found_and_named_as_planted(tmp_path: Path, name: str) -> None:
    result = verified(tmp_path, plant=name)
    assert result.outcome == "FAIL" and result.planted == name
    assert any("the accept rule, without sampling, is" in reason for reason in result.reasons)


def test_a_rule_that_is_wrong_by_itself_fails_without_a_sample(tmp_path: Path) -> None:
    result = verified(tmp_path, plant="bonus one place early")
    sampled, controls = result.equivalence.sampled, result.equivalence.controls
    assert result.outcome == "FAIL" and sampled is not None and sampled.outcome == "FAIL"
    assert sampled.identity is not None and sampled.identity.worst > 0.1
    assert (sampled.sequences, sampled.tokens, sampled.planned) == (0, 0, None)
    assert "No sampled token was judged." in result.limits
    assert [(item.name, item.flagged, item.behaved) for item in controls] == [
        ("always accept", True, True),
        ("redraw from the target", True, True),
        ("rejection rule", False, True),
    ]


@pytest.mark.parametrize("name", ["drawn colder than reported", "most likely drafted", "draft's number as coin"])
def test_a_defect_of_the_drafts_law_is_not_planted_where_nothing_is_drawn(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match="prompt lookup draws none, so nothing would be planted"):
        verified(tmp_path, plant=name)
    assert not (tmp_path / "out").exists()


def test_where_quotas_cannot_be_met_the_plan_says_so_and_the_outcome_is_inconclusive(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, sampled={"min_stratum_tokens": 5000})
    progress = Silent()
    _, planned = plan_verification(plan, progress)
    assert planned is not None and [place.enough for place in planned.places] == [True, False, False, False]
    assert sum("too few to pass: INCONCLUSIVE at best; sampled.sequences =" in line for line in progress.said) == 3
    for place in planned.places[1:]:
        assert place.sequences_needed is not None
        # as the quota is to the tokens that are planned
        assert place.sequences_needed / plan.sampled.sequences == pytest.approx(5000 / place.tokens, rel=0.1)
    assert not (tmp_path / "out").exists()
    result = verified(tmp_path, sampled={"min_stratum_tokens": 5000})
    assert result.outcome == "INCONCLUSIVE" and any("5000 were registered" in reason for reason in result.reasons)


def test_what_the_pilot_expects_is_what_comes(tmp_path: Path) -> None:
    """Shares of places and the bound, within a third: the pilot is 64 sequences, and the check 600 others."""
    result = verified(tmp_path, sampled={"sequences": 600})
    sampled = result.equivalence.sampled
    assert sampled is not None and sampled.planned is not None and sampled.tv_upper_bound is not None
    found = {row["place in the round"]: row for row in sampled.strata}
    for place in sampled.planned.places:
        tokens = sampled.tokens if place.place == "all" else found[place.place]["tokens"]
        bound = sampled.tv_upper_bound if place.place == "all" else found[place.place]["bound"]
        assert abs(place.tokens - tokens) < tokens / 3
        assert abs(place.expected_bound - bound) < bound / 3


def test_rank_cells_judge_the_whole_vocabulary(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"cells": "ranks", "delta": 0.2, "delta_stratum": 0.6, "min_stratum_tokens": 5}
    changes |= {"sequences": 300, "control_sequences": 150, "words": list(SampledPlan.model_fields["words"].default)}
    steep = {"spread": 1.0, "copying": 9.0}
    result = verified(tmp_path, sampled=changes, script=steep)
    sampled = result.equivalence.sampled
    assert sampled is not None and sampled.outcome == "PASS" and sampled.tokens == 300 * 8
    assert sampled.configuration["allowed_token_ids"] == "all, in rank cells"
    assert "the whole vocabulary in rank cells" in " ".join(result.limits)
    wrong = verify_study(
        make_plan(tmp_path, sampled=changes, script=steep),
        tmp_path / "wrong",
        resume=False,
        progress=Silent(),
        plant=DEFECTS["redraw from the target"],
    )
    assert wrong.outcome == "FAIL"


def test_an_interrupted_check_goes_on_and_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        verify_study(plan, tmp_path / "out", resume=False, progress=Stopping("A/B/A", 3))
    assert len(json_lines(tmp_path / "out" / "requests.jsonl")) == 9
    with pytest.raises(OutputError, match="--resume"):
        verify_study(plan, tmp_path / "out", resume=False, progress=Silent())
    resumed = verify_study(plan, tmp_path / "out", resume=True, progress=Silent())
    whole = verify_study(plan, tmp_path / "whole", resume=False, progress=Silent())
    assert resumed.outcome == whole.outcome == "PASS"
    assert resumed.registration == whole.registration
    assert resumed.equivalence.sampled is not None and whole.equivalence.sampled is not None
    assert resumed.equivalence.sampled.tv_by_n == whole.equivalence.sampled.tv_by_n


def test_what_an_engine_cannot_have_planted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be planted in engine 'scripted'; allowed: native"):
        verified(tmp_path, plant="rejected tokens stay")


def test_a_change_of_the_rejection_rule_is_not_planted_beside_the_coupled_one(tmp_path: Path) -> None:
    values = study_values(tmp_path) | {"engine": {"kind": "native", "target": "never-loaded"}}
    coupled = parse_plan(values | {"speculation": COUPLED}, "test")
    with pytest.raises(PlanError, match='changes the rejection rule; set verification = "rejection"'):
        verify_study(coupled, tmp_path / "out", resume=False, progress=Silent(), plant=DEFECTS["always accept"])
    assert not (tmp_path / "out").exists()


def test_values_of_another_way_to_judge_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"sampled\.num_logprobs is for method 'top-logprobs'"):
        verified(tmp_path, sampled={"num_logprobs": 5})
    with pytest.raises(PlanError, match="'words' has no meaning for cells 'ranks'"):
        make_plan(tmp_path, sampled={"cells": "ranks"})
    assert not (tmp_path / "out").exists()


def test_records_of_prompts_that_the_study_does_not_have_are_run_again(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        verify_study(plan, tmp_path / "out", resume=False, progress=Stopping("A/B/A", 3))
    stored = tmp_path / "out" / "requests.jsonl"
    stored.write_text(stored.read_text(encoding="utf-8").replace('"p1"', '"another"'), encoding="utf-8")
    assert verify_study(plan, tmp_path / "out", resume=True, progress=Silent()).outcome == "PASS"
    assert {record["prompt_id"] for record in json_lines(stored)} == {f"p{number}" for number in range(6)}
