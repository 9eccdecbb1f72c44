"""The toy plan tells the truth of what was generated, and its verdicts are right."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftproof.decoding.loop import roll_back
from draftproof.errors import InputError
from draftproof.request import SamplingParams
from draftproof.sampling.coupled import coupled
from draftproof.sampling.law import token_law
from draftproof.verify.controls import DEFECTS, LOSSLESS
from draftproof.verify.toy.laws import ACCEPTANCE, draft_logits, exact_law, kept, target_logits
from draftproof.verify.toy.models import TabulatedTarget
from draftproof.verify.toy.run import PROMPTS, ToyLog, ToyPlan, run_toy
from draftproof.verify.toy.verdict import judge_toy, places_of

SMALL = ToyPlan(sequences=200)


@pytest.mark.parametrize("size", [8, 16, 64])
def test_the_judges_law_is_the_engines(size: int) -> None:
    logits = target_logits(size)
    law = token_law(torch.from_numpy(logits), [SamplingParams(top_k=kept(size))] * size)
    np.testing.assert_allclose(exact_law(logits, kept(size)), law.numpy(), rtol=1e-12)


@pytest.mark.parametrize("nearness", ACCEPTANCE)
def test_a_draft_is_as_near_as_it_says(nearness) -> None:
    for size in (8, 16, 64):
        laws = [exact_law(logits, kept(size)) for logits in (target_logits(size), draft_logits(size, nearness))]
        assert np.minimum(*laws).sum(-1).mean() == pytest.approx(ACCEPTANCE[nearness], abs=1e-3)
        # some drafted tokens are forbidden to the target
        assert ((laws[0] == 0) & (laws[1] > 0)).any(-1).mean() > 0.2


@pytest.mark.parametrize("bad", [{"vocab_size": 9}, {"draft": "close"}])
def test_a_plan_without_a_table_is_refused(bad) -> None:
    with pytest.raises(InputError, match="allowed"):
        run_toy(replace(SMALL, **bad))


def test_what_a_slot_holds_decides_the_law_and_a_wrong_roll_back_shows() -> None:
    logits = target_logits(8)
    target = TabulatedTarget(logits, num_slots=2, max_len=16)
    target.prefill(0, [1, 2])
    target.fork(0, 1, 2)
    first = target.score({0: [3, 4, 5], 1: [6]})
    assert first.shape == (2, 3, 8)
    np.testing.assert_array_equal(first[0], logits[[2, 3, 4], [3, 4, 5]])
    np.testing.assert_array_equal(first[1, 0], logits[2, 6])
    assert target.row_len == [5, 3]
    roll_back(target, 0, 2)
    DEFECTS["one rejected token stays"].wrap(roll_back)(target, 1, 1)
    second = target.score({0: [7], 1: [7]})
    np.testing.assert_array_equal(second[:, 0], logits[[3, 6], [7, 7]])
    target.release(0)
    assert target.row_len[0] == 0


def test_with_the_coupled_rule_the_tokens_do_not_depend_on_the_draft() -> None:
    """So what the round takes back, and the columns it leaves, are right: each law is the one of the target alone."""

    def tokens(draft, alone=False) -> list[int]:
        def plant(parts):
            parts = replace(parts, accept=coupled)
            return LOSSLESS["target-only"].plant(parts) if alone else parts

        return run_toy(replace(SMALL, draft=draft), plant).token_ids.tolist()

    alone = tokens("near", alone=True)
    assert alone == tokens("near") == tokens("far")


@pytest.fixture(scope="module")
def log() -> ToyLog:
    return run_toy(SMALL)


def test_every_token_is_held_against_the_law_after_its_own_prefix(log: ToyLog) -> None:
    tokens = SMALL.tokens
    table = exact_law(target_logits(16), kept(16))
    for sequence in range(0, 200, 7):
        prefix = list(PROMPTS[sequence % len(PROMPTS)])
        for at in range(sequence * tokens, (sequence + 1) * tokens):
            assert log.sequences[at] == sequence and log.contexts[at] == prefix[-2] * 16 + prefix[-1]
            np.testing.assert_array_equal(log.laws[at], table[prefix[-2], prefix[-1]])
            prefix.append(int(log.token_ids[at]))


def test_the_drafts_law_stands_at_each_drafted_place_and_nowhere_else(log: ToyLog) -> None:
    table = exact_law(draft_logits(16, "mid"), kept(16)).reshape(-1, 16)
    drafted = log.offsets < log.num_proposed
    assert np.isnan(log.draft_laws[~drafted]).all() and not np.isnan(log.draft_laws[drafted]).any()
    # the draft's context is the committed one up to the place that was rejected, so it is known by the token's own prefix
    np.testing.assert_allclose(log.draft_laws[drafted], table[log.contexts[drafted]], rtol=1e-12)


def test_rounds_are_ragged_and_their_ends_are_told(log: ToyLog) -> None:
    starts = np.flatnonzero(log.offsets == 0)
    assert set(log.outcomes) == {"start", "rejected", "accepted"}
    lengths = np.diff([*starts, len(log.offsets)])
    assert set(lengths) == {1, 2, 3, 4, 5}
    for start, end, after in zip(starts, starts[1:], [log.outcomes[at] for at in starts[1:]], strict=False):
        if log.sequences[start] != log.sequences[end]:
            assert after == "start"
        else:
            assert after == ("accepted" if end - start == log.num_proposed[start] + 1 else "rejected")
    assert set(places_of(log)) == {"draft 1", "draft 2+", "bonus", "plain"}


def test_a_run_is_a_function_of_its_seed(log: ToyLog) -> None:
    again, other = run_toy(SMALL), run_toy(replace(SMALL, seed=1))
    assert again.token_ids.tolist() == log.token_ids.tolist() != other.token_ids.tolist()


# --- verdicts ---------------------------------------------------------------------------------------------------------

FOUND = [
    "always accept",
    "residual of absolute differences",
    "accept one place early",
    "most likely drafted",
    "rejected tokens stay",
    "dropped for its own probability",
]


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("name", FOUND)
def test_a_defect_fails(name: str, size: int) -> None:
    plan = ToyPlan(vocab_size=size, sequences=400)
    assert [judge_toy(run_toy(replace(plan, seed=seed), DEFECTS[name].plant)).outcome for seed in range(2)] == [
        "FAIL"
    ] * 2


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("name", LOSSLESS)
def test_what_is_right_is_not_blamed(name: str, size: int) -> None:
    """Each verdict is a false alarm with probability 1e-3 at most, so with other seeds this whole test with 3 % at most."""
    plan = ToyPlan(vocab_size=size, sequences=400)
    assert "FAIL" not in [
        judge_toy(run_toy(replace(plan, seed=seed), LOSSLESS[name].plant)).outcome for seed in range(2)
    ]


def test_the_correct_decoder_passes_where_its_draft_reaches_every_place() -> None:
    verdict = judge_toy(run_toy(ToyPlan(draft="near")))
    assert verdict.outcome == "PASS", verdict
    assert verdict.bounds["all"] < 0.02 and set(verdict.bounds) == {"all", "draft 1", "draft 2+", "bonus"}


def test_a_plan_that_does_not_reach_the_bonus_is_inconclusive() -> None:
    verdict = judge_toy(run_toy(ToyPlan(draft="far", sequences=400)))
    assert verdict.outcome == "INCONCLUSIVE" and verdict.bounds["bonus"] > 0.05
