"""The model adds up, says where the speed-up goes, and its interval holds the truth as often as it says."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from draftproof.stats.cost_model import PairedRequest, Sums, predict
from draftproof.stats.other_k import RoundCount, trace

K, TOKENS, STEP, PASS, DRAFT, HOST = 4, 40, 40.0, 50.0, 3.0, 0.5


def request(
    name: str, acceptance: float, dice: random.Random, noise: float = 0.0, reading: float = 0.0
) -> PairedRequest:
    """A prompt whose drafts are accepted with one probability; each request has a pace of its own."""

    def about(ms: float) -> float:
        return ms * math.exp(noise * dice.gauss(0, 1))

    rounds: list[RoundCount] = []
    while (place := sum(item.emitted for item in rounds)) < TOKENS:
        drafted = min(K, TOKENS - place - 1)
        accepted = 0
        while accepted < drafted and dice.random() < acceptance:
            accepted += 1
        rounds.append(RoundCount(drafted, accepted, accepted + 1))
    drafting = [item.proposed for item in rounds if item.proposed]
    idle = len(rounds) - len(drafting)
    return PairedRequest(
        prompt_id=name,
        prefill=30.0,
        far_rate=1 + sum(item.accepted for item in rounds[:-2]) / len(rounds[:-2]),
        trace=trace(rounds, K, acceptance, cut=True),
        sums=Sums(
            prompt_tokens=20.0,
            plain_steps=TOKENS,
            plain_propose=0.0,
            plain_score=about(STEP * TOKENS),
            plain_host=HOST * TOKENS,
            first_rounds=1.0,
            first_drafted=drafting[0],
            first_propose=DRAFT * drafting[0] + reading * 20.0,
            later_rounds=len(drafting) - 1,
            later_drafted=sum(drafting[1:]),
            later_propose=DRAFT * sum(drafting[1:]),
            score=about(PASS * len(drafting)),
            idle_rounds=idle,
            idle_propose=0.0,
            idle_score=STEP * idle,
            quiet_rounds=idle,
            quiet_propose=0.0,
            host=HOST * len(rounds),
        ),
    )


def crowd(size: int, seed: int, noise: float) -> list[PairedRequest]:
    dice = random.Random(seed)
    return [request(f"p{number}", dice.betavariate(4, 2), dice, noise) for number in range(size)]


def spent(item: PairedRequest) -> tuple[float, float]:
    """Target-only and speculative time of a request, summed by hand."""
    sums = item.sums
    plain = sums.plain_propose + sums.plain_score + sums.plain_host
    rounds = sums.first_propose + sums.later_propose + sums.score + sums.idle_propose + sums.idle_score + sums.host
    return item.prefill + plain, item.prefill + rounds


@pytest.mark.parametrize("reading", [0.0, 1.5])
def test_with_constant_times_the_prediction_is_the_measured_speedup(reading: float) -> None:
    dice = random.Random(2)
    requests = [request(f"p{number}", 0.7, dice, reading=reading) for number in range(6)]
    found = predict(requests, [K], 0.95, seed=0)
    measured = math.exp(np.mean([math.log(before / after) for before, after in map(spent, requests)]))
    assert found.by_k[0].speedup.estimate == pytest.approx(measured, rel=1e-12)
    assert found.costs.plain == pytest.approx(STEP + HOST) and found.costs.score == pytest.approx(PASS)
    assert found.costs.propose_token == pytest.approx(DRAFT) and found.costs.propose_fixed == pytest.approx(0.0)
    assert found.costs.reading == pytest.approx(reading)
    assert found.costs.round(K) == pytest.approx(K * DRAFT + PASS + HOST)


def test_the_parts_multiply_to_the_prediction_and_each_is_what_it_says() -> None:
    found = predict(crowd(8, 3, 0.0), [K], 0.95, seed=0)
    assert found.ideal * math.prod(found.parts.values()) == pytest.approx(found.by_k[0].speedup.estimate)
    assert list(found.parts) == ["rounds near the end", "draft time", "wider passes", "host time", "prefill"]
    assert all(factor < 1 for name, factor in found.parts.items() if name not in ("rounds near the end", "host time"))
    # the host's time for a round is that of a step, so it neither helps nor hurts
    assert found.parts["host time"] == pytest.approx(1.0)
    assert found.by_k[0].speedup.estimate < found.without_drafting < found.ideal


def test_other_k_follow_the_acceptance_and_the_lines() -> None:
    dice = random.Random(5)
    requests = [request(f"p{number}", 0.8, dice) for number in range(400)]
    found = predict(requests, [1, 2, K, 6], 0.95, seed=0)
    # far from the end 1 + a + .. + a^k; a request of 40 tokens ends inside a round, which costs a few percent
    for row in found.by_k:
        k = row.num_speculative_tokens
        far = sum(0.8**power for power in range(k + 1))
        assert 0.93 * far < row.tokens_per_round < 1.01 * far, k
        # but for the last rounds, shorter
        assert row.ms_per_token == pytest.approx(
            (k * DRAFT + STEP + (PASS - STEP) * k / K + HOST) / row.tokens_per_round, rel=0.05
        )


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """
    200 studies of 10 prompts; the truth is the prediction from 3,000 prompts.

    A two-sided 95 % interval that is right fails this with probability below 0.001; one that held in 85 % with above 0.9.
    """
    truth = predict(crowd(3000, 1, 0.05), [K], 0.95, seed=0).by_k[0].speedup.estimate
    assert truth is not None
    held = 0
    for seed in range(200):
        limits = predict(crowd(10, 100 + seed, 0.05), [K], 0.95, seed=seed).by_k[0].speedup
        assert limits.low is not None and limits.high is not None
        held += limits.low <= truth <= limits.high
    assert binomtest(held, 200, 0.95).pvalue > 0.001, held


def test_one_prompt_has_no_interval() -> None:
    limits = predict([request("p", 0.7, random.Random(0))], [K], 0.95, seed=0).by_k[0].speedup
    assert limits.estimate is not None and limits.low is None and limits.high is None


def test_a_pass_that_was_faster_than_a_step_does_not_make_longer_drafts_free() -> None:
    dice = random.Random(4)
    item = request("p", 0.7, dice)
    lucky = replace(item, sums=replace(item.sums, score=item.sums.score / 5))
    rows = predict([lucky], [1, K, 4 * K], 0.95, seed=0).by_k
    assert [row.ms_per_token * row.tokens_per_round > PASS / 5 for row in rows] == [True] * 3
