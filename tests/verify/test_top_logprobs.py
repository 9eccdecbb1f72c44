"""
The law as a server reports it is the one that is sampled, and judged by it an engine passes or fails as by its own pass.

Seeds are fixed.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from draftproof import Engine
from draftproof.decoding.proposers.base import Proposer
from draftproof.engines.scripted import Script, ScriptedEngine
from draftproof.errors import InputError
from draftproof.evidence import ControlResult, SampledResult
from draftproof.proposers import PromptLookup
from draftproof.records import Completion
from draftproof.request import SamplingParams
from draftproof.sampling.accept import AcceptRule, rejection
from draftproof.sampling.law import token_law
from draftproof.verify.collect import OwnPass, SampledDesign
from draftproof.verify.controls import RULE_DEFECTS, hotter
from draftproof.verify.controls import report as planted
from draftproof.verify.sampled import verify_sampled
from draftproof.verify.top_logprobs import Reported, TopLogprobs, verify_top_logprobs
from support.only_generates import OnlyGenerates, TurnDraft, of_first_place
from support.scripted import SAMPLED, SCRIPT
from support.toy_engines import make_engine
from support.toy_models import tiny_llama

WORD_IDS = tuple(ScriptedEngine().encode(word)[0] for word in SAMPLED["words"])
PROCESSED = Reported(cells=4)
MODEL_PROMPT = (2, 3, 4, 5, 2, 3)


def scripted(accept: AcceptRule = rejection, proposer: Proposer | None = None) -> ScriptedEngine:
    return ScriptedEngine(
        Script(**{**SCRIPT, "copying": 1.5}),
        proposer=proposer or PromptLookup(1, 1),
        num_speculative_tokens=2,
        max_batch=32,
        max_len=64,
        accept=accept,
    )


def native() -> Engine:
    return make_engine(
        tiny_llama(vocab=8),
        vocab=8,
        proposer=TurnDraft(range(8)),
        num_speculative_tokens=2,
        max_batch=32,
        max_len=64,
        numerics="fast",
    )


def design(**changes: Any) -> SampledDesign:
    values: dict[str, Any] = {
        **{name: value for name, value in SAMPLED.items() if name not in ("prompt", "words")},
        "prompts": (tuple(ScriptedEngine().encode(str(SAMPLED["prompt"]))),),
        "allowed_token_ids": WORD_IDS,
        "tokens": 6,
        "control_sequences": 300,
        "delta": 0.15,
    }
    return SampledDesign(**{**values, **changes})


def check(subject: Any, reported: Reported = PROCESSED, **changes: Any) -> tuple[SampledResult, list[ControlResult]]:
    engine: Any = subject if isinstance(subject, OnlyGenerates) else OnlyGenerates(subject)
    return verify_top_logprobs(engine, design(**changes), lambda steps: None, reported)


# --- the law ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "changes"),
    [
        pytest.param(
            Reported(mode="processed", cells=3), {"temperature": 0.7, "allowed_token_ids": (2, 5, 7)}, id="allowed"
        ),
        pytest.param(
            Reported(mode="raw", cells=3), {"temperature": 0.7, "allowed_token_ids": (2, 5, 7)}, id="raw-allowed"
        ),
        pytest.param(Reported(num_logprobs=4, cells=3), {"temperature": 0.7, "allowed_token_ids": None}, id="all"),
        pytest.param(Reported(num_logprobs=4, cells=3, mode="raw"), {"allowed_token_ids": None}, id="raw-all"),
        pytest.param(
            Reported(num_logprobs=5, cells=6), {"temperature": 1.3, "allowed_token_ids": None, "top_k": 4}, id="top-k"
        ),
        pytest.param(
            Reported(num_logprobs=5, cells=4, mode="raw"),
            {"temperature": 1.3, "allowed_token_ids": None, "top_k": 4},
            id="raw-top-k",
        ),
    ],
)
def test_the_law_over_cells_is_the_one_that_is_sampled(reported: Reported, changes: dict[str, Any]) -> None:
    """Against `token_law` of the target's own logits: the likeliest tokens by rank, and the sum of all others."""
    subject, plan = native(), design(prompts=(MODEL_PROMPT,), **{"temperature": 1.0, **changes})
    reported.require(plan)
    params = SamplingParams(
        max_tokens=4,
        temperature=plan.temperature,
        top_k=plan.top_k,
        allowed_token_ids=plan.allowed_token_ids,
        ignore_eos=True,
        seed=3,
    )
    done = subject.generate([MODEL_PROMPT] * 3, [params.model_copy(update={"seed": seed}) for seed in range(3)])
    read = TopLogprobs(reported)(OnlyGenerates(subject), plan, [0] * len(done), done)  # type: ignore[arg-type]
    logits = subject.score(MODEL_PROMPT, [item.token_ids for item in done])
    exact = token_law(torch.from_numpy(logits), [params] * 3).reshape(12, 8).numpy()
    tokens = np.concatenate([item.token_ids for item in done])
    assert read.laws.shape == (12, reported.cells) and read.other_cell == reported.cells - 1
    for law, cell, truth, token in zip(read.laws, read.cells, exact, tokens, strict=True):
        ranked = np.sort(truth)[::-1][: reported.cells - 1]
        assert law == pytest.approx([*ranked, 1.0 - ranked.sum()], abs=3e-6)
        rank = int((truth > truth[token]).sum())
        assert cell == min(rank, reported.cells - 1)


def test_each_prefix_is_asked_for_once_and_target_only() -> None:
    asked: list[tuple[int, ...]] = []

    class Watched(OnlyGenerates):
        def generate(self, prompts: Any, params: Any, **options: Any) -> list[Completion]:
            if isinstance(params, SamplingParams):
                assert (params.max_tokens, params.logprobs, options["speculate"]) == (1, 20, False)
                asked.extend(tuple(prompt) for prompt in prompts)
            return super().generate(prompts, params, **options)

    result, _ = check(Watched(scripted()))
    assert len(asked) == len(set(asked)) == result.configuration["log-probabilities"]["prefixes asked for"]
    assert min(map(len, asked)) == len(design().prompts[0]) and max(map(len, asked)) == min(map(len, asked)) + 5


def test_top_k_cuts_the_own_pass_too() -> None:
    subject, plan = native(), design(prompts=(MODEL_PROMPT,), allowed_token_ids=(2, 3, 5, 6), top_k=2)
    params = SamplingParams(max_tokens=3, top_k=2, allowed_token_ids=plan.allowed_token_ids, ignore_eos=True)
    done = subject.generate([MODEL_PROMPT], params)
    exact = token_law(torch.from_numpy(subject.score(MODEL_PROMPT, [done[0].token_ids])), [params])[0]
    assert OwnPass()(subject, plan, [0] * len(done), done).laws == pytest.approx(
        exact[:, [2, 3, 5, 6]].numpy(), abs=1e-6
    )


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_correct_engine_passes_and_what_was_reported_is_recorded() -> None:
    result, controls = check(scripted())
    assert (result.outcome, result.reasons, result.method) == ("PASS", [], "top log-probabilities")
    assert [(item.name, item.behaved) for item in controls] == [("another temperature", True), ("target-only", True)]
    assert result.configuration["log-probabilities"]["reported"] == "processed"
    assert result.tokens == 150 * 6 and result.strata == []


def test_it_says_what_the_own_pass_says() -> None:
    """The same tokens, held against the same law: cells by rank or by id make no difference where they do not matter."""

    def of_all(result: SampledResult) -> dict[str, float]:
        return {row["test"]: row["statistic"] for row in result.tests if row["tokens of"] == "all"}

    told = of_all(check(scripted(), Reported(cells=4))[0])
    own = of_all(verify_sampled(scripted(), design(), lambda steps: None)[0])
    same = ["chi-square over (context, token)", "score of log-probability", "score of top-1", "repeated sequences"]
    assert [told[name] for name in same] == pytest.approx([own[name] for name in same], rel=1e-4)


def test_a_model_s_whole_vocabulary_passes_in_a_few_cells() -> None:
    changes = {"prompts": (MODEL_PROMPT,), "allowed_token_ids": None, "tokens": 4, "delta": 0.2}
    result, _ = check(native(), Reported(num_logprobs=5, cells=4), **changes)
    assert (result.outcome, result.reasons) == ("PASS", [])


@pytest.mark.parametrize("name", sorted(RULE_DEFECTS))
def test_a_shipped_defect_fails(name: str) -> None:
    assert check(scripted(RULE_DEFECTS[name]))[0].outcome == "FAIL"


def test_a_draft_that_reports_a_stale_law_fails() -> None:
    stale = planted.Reported(TurnDraft(WORD_IDS), of_first_place)
    assert check(scripted(proposer=stale), sequences=300)[0].outcome == "FAIL"


class Changed(OnlyGenerates):
    """Changes the speculative requests, and not those of the target-only arm, which are the reference."""

    def change(self, params: SamplingParams) -> SamplingParams:
        return hotter(params)

    def generate(self, prompts: Any, params: Any, **options: Any) -> list[Completion]:
        if options.get("speculate", True):
            params = [self.change(item) for item in params]
        return super().generate(prompts, params, **options)


def test_an_engine_that_samples_at_another_temperature_fails() -> None:
    assert check(Changed(scripted()), sequences=300)[0].outcome == "FAIL"


def test_a_fixed_server_seed_is_caught() -> None:
    class Fixed(Changed):
        def change(self, params: SamplingParams) -> SamplingParams:
            return params.model_copy(update={"seed": params.seed % 20})

    assert check(Fixed(scripted()))[0].outcome == "FAIL"


def test_raw_numbers_taken_for_processed_ones_leave_no_reference() -> None:
    """They are rejected in both arms."""

    class Raw(OnlyGenerates):
        def generate(self, prompts: Any, params: Any, **options: Any) -> list[Completion]:
            if isinstance(params, SamplingParams):
                params = params.model_copy(update={"logprobs_mode": "raw"})
            return super().generate(prompts, params, **options)

    changes = {"prompts": (MODEL_PROMPT,), "allowed_token_ids": None, "tokens": 4, "temperature": 0.5}
    result, _ = check(Raw(native()), Reported(num_logprobs=5, cells=4), **changes)
    assert result.outcome == "INCONCLUSIVE" and result.p_value is not None and result.p_value < 1e-3
    assert "control 'target-only' did not behave" in result.reasons


class Rounded(OnlyGenerates):
    def generate(self, prompts: Any, params: Any, **options: Any) -> list[Completion]:
        done = super().generate(prompts, params, **options)
        return [
            replace(item, top_logprobs=tuple({k: round(v, 3) for k, v in row.items()} for row in item.top_logprobs))
            if item.top_logprobs
            else item
            for item in done
        ]


def test_rounded_numbers_pass_and_the_error_is_recorded() -> None:
    result, _ = check(Rounded(scripted()), replace(PROCESSED, decimals=3))
    assert (result.outcome, result.reasons) == ("PASS", [])
    recorded = result.configuration["log-probabilities"]
    assert recorded["rounding puts the law off by at most"] == pytest.approx(5e-4, rel=1e-2)


def test_too_few_sequences_are_inconclusive() -> None:
    result, _ = check(scripted(), sequences=20)
    assert result.outcome == "INCONCLUSIVE"
    assert [reason.split(",")[0] for reason in result.reasons] == ["the bound on the total variation"]


def test_an_engine_without_log_probabilities_is_not_judged() -> None:
    class Silent(OnlyGenerates):
        def generate(self, prompts: Any, params: Any, **options: Any) -> list[Completion]:
            return [replace(item, top_logprobs=None) for item in super().generate(prompts, params, **options)]

    result, controls = check(Silent(scripted()))
    assert (result.outcome, controls) == ("INCONCLUSIVE", [])
    assert result.reasons == ["the engine reports no log-probabilities; use the two-sample check"]


def test_allowed_tokens_that_are_not_among_the_reported_ones_are_named() -> None:
    result, _ = check(scripted(), Reported(mode="raw", num_logprobs=3, cells=4))
    assert result.outcome == "INCONCLUSIVE"
    assert "allowed tokens are not among the 3 likeliest after some prefix, the first is id" in result.reasons[0]


@pytest.mark.parametrize(
    ("reported", "changes", "message"),
    [
        (Reported(num_logprobs=0), {}, "num_logprobs = 0: allowed 1 to 100"),
        (Reported(num_logprobs=3, cells=5), {}, r"cells = 5: allowed 2 to num_logprobs \+ 1 = 4"),
        (Reported(decimals=1), {}, "rounding may put the law off by 0.053, allowed is 0.1 of delta"),
        (Reported(mode="raw"), {"allowed_token_ids": None, "temperature": 0.7}, "ask with temperature = 1"),
        (Reported(mode="raw"), {"allowed_token_ids": None, "top_k": 20}, "with top_k below num_logprobs = 20"),
    ],
)
def test_what_cannot_be_known_is_refused_before_anything_is_sent(
    reported: Reported, changes: dict[str, Any], message: str
) -> None:
    class Unasked(OnlyGenerates):
        def generate(self, prompts: Any, params: Any, **options: Any) -> list[Completion]:
            raise AssertionError("nothing may be sent")

    with pytest.raises(InputError, match=message):
        check(Unasked(scripted()), reported, **changes)


def test_the_error_of_rounding_is_that_of_the_worst_law() -> None:
    """Half a unit up for one token and down for the other, at two even ones."""
    reported = Reported(decimals=2)
    weights = np.exp([math.log(0.5) + 0.005, math.log(0.5) - 0.005])
    assert abs(weights[0] / weights.sum() - 0.5) <= reported.error(1.0) == pytest.approx(0.005, rel=0.02)
    assert replace(reported, mode="raw").error(0.5) == pytest.approx(2 * reported.error(1.0), rel=0.02)
    assert Reported().error(1.0) == 0.0
