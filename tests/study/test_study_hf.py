"""A study whose engine is transformers' own `generate`, in each of its ways of drafting, and with a fault planted in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from draftproof import evidence as ev
from draftproof.errors import ModelError
from draftproof.study.plan import Plan, parse_plan
from draftproof.study.preflight import preflight
from draftproof.study.run import run_study
from draftproof.study.verify import verify_study
from support.other_words import other_words, translated
from support.overrun import one_token_more
from support.scripted import Silent, json_lines
from support.toy_engines import noisy_copy, numbered_words
from support.toy_models import tiny_llama

COUNT, TOKENS, K = 3, 12, 3
SPECULATION: dict[str, dict[str, Any]] = {
    "prompt-lookup": {},
    "draft-model": {"draft": "draft"},
    "cross-tokenizer": {"draft": "other"},
    "early-exit": {"exit_layer": 1},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    draft = noisy_copy(tiny_llama(), 0.3)
    words, others = numbered_words(), other_words()
    others.chat_template = words.chat_template
    for name, model, tokenizer in (
        ("target", tiny_llama(), words),
        ("draft", draft, words),
        ("other", translated(draft), others),
    ):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def make_plan(models: Path, folder: Path, proposer: str, **tables: Any) -> Plan:
    lines = [
        {"id": f"p{place}", "category": "list", "prompt": f"w0{place + 2} w09 w11 w0{place + 2} w09"}
        for place in range(COUNT)
    ]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    speculation = {"proposer": proposer, "num_speculative_tokens": K, **SPECULATION[proposer]}
    if "draft" in speculation:
        speculation["draft"] = str(models / speculation["draft"])
    values = {
        "name": "transformers",
        "engine": {"kind": "hf", "target": str(models / "target"), "dtype": "float64", "max_len": 128},
        "speculation": speculation,
        "workload": {"prompts": str(path), "max_tokens": TOKENS},
        "sampling": {"ignore_eos": True},
        "sampled": {"enabled": False},
        "policy": {"min_claim": "up_to_ties", "require_sampled": False},
        **tables,
    }
    return parse_plan(values, "test")


def study(plan: Plan, out: Path) -> tuple[ev.Evidence, list[dict[str, Any]]]:
    evidence, _ = run_study(plan, out, resume=False, progress=Silent())
    return evidence, json_lines(out / "requests.jsonl")


@pytest.mark.parametrize("proposer", SPECULATION)
def test_every_way_of_drafting_is_studied_and_what_it_accepts_is_counted(
    models: Path, tmp_path: Path, proposer: str
) -> None:
    evidence, records = study(make_plan(models, tmp_path, proposer), tmp_path / "out")
    assert evidence.stopped is None and len(records) == 3 * COUNT
    assert evidence.equivalence is not None and evidence.equivalence.greedy is not None
    assert evidence.equivalence.greedy.outcome == "PASS" and evidence.equivalence.claim == "up_to_ties"
    assert evidence.environment["engine"]["proposer"] == proposer
    assert evidence.arms is not None and evidence.arms.speculative is not None
    acceptance = evidence.arms.speculative.acceptance
    assert acceptance is not None and evidence.arms.target_only.acceptance is None
    assert acceptance.drafted_rounds and acceptance.proposed and acceptance.accepted is not None
    assert acceptance.rate is not None and 0 <= acceptance.rate <= 1
    chunks = [len(record["chunks"]) for record in records if record["block"] == "B"]
    # each round has one token of the target's own, but for a last one that has no room for it
    assert 0 <= acceptance.accepted - (COUNT * TOKENS - sum(chunks)) <= COUNT
    assert any("Acceptance is what the target's passes show" in limit for limit in evidence.limits)


@pytest.mark.parametrize("proposer", SPECULATION)
def test_the_preflight_refuses_none_of_them(models: Path, tmp_path: Path, proposer: str) -> None:
    found = preflight(make_plan(models, tmp_path, proposer), Silent())
    assert not [item for item in found if item.status == "refuse"]


def test_what_transformers_would_not_draft_with_is_refused_before_anything_runs(models: Path, tmp_path: Path) -> None:
    speculation = {"proposer": "early-exit", "exit_layer": 7, "num_speculative_tokens": K}
    plan = make_plan(models, tmp_path, "early-exit", speculation=speculation)
    assert "allowed 1 to 1" in preflight(plan, Silent())[-1].why
    with pytest.raises(ModelError, match="early exit after layer 7: allowed 1 to 1 with this target"):
        study(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


TWO: dict[str, Any] = {"max_tokens": 2}


def two(models: Path, folder: Path) -> Plan:
    plan = make_plan(models, folder, "prompt-lookup")
    return plan.model_copy(update={"workload": plan.workload.model_copy(update=TWO)})


def test_the_installed_version_gives_two_tokens_where_two_are_asked_for(models: Path, tmp_path: Path) -> None:
    evidence, records = study(two(models, tmp_path), tmp_path / "out")
    assert {len(record["token_ids"]) for record in records} == {2}
    assert evidence.equivalence is not None and evidence.equivalence.greedy is not None
    assert evidence.equivalence.greedy.outcome == "PASS"


def test_three_tokens_for_two_are_a_stop_rule_fault_of_that_engine(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B78."""
    monkeypatch.setattr(LlamaForCausalLM, "generate", one_token_more(LlamaForCausalLM.generate))
    evidence, records = study(two(models, tmp_path), tmp_path / "out")
    assert {len(record["token_ids"]) for record in records if record["block"] == "B"} == {3}
    assert evidence.equivalence is not None and evidence.equivalence.greedy is not None
    assert evidence.decision.verdict == "ROLL_BACK"
    for found in evidence.equivalence.greedy.divergences:
        assert (found.kind, found.cause, found.position) == ("DEFECT", "stop rule", 2)
        assert found.note == "transformers gave 3 tokens, speculative, where 2 were asked for"
    verified = verify_study(two(models, tmp_path), tmp_path / "check", resume=False, progress=Silent())
    assert verified.outcome == "FAIL" and "defect: stop rule" in verified.reasons[0]


def test_sampling_across_tokenizers_is_not_the_target_s_law_in_the_installed_version(
    models: Path, tmp_path: Path
) -> None:
    """
    It puts the draft's rows into the order of its vocabulary, which is any, and reads them in the order of their ids: a drafted token
    is accepted by the probability of another one. Greedy output is the target's all the same.
    """
    sampled = {
        "cells": "ranks", "prompt": ["w05 w09 w11", "w07 w03 w04 w06"], "sequences": 160, "control_sequences": 50, "tokens": 4,
        "delta": 0.3, "delta_stratum": 0.5,
    }  # fmt: skip
    plan = make_plan(models, tmp_path, "cross-tokenizer", sampled=sampled, policy={"min_claim": "up_to_ties"})
    found = verify_study(plan, tmp_path / "out", resume=False, progress=Silent())
    assert found.outcome == "FAIL" and found.equivalence.sampled is not None and found.equivalence.greedy is not None
    assert (found.equivalence.sampled.outcome, found.equivalence.greedy.outcome) == ("FAIL", "PASS")
