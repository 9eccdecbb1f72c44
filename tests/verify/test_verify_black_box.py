"""
Two samples say PASS of a correct engine, FAIL of a wrong one, and INCONCLUSIVE where they cannot tell.

The engine may only generate. Seeds are fixed.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftproof import Engine
from draftproof.decoding.proposers.base import Proposer
from draftproof.engines.scripted import Script, ScriptedEngine
from draftproof.errors import InputError
from draftproof.evidence import ControlResult, SampledResult
from draftproof.proposers import PromptLookup
from draftproof.records import Completion
from draftproof.sampling.accept import AcceptRule, rejection
from draftproof.verify.arms import BlackBoxDesign, num_requests
from draftproof.verify.black_box import verify_black_box
from draftproof.verify.controls import RULE_DEFECTS, hotter
from draftproof.verify.controls.report import Reported
from support.only_generates import OnlyGenerates, TurnDraft, of_first_place
from support.scripted import SCRIPT
from support.toy_engines import make_engine
from support.toy_models import tiny_llama

PROMPTS = (
    "red green blue red green red blue blue green red blue green red green blue green",
    "blue blue red green green blue red red blue green red blue blue green red",
)
WORD_IDS = tuple(ScriptedEngine().encode(word)[0] for word in ("red", "green", "blue"))
# of a model with 8 tokens
FREE: dict[str, Any] = {"prompts": ((2, 3, 4, 2, 6, 3, 2), (7, 5, 3, 7, 5)), "allowed_token_ids": None}


def scripted(accept: AcceptRule = rejection, proposer: Proposer | None = None, **script: Any) -> ScriptedEngine:
    return ScriptedEngine(
        Script(**{**SCRIPT, **script}),
        proposer=proposer or PromptLookup(1, 1),
        num_speculative_tokens=2,
        max_batch=32,
        max_len=128,
        accept=accept,
    )


def native(accept: AcceptRule = rejection) -> Engine:
    return make_engine(
        tiny_llama(vocab=8),
        vocab=8,
        proposer=TurnDraft(range(8)),
        num_speculative_tokens=2,
        max_batch=32,
        max_len=64,
        numerics="fast",
        accept=accept,
    )


def design(**changes: Any) -> BlackBoxDesign:
    values: dict[str, Any] = {
        "prompts": PROMPTS,
        "allowed_token_ids": WORD_IDS,
        "temperature": 1.0,
        "sequences": 200,
        "control_sequences": 200,
        "tokens": 6,
        "batch": 32,
        "cells": 3,
        "delta": 0.2,
        "alpha_fail": 1e-2,
        "alpha_eq": 0.05,
        "seed": 1,
    }
    return BlackBoxDesign(**{**values, **changes})


def check(subject: Any, **changes: Any) -> tuple[SampledResult, list[ControlResult]]:
    return verify_black_box(OnlyGenerates(subject), design(**changes), lambda steps: None)


class Chain:
    """Only what the check may use: sequences of a chain over three words, one after the other, from the request's seed."""

    def __init__(self, **changes: Any) -> None:
        self.capabilities = replace(scripted().capabilities, **changes)
        self.calls: list[tuple[bool, list[Any], list[Any]]] = []
        self.scores = np.random.default_rng(3).normal(size=(2, 3, 3))

    def heat(self, speculate: bool) -> float:
        return 1.0

    def seed_of(self, params: Any) -> int:
        return int(params.seed)

    def generate(self, prompts: Any, params: Any, *, speculate: bool, on_completion: Any) -> list[Completion]:
        self.calls.append((speculate, list(prompts), list(params)))
        heat = self.heat(speculate)
        done = []
        for index, (prompt, item) in enumerate(zip(prompts, params, strict=True)):
            weights = np.exp(self.scores[PROMPTS.index(prompt)] / (item.temperature * heat))
            edges = (weights / weights.sum(axis=1, keepdims=True)).cumsum(axis=1)[:, :-1]
            cell, cells = 0, []
            for number in np.random.default_rng(self.seed_of(item)).random(item.max_tokens):
                cell = int((number > edges[cell]).sum())
                cells.append(cell)
            done.append(self.completion(tuple(item.allowed_token_ids[cell] for cell in cells), speculate))
            on_completion(index, done[-1])
        return done

    def completion(self, token_ids: tuple[int, ...], speculate: bool) -> Completion:
        return Completion(
            token_ids=token_ids,
            text="",
            finish_reason="length",
            logprobs=None,
            rounds=(),
            speculation=None,
            chunks=(),
            num_prompt_tokens=1,
        )


def check_chain(subject: Chain, **changes: Any) -> tuple[SampledResult, list[ControlResult]]:
    return verify_black_box(subject, design(**changes), lambda steps: None)  # type: ignore[arg-type]


# --- PASS -------------------------------------------------------------------------------------------------------------


def test_a_correct_engine_passes_and_everything_it_was_held_against_is_recorded() -> None:
    """Chance: FAIL .01, the target-only arms told apart .01; the margin to delta is .07."""
    steps: list[int] = []
    subject, plan = scripted(copying=2.0), design()
    result, controls = verify_black_box(OnlyGenerates(subject), plan, steps.append)
    assert (result.outcome, result.reasons, result.method) == ("PASS", [], "two samples")
    assert (result.sequences, result.tokens) == (400, 400 * 5)
    assert result.tv_estimate is not None and result.tv_upper_bound is not None
    assert result.tv_upper_bound == pytest.approx(result.tv_estimate + (np.log(20) / 400) ** 0.5)
    assert result.tv_by_n[-1] == (result.tokens, result.tv_estimate, result.tv_upper_bound)
    assert [row["test"] for row in result.tests] == [
        "bigram chi-square",
        "chi-square by position",
        "MMD, Hamming kernel",
    ]
    assert min(row["adjusted"] for row in result.tests) == result.p_value
    assert [(item.name, item.kind, item.flagged, item.behaved) for item in controls] == [
        ("fresh random numbers", "lossless", False, True),
        ("target-only against itself", "lossless", False, True),
        ("another temperature", "defect", True, True),
    ]
    assert sum(steps) == num_requests(plan) == 2 * 4 * 200 + 128


def test_a_correct_engine_around_a_model_passes() -> None:
    """As above; sampled from all 8 tokens, in rank cells."""
    result, controls = check(native(), **FREE)
    assert result.outcome == "PASS" and all(item.behaved for item in controls)


# --- FAIL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RULE_DEFECTS))
def test_a_shipped_defect_as_the_engine_s_own_rule_fails(name: str) -> None:
    result, _ = check(scripted(RULE_DEFECTS[name], copying=2.0))
    assert result.outcome == "FAIL" and result.reasons[0].endswith("is below 0.01")
    assert result.p_value == pytest.approx(3 / 1201)


def test_a_draft_whose_reported_law_stays_that_of_the_first_place_fails_and_an_honest_one_passes() -> None:
    draft = TurnDraft(WORD_IDS)
    assert check(scripted(proposer=draft, copying=2.0))[0].outcome == "PASS"
    stale = Reported(draft, of_first_place)
    assert check(scripted(proposer=stale, copying=2.0))[0].outcome == "FAIL"


def test_a_defect_around_a_model_fails() -> None:
    result, _ = check(native(RULE_DEFECTS["always accept"]), **FREE)
    assert result.outcome == "FAIL"


def test_an_engine_that_speculates_at_another_temperature_fails() -> None:
    class Hotter(Chain):
        def generate(self, prompts: Any, params: Any, *, speculate: bool, on_completion: Any) -> list[Completion]:
            asked = [hotter(item) for item in params] if speculate else params
            return super().generate(prompts, asked, speculate=speculate, on_completion=on_completion)

    result, _ = check_chain(Hotter())
    assert result.outcome == "FAIL" and result.p_value is not None and result.p_value < 0.01


def test_an_engine_whose_speculation_ends_early_fails() -> None:
    class EndsEarly(Chain):
        def completion(self, token_ids: tuple[int, ...], speculate: bool) -> Completion:
            early = speculate and len(set(token_ids[1:4])) == 1
            return super().completion(token_ids[:4] if early else token_ids, speculate)

    assert check_chain(EndsEarly())[0].outcome == "FAIL"


def test_a_server_that_mostly_ends_early_does_not_show_its_random_numbers() -> None:
    class Short(Chain):
        def completion(self, token_ids: tuple[int, ...], speculate: bool) -> Completion:
            return super().completion(token_ids[:6], speculate)

    result, controls = check_chain(Short())
    assert result.outcome == "INCONCLUSIVE" and not controls[0].behaved and "ended early" in controls[0].detail


def test_a_token_that_was_not_allowed_fails_whatever_else_was_seen() -> None:
    class Strange(Chain):
        def completion(self, token_ids: tuple[int, ...], speculate: bool) -> Completion:
            return super().completion((5, *token_ids[1:]) if speculate else token_ids, speculate)

    result, controls = check_chain(Strange())
    assert result.outcome == "FAIL" and controls == [] and "were not among those allowed" in result.reasons[0]


# --- INCONCLUSIVE -----------------------------------------------------------------------------------------------------


def test_too_few_sequences_show_no_equivalence_and_how_many_would() -> None:
    result, _ = check_chain(Chain(), sequences=60)
    assert result.outcome == "INCONCLUSIVE" and result.p_value is not None and result.p_value >= 0.01
    (reason,) = result.reasons
    assert reason.startswith("no defect found, equivalence not shown: the bound on the total variation, 0.")
    assert reason.endswith("is not below 0.2; 145 sequences of each prompt and arm suffice")


def test_the_number_that_is_named_suffices() -> None:
    result, _ = check_chain(Chain(), sequences=145)
    assert (result.outcome, result.reasons) == ("PASS", [])


class Fixed(Chain):
    """The request's seed is ignored, but for how many the server has."""

    seeds = 1

    def seed_of(self, params: Any) -> int:
        return int(np.random.default_rng(params.seed).integers(self.seeds))


@pytest.mark.parametrize("seeds", [1, 100])
def test_a_fixed_server_seed_is_caught(seeds: int) -> None:
    """That 64 numbers below 100 all differ has a probability below 1e-8, in either arm."""
    subject = Fixed()
    subject.seeds = seeds
    result, controls = check_chain(subject)
    assert result.outcome == "INCONCLUSIVE"
    assert (controls[0].name, controls[0].flagged, controls[0].behaved) == ("fresh random numbers", True, False)
    assert any("control 'fresh random numbers' did not behave" in reason for reason in result.reasons)


def test_a_server_whose_law_changes_from_call_to_call_is_not_judged() -> None:
    """Each block has its own temperature, so the two target-only arms differ by more than chance."""

    class Drifting(Chain):
        def heat(self, speculate: bool) -> float:
            return float(np.exp(np.random.default_rng(len(self.calls)).normal(0.0, 1.5)))

    result, controls = check_chain(Drifting(), batch=100)
    assert [item.behaved for item in controls][1] is False
    assert result.outcome == "INCONCLUSIVE" and any("target-only against itself" in item for item in result.reasons)


def test_a_defect_that_is_not_found_is_inconclusive() -> None:
    result, controls = check_chain(Chain(), control_sequences=10)
    assert not controls[-1].flagged
    assert result.outcome == "INCONCLUSIVE"
    assert [item.split(":")[0] for item in result.reasons] == ["control 'another temperature' did not behave"]


def test_a_request_that_ends_with_an_error_leaves_the_law_unread() -> None:
    class Fails(Chain):
        def completion(self, token_ids: tuple[int, ...], speculate: bool) -> Completion:
            return replace(super().completion(token_ids, speculate), error="a reason" if speculate else None)

    result, controls = check_chain(Fails())
    assert (result.outcome, result.tokens, result.p_value, controls) == ("INCONCLUSIVE", 0, None, [])
    assert result.reasons == ["64 of 64 requests ended with an error: a reason"]


# --- how it asks ------------------------------------------------------------------------------------------------------


def test_arms_are_interleaved_prompts_mixed_and_no_seed_is_used_twice() -> None:
    subject = Chain()
    check_chain(subject, control_sequences=40)
    calls = subject.calls[2:]
    assert all(set(prompts) == set(PROMPTS) for _, prompts, _ in calls)
    seeds = [item.seed for _, _, params in subject.calls for item in params]
    assert len(seeds) == len(set(seeds)) == num_requests(design(control_sequences=40))
    plain = [not speculate for speculate, _, _ in calls]
    planted = [params[0].temperature > 1.0 for _, _, params in calls]
    rounds = [flag for flag, other in zip(plain, planted, strict=True) if not other]
    assert all(sum(rounds[at : at + 3]) == 2 for at in range(0, len(rounds), 3))
    assert len({tuple(rounds[at : at + 3]) for at in range(0, len(rounds), 3)}) == 3
    again = Chain()
    check_chain(again, control_sequences=40)
    assert again.calls == subject.calls


def test_an_engine_for_one_request_at_a_time_is_refused() -> None:
    with pytest.raises(InputError, match="max_batch = 1: two different requests must be in flight"):
        check_chain(Chain(max_batch=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": PROMPTS[:1]}, "prompts: got 1; give two or more"),
        ({"prompts": (PROMPTS[0], PROMPTS[0])}, "each different"),
        ({"tokens": 1}, "tokens = 1: allowed 2 or more"),
        ({"batch": 1}, "batch = 1: allowed 2 or more"),
        ({"temperature": 0.0}, "temperature = 0.0: allowed above 0"),
        ({"alpha_fail": 0.0}, "alpha_fail = 0.0: allowed between 0 and 1"),
    ],
)
def test_a_design_that_shows_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        design(**changes)
