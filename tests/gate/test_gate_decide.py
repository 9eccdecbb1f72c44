"""Every verdict, every row and every way a row can be unable to tell."""

from typing import Any

import pytest

from draftproof.evidence import (
    Acceptance,
    Arm,
    Arms,
    Comparison,
    ControlResult,
    Decision,
    Distribution,
    Effect,
    Equivalence,
    GreedyResult,
    HostNoise,
    Interval,
    Memory,
    Prediction,
    RoundCosts,
    SampledResult,
    Throughput,
)
from draftproof.gate.cost import OperatingCost
from draftproof.gate.decide import decide
from draftproof.gate.policy import Policy

UNKNOWN = Interval(estimate=None, low=None, high=None)
MIB = 2**20


def between(low: float, high: float, estimate: float | None = None) -> Interval:
    return Interval(estimate=(low + high) / 2 if estimate is None else estimate, low=low, high=high)


def make_arm(
    peak: int | None = 600 * MIB,
    accepted: float | None = 2.5,
    limits: Interval | None = None,
    on_gpu: int | None = None,
) -> Arm:
    times = Distribution(n=0, mean=None, p50=UNKNOWN, p95=UNKNOWN, p99=UNKNOWN)
    acceptance = Acceptance(
        rounds=10,
        drafted_rounds=10,
        proposed=50,
        accepted=25,
        corrections=9,
        bonuses=1,
        rate=0.5,
        accepted_per_round=accepted,
        emitted_per_round=3.5,
        by_position=[0.9, 0.8],
        by_position_conditional=[0.9, 0.9],
        emitted_histogram=[0, 1, 9],
        accepted_per_round_interval=limits,
    )
    return Arm(
        latency=times,
        ttft=times,
        itl=times,
        icl=times,
        tpot=times,
        throughput=Throughput(tokens=100, seconds=1.0, tokens_per_second=100.0, tokens_per_minute=6000.0),
        memory=Memory(weights=500 * MIB, caches=50 * MIB, peak_rss=peak, peak=on_gpu, on_gpu=on_gpu is not None),
        acceptance=acceptance,
        time_split_ms={},
    )


def make_arms(speculative: Arm | None) -> Arms:
    return Arms(target_only=make_arm(), speculative=speculative)


def make_greedy(**changes: Any) -> GreedyResult:
    values: dict[str, Any] = {
        "outcome": "PASS",
        "prompts": 20,
        "identical": 20,
        "tokens": 640,
        "divergences": [],
        "repeatability_prompts": 4,
        "repeatability_identical": 4,
        "how": "same batch",
    }
    return GreedyResult(**(values | changes))


def make_sampled(outcome: str = "PASS") -> SampledResult:
    values: dict[str, Any] = {
        "outcome": outcome,
        "configuration": {},
        "sequences": 100,
        "tokens": 3200,
        "tv_estimate": 0.01,
        "tv_upper_bound": 0.02,
        "delta": 0.05,
        "p_value": 0.4,
        "alpha_fail": 0.001,
        "alpha_eq": 0.05,
        "strata": [],
        "reasons": [],
        "tv_by_n": [],
    }
    return SampledResult(**values)


def make_control(behaved: bool = True, name: str = "greedy as sampled") -> ControlResult:
    return ControlResult(name=name, kind="defect", flagged=behaved, behaved=behaved, detail="")


def make_equivalence(**changes: Any) -> Equivalence:
    values: dict[str, Any] = {
        "greedy": make_greedy(),
        "sampled": make_sampled(),
        "controls": [make_control()],
        "claim": "bitwise_same_batch",
        "claim_basis": "self-test",
    }
    return Equivalence(**(values | changes))


def make_effect(**changes: Any) -> Effect:
    values: dict[str, Any] = {
        "n": 20,
        "speedup": between(1.4, 1.6),
        "latency_ratio_p95": 0.7,
        "latency_ratio_p95_interval": between(0.6, 0.8),
        "icl_ratio": between(0.8, 0.9),
        "itl_ratio": between(0.6, 0.7),
        "aa": between(0.98, 1.02),
        "method": "paired",
    }
    return Effect(**(values | changes))


def make_comparison(overall: Effect | None = None, **changes: Any) -> Comparison:
    values: dict[str, Any] = {
        "overall": overall or make_effect(),
        "total_time_ratio": 1.5,
        "memory_ratio": 1.1,
        "by_category": {},
        "by_concurrency": {},
    }
    return Comparison(**(values | changes))


def make_prediction(**changes: Any) -> Prediction:
    """A draft that would give 1.5x for nothing, and gives 0.85x for what it takes."""
    costs = RoundCosts(plain_step=16.0, idle_round=16.0, drafting_round=48.0, draft=31.0, score=17.0, host=0.0)
    values: dict[str, Any] = {
        "num_speculative_tokens": 4,
        "predicted": between(0.7, 1.0),
        "measured": between(0.7, 1.0),
        "measured_over_predicted": 1.0,
        "by_k": [],
        "best": None,
        "ideal": 2.0,
        "parts": {"draft time": 0.5, "not explained": 1.0},
        "without_drafting": 1.5,
        "costs_ms": costs,
        "accepted_per_round": 2.1,
        "acceptance": 0.72,
        "break_even": 0.83,
    }
    return Prediction(**(values | changes))


def slow(**changes: Any) -> dict[str, Any]:
    """A speed-up that misses, and what the cost model says of it."""
    overall = make_effect(speedup=between(0.7, 1.0))
    return {"comparison": make_comparison(overall, prediction={"1": make_prediction(**changes)})}


def decided(policy: Policy | None = None, **changes: Any) -> Decision:
    values: dict[str, Any] = {
        "arms": make_arms(make_arm()),
        "equivalence": make_equivalence(),
        "comparison": make_comparison(),
        "policy": policy or Policy(),
    }
    return decide(**(values | changes))


def effect(**changes: Any) -> dict[str, Any]:
    return {"comparison": make_comparison(make_effect(**changes))}


def equivalence(**changes: Any) -> dict[str, Any]:
    return {"equivalence": make_equivalence(**changes)}


COST = OperatingCost(gpu_hours_per_month=300, gpu_hour_worth=2.0, build_per_month=100, monitor_per_month=50, unit="EUR")
EVERY = Policy(
    max_p95_latency_ratio=1.0,
    max_icl_ratio=1.0,
    max_peak_memory_bytes=1000 * MIB,
    min_accepted_per_round=1.0,
    cost=COST,
)
CHEAP = Policy(cost=OperatingCost(gpu_hours_per_month=300, gpu_hour_worth=2.0))
BITWISE = Policy(min_claim="bitwise")
TIES = Policy(min_claim="up_to_ties")
NOT_SAMPLED = Policy(require_sampled=False)

ACCEPTED = ((0.5, 0.9), (1.0, 1.5), (0.8, 1.5))

CASES: list[tuple[str, Policy, dict[str, Any], str, str]] = [
    # row, policy, what differs from a good run, verdict, part of the reason
    ("greedy output", EVERY, {}, "ADOPT", "1.500x"),
    ("greedy output", EVERY, equivalence(greedy=make_greedy(outcome="FAIL", identical=19)), "ROLL_BACK", "19 of 20"),
    ("greedy output", EVERY, equivalence(greedy=make_greedy(outcome="INCONCLUSIVE")), "INCONCLUSIVE", "inconclusive"),
    ("greedy output", EVERY, equivalence(greedy=None), "INCONCLUSIVE", "not compared"),
    ("greedy output", EVERY, equivalence(claim="up_to_ties"), "ROLL_BACK", "weaker than bitwise_same_batch"),
    ("greedy output", EVERY, equivalence(claim="none"), "ROLL_BACK", "claim none"),
    ("greedy output", EVERY, equivalence(claim="bitwise"), "ADOPT", "speed-up"),
    ("greedy output", BITWISE, {}, "ROLL_BACK", "weaker than bitwise."),
    ("greedy output", TIES, equivalence(claim="up_to_ties"), "ADOPT", "speed-up"),
    (
        "greedy output",
        TIES,
        equivalence(greedy=make_greedy(outcome="INCONCLUSIVE"), claim="lossy"),
        "ROLL_BACK",
        "claim lossy",
    ),
    ("repeatability", EVERY, equivalence(greedy=make_greedy(repeatability_identical=3)), "ROLL_BACK", "3 of 4"),
    (
        "repeatability",
        EVERY,
        equivalence(greedy=make_greedy(repeatability_prompts=0, repeatability_identical=0)),
        "INCONCLUSIVE",
        "run twice",
    ),
    ("sampled law", EVERY, equivalence(sampled=make_sampled("FAIL")), "ROLL_BACK", "0.05 allowed"),
    ("sampled law", EVERY, equivalence(sampled=make_sampled("INCONCLUSIVE")), "INCONCLUSIVE", "3200 tokens"),
    ("sampled law", EVERY, equivalence(sampled=None), "INCONCLUSIVE", "policy requires it"),
    ("sampled law", NOT_SAMPLED, equivalence(sampled=make_sampled("INCONCLUSIVE")), "ADOPT", "speed-up"),
    ("sampled law", NOT_SAMPLED, equivalence(sampled=make_sampled("FAIL")), "ROLL_BACK", "does not follow"),
    ("controls", EVERY, equivalence(controls=[make_control(), make_control(False, "b")]), "INCONCLUSIVE", "not b"),
    ("controls", EVERY, equivalence(controls=[]), "INCONCLUSIVE", "No control"),
    ("peak memory", EVERY, {"arms": make_arms(make_arm(peak=1001 * MIB))}, "ROLL_BACK", "1001.0 MiB"),
    ("peak memory", EVERY, {"arms": make_arms(make_arm(peak=1000 * MIB))}, "ADOPT", "speed-up"),
    ("peak memory", EVERY, {"arms": make_arms(make_arm(peak=None))}, "INCONCLUSIVE", "not measured"),
    ("peak memory", EVERY, {"arms": make_arms(None)}, "INCONCLUSIVE", "not measured"),
    ("peak memory", EVERY, {"arms": make_arms(make_arm(9 * MIB, on_gpu=2000 * MIB))}, "ROLL_BACK", "2000.0 MiB"),
    ("peak memory", EVERY, {"arms": make_arms(make_arm(2000 * MIB, on_gpu=9 * MIB))}, "ADOPT", "speed-up"),
    ("speed-up", EVERY, slow(), "KEEP_TARGET_ONLY", "drafting takes 31 of its 48 ms"),
    ("speed-up", EVERY, slow(), "KEEP_TARGET_ONLY", "accepts 2.1 tokens"),
    ("speed-up", EVERY, slow(), "KEEP_TARGET_ONLY", "break-even needs acceptance 0.83"),
    ("speed-up", EVERY, slow(break_even=None), "KEEP_TARGET_ONLY", "at these costs no acceptance breaks even"),
    ("speed-up", EVERY, slow(without_drafting=1.0), "KEEP_TARGET_ONLY", "below 1.050x."),
    ("noise", EVERY, effect(aa=between(0.9, 1.3)), "INCONCLUSIVE", "too noisy"),
    ("noise", EVERY, effect(aa=between(0.7, 1.0)), "INCONCLUSIVE", "too noisy"),
    ("noise", EVERY, effect(aa=UNKNOWN), "INCONCLUSIVE", "noise is unknown"),
    ("speed-up", Policy(), effect(speedup=between(1.05, 1.2)), "ADOPT", "speed-up"),
    ("speed-up", EVERY, effect(speedup=between(0.8, 0.9)), "KEEP_TARGET_ONLY", "0.850x"),
    ("speed-up", EVERY, effect(speedup=between(0.9, 1.04)), "KEEP_TARGET_ONLY", "below 1.050x"),
    ("speed-up", EVERY, effect(speedup=between(0.9, 1.1)), "INCONCLUSIVE", "too few prompts"),
    ("speed-up", EVERY, effect(speedup=between(1.0, 1.3)), "INCONCLUSIVE", "too few prompts"),
    ("speed-up", EVERY, effect(speedup=UNKNOWN, n=2), "INCONCLUSIVE", "2 prompts"),
    ("speed-up", EVERY, effect(speedup=Interval(estimate=1.5, low=None, high=None)), "INCONCLUSIVE", "estimated"),
    ("speed-up", EVERY, effect(speedup=between(float("nan"), 2.0, 1.5)), "INCONCLUSIVE", "estimated"),
    ("time per token", EVERY, effect(itl_ratio=between(0.9, 1.0)), "ADOPT", "speed-up"),
    ("time per token", EVERY, effect(itl_ratio=between(1.1, 1.2)), "KEEP_TARGET_ONLY", "1.150x"),
    ("time per token", EVERY, effect(itl_ratio=between(0.9, 1.2)), "INCONCLUSIVE", "both sides"),
    ("time per token", EVERY, effect(itl_ratio=UNKNOWN), "INCONCLUSIVE", "time per token has no ratio"),
    ("time between chunks", EVERY, effect(icl_ratio=between(1.1, 1.3)), "KEEP_TARGET_ONLY", "between chunks is 1.200x"),
    ("time between chunks", EVERY, effect(icl_ratio=between(0.9, 1.2)), "INCONCLUSIVE", "both sides"),
    ("time between chunks", EVERY, effect(icl_ratio=None), "INCONCLUSIVE", "no ratio"),
    (
        "p95 latency",
        EVERY,
        effect(latency_ratio_p95_interval=between(1.1, 1.3)),
        "KEEP_TARGET_ONLY",
        "p95 latency is 1.200x",
    ),
    ("p95 latency", EVERY, effect(latency_ratio_p95_interval=between(0.9, 1.3)), "INCONCLUSIVE", "both sides"),
    ("p95 latency", EVERY, effect(latency_ratio_p95_interval=UNKNOWN), "INCONCLUSIVE", "p95 latency has no ratio"),
    ("memory", EVERY, {"comparison": make_comparison(memory_ratio=1.6)}, "KEEP_TARGET_ONLY", "1.600x"),
    ("memory", EVERY, {"comparison": make_comparison(memory_ratio=None)}, "INCONCLUSIVE", "no ratio"),
    ("accepted per round", EVERY, {"arms": make_arms(make_arm(accepted=0.5))}, "KEEP_TARGET_ONLY", "0.50 tokens"),
    ("accepted per round", EVERY, {"arms": make_arms(make_arm(accepted=None))}, "INCONCLUSIVE", "unknown"),
    *(
        (
            "accepted per round",
            EVERY,
            {"arms": make_arms(make_arm(accepted=sum(ends) / 2, limits=between(*ends)))},
            *expected,
        )
        for ends, expected in zip(
            ACCEPTED,
            (("KEEP_TARGET_ONLY", "0.500 to 0.900"), ("ADOPT", "speed-up"), ("INCONCLUSIVE", "both sides of 1.00")),
            strict=True,
        )
    ),
    # 300 hours worth 2 EUR each, of which 1 - 1 / speed-up are saved, against 150 EUR
    ("operating cost", EVERY, effect(speedup=between(4 / 3, 2.0, 1.5)), "ADOPT", "speed-up"),
    ("operating cost", EVERY, effect(speedup=between(1.1, 1.2)), "KEEP_TARGET_ONLY", "it does not pay"),
    ("operating cost", EVERY, effect(speedup=between(1.2, 2.0, 1.5)), "INCONCLUSIVE", "200.00 EUR a month"),
    ("operating cost", EVERY, effect(speedup=UNKNOWN), "INCONCLUSIVE", "What speculation saves is unknown"),
    ("operating cost", EVERY, {"comparison": make_comparison(load="open")}, "INCONCLUSIVE", "closed loop"),
    ("operating cost", CHEAP, effect(speedup=between(1.06, 1.2)), "ADOPT", "speed-up"),
]


@pytest.mark.parametrize(("row", "policy", "changes", "verdict", "reason"), CASES)
def test_one_row_at_a_time(row: str, policy: Policy, changes: dict[str, Any], verdict: str, reason: str) -> None:
    decision = decided(policy, **changes)
    assert decision.verdict == verdict
    assert any(reason in sentence for sentence in decision.reasons), decision.reasons
    criterion = next(criterion for criterion in decision.matrix if criterion.name == row)
    assert criterion.consequence == verdict
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in decision.reasons)


# A/A from 0.8 to 1.2: what lies between the arms may have moved a ratio by half of 1 / 0.8, which is 1.118
LOUD: dict[str, Any] = {"aa": between(0.8, 1.2)}


@pytest.mark.parametrize(
    ("row", "policy", "changes", "verdict"),
    [
        pytest.param("speed-up", Policy(), {"speedup": between(1.10, 1.20)}, "INCONCLUSIVE", id="pass-within-noise"),
        pytest.param("speed-up", Policy(), {"speedup": between(1.17, 1.20)}, "ADOPT", id="pass-beyond-it"),
        pytest.param("speed-up", Policy(), {"speedup": between(0.93, 1.00)}, "INCONCLUSIVE", id="miss-within-noise"),
        pytest.param("speed-up", Policy(), {"speedup": between(0.88, 0.92)}, "KEEP_TARGET_ONLY", id="miss-beyond-it"),
        pytest.param("speed-up", Policy(), {"speedup": between(1.02, 1.12)}, "INCONCLUSIVE", id="across-within-noise"),
        pytest.param("time per token", Policy(), {"itl_ratio": between(0.90, 0.95)}, "INCONCLUSIVE", id="per-token"),
        pytest.param("time per token", Policy(), {"itl_ratio": between(0.84, 0.90)}, "ADOPT", id="per-token-beyond-it"),
        pytest.param("operating cost", CHEAP, {"speedup": between(1.06, 1.11)}, "INCONCLUSIVE", id="cost-from-1.0"),
    ],
)
def test_a_run_too_noisy_for_a_threshold_tells_nothing_about_it(
    row: str, policy: Policy, changes: dict[str, Any], verdict: str
) -> None:
    noise = HostNoise(blocks=9, num_cores=2, figures={}, advice=["other processes ran: stop them"])
    comparison = make_comparison(make_effect(**(LOUD | changes))).model_copy(update={"noise": noise})
    decision = decided(policy, comparison=comparison)
    found = {item.name: item for item in decision.matrix}
    assert found["noise"].result == "pass" and found[row].consequence == verdict
    if verdict == "INCONCLUSIVE":
        reason = next(line for line in decision.reasons if "Too noisy to tell" in line)
        assert "95% interval 0.800 to 1.200" in reason and reason.endswith("stop them; then run again.")


def test_a_group_is_as_noisy_as_its_own_prompts() -> None:
    quiet, loud = make_effect(speedup=between(1.10, 1.20)), make_effect(speedup=between(1.10, 1.20), **LOUD)
    decision = decided(comparison=make_comparison(by_category={"quiet": quiet, "loud": loud}))
    assert decision.by_category == {"quiet": "ADOPT", "loud": "INCONCLUSIVE"}


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        # log(1.155 / 1.05) is the margin, log(1.155 / 1.0) the reach: 20 prompts times 2.285
        ((1.0, 1.334, 1.155), "about 46 would, if the estimate stays."),
        ((0.8, 1.378, 1.05), "too close for many times as many."),
        ((0.7, 1.577, 1.0511), "too close for many times as many."),
    ],
)
def test_an_open_question_says_how_many_prompts_would_settle_it(ends: tuple[float, float, float], said: str) -> None:
    (reason,) = decided(**effect(speedup=between(*ends), aa=between(1.0, 1.0))).reasons
    assert reason.endswith(said)


def test_a_speed_up_pays_from_a_known_one_on() -> None:
    assert COST.break_even_speedup == pytest.approx(4 / 3)
    assert COST.saved(4 / 3) == pytest.approx(COST.total)
    dear = OperatingCost(gpu_hours_per_month=1, gpu_hour_worth=1.0, build_per_month=2)
    assert dear.break_even_speedup is None
    row = decided(Policy(cost=dear)).matrix[-1]
    assert (row.name, row.consequence) == ("operating cost", "KEEP_TARGET_ONLY")


def test_the_rows_keep_their_order() -> None:
    assert [row.name for row in decided(EVERY).matrix] == [
        "greedy output",
        "repeatability",
        "sampled law",
        "controls",
        "peak memory",
        "noise",
        "speed-up",
        "time per token",
        "time between chunks",
        "p95 latency",
        "memory",
        "accepted per round",
        "operating cost",
    ]


def test_the_cost_row_shows_worth_interval_and_cost() -> None:
    row = decided(EVERY, **effect(speedup=between(4 / 3, 2.0, 1.5))).matrix[-1]
    assert (row.threshold, row.measured) == ("saves at least its 150.00 EUR a month", "200.00 EUR a month")
    assert row.interval == "95% interval 150.00 to 300.00"


def test_a_slow_down_costs_hours_instead_of_saving_them() -> None:
    assert COST.saved(0.5) == -600.0 and COST.saved(1.0) == 0.0


def test_a_threshold_that_is_not_asked_for_has_no_row() -> None:
    policy = Policy(max_itl_ratio=None, max_memory_ratio=None, require_sampled=False)
    decision = decided(policy, equivalence=make_equivalence(sampled=None, controls=[]))
    assert [row.name for row in decision.matrix] == ["greedy output", "repeatability", "noise", "speed-up"]
    assert decision.verdict == "ADOPT"


def test_nothing_measured_is_inconclusive_and_never_zero() -> None:
    decision = decided(EVERY, arms=None, equivalence=None, comparison=None)
    assert decision.verdict == "INCONCLUSIVE"
    assert {(row.measured, row.result) for row in decision.matrix} == {("not measured", "not estimable")}
    assert decision.by_category == decision.by_concurrency == {}


def test_the_gravest_row_decides_and_only_its_like_give_reasons() -> None:
    slow_and_noisy = make_comparison(make_effect(speedup=between(0.8, 0.9), aa=between(0.7, 1.3)))
    bad = make_equivalence(greedy=make_greedy(outcome="FAIL", identical=3))
    rolled_back = decided(equivalence=bad, comparison=slow_and_noisy)
    assert rolled_back.verdict == "ROLL_BACK"
    assert len(rolled_back.reasons) == 1 and "3 of 20" in rolled_back.reasons[0]
    noisy = decided(comparison=slow_and_noisy)
    assert noisy.verdict == "INCONCLUSIVE"
    assert "too noisy" in noisy.reasons[0]
    assert noisy.reasons[1:] == [
        "Missed besides: The speed-up is 0.850x (95% interval 0.800 to 0.900, 20 prompts), below 1.050x."
    ]


def noisy_reason(noise: HostNoise | None) -> str:
    comparison = make_comparison(make_effect(aa=between(0.5, 2.0))).model_copy(update={"noise": noise})
    (reason,) = decided(comparison=comparison).reasons
    return reason


def test_a_noisy_run_names_the_likeliest_cause_and_what_to_do() -> None:
    noise = HostNoise(blocks=9, num_cores=2, figures={}, advice=["other processes ran: stop them", "it swapped"])
    reason = noisy_reason(noise)
    assert reason.endswith("Most likely cause: other processes ran: stop them; then run again.")
    assert "swapped" not in reason
    for unexplained in (None, noise.model_copy(update={"advice": []})):
        assert "Nothing that was recorded of the host explains it" in noisy_reason(unexplained)
        assert "repeats" in noisy_reason(unexplained)


def test_what_the_host_did_changes_no_verdict() -> None:
    noise = HostNoise(blocks=9, num_cores=2, figures={}, advice=["other processes ran: stop them"])
    quiet = make_comparison(make_effect())
    assert decided(comparison=quiet.model_copy(update={"noise": noise})) == decided(comparison=quiet)


def test_every_row_that_drove_the_verdict_gives_a_reason() -> None:
    decision = decided(comparison=make_comparison(make_effect(speedup=between(0.8, 0.9)), memory_ratio=2.0))
    assert decision.verdict == "KEEP_TARGET_ONLY"
    assert len(decision.reasons) == 2


def test_an_early_stop_is_inconclusive_and_named_first() -> None:
    decision = decided(stopped="not enough memory for the draft", arms=None, comparison=None)
    assert decision.verdict == "INCONCLUSIVE"
    assert decision.reasons == ["The study stopped early: not enough memory for the draft."]


def test_an_early_stop_does_not_hide_a_roll_back() -> None:
    bad = make_equivalence(greedy=make_greedy(outcome="FAIL", identical=3))
    decision = decided(stopped="greedy output differs", equivalence=bad, comparison=None)
    assert decision.verdict == "ROLL_BACK"


def test_an_early_stop_is_never_adopted() -> None:
    comparison = make_comparison(by_category={"code": make_effect()})
    decision = decided(stopped="interrupted", comparison=comparison)
    assert (decision.verdict, decision.by_category) == ("INCONCLUSIVE", {"code": "INCONCLUSIVE"})


def test_yes_for_code_and_no_for_chat() -> None:
    groups = {
        "code": make_effect(speedup=between(1.8, 2.2)),
        "chat": make_effect(speedup=between(0.8, 0.95)),
        "summary": make_effect(speedup=between(1.0, 1.4)),
        "one prompt": make_effect(speedup=UNKNOWN, n=1),
    }
    concurrency = {"1": make_effect(), "8": make_effect(speedup=between(0.7, 0.8))}
    decision = decided(comparison=make_comparison(by_category=groups, by_concurrency=concurrency))
    assert decision.verdict == "ADOPT"
    assert decision.by_category == {
        "code": "ADOPT",
        "chat": "KEEP_TARGET_ONLY",
        "summary": "INCONCLUSIVE",
        "one prompt": "INCONCLUSIVE",
    }
    assert decision.by_concurrency == {"1": "ADOPT", "8": "KEEP_TARGET_ONLY"}


def test_yes_for_copying_at_one_and_no_for_prose_at_eight() -> None:
    fast, slow, open_ = (make_effect(speedup=between(*ends)) for ends in ((1.8, 2.2), (0.5, 0.6), (0.9, 1.3)))
    cells = {"copying": {"1": fast, "8": open_}, "prose": {"1": open_, "8": slow}}
    assert decided(comparison=make_comparison(by_cell=cells)).by_cell == {
        "copying": {"1": "ADOPT", "8": "INCONCLUSIVE"},
        "prose": {"1": "INCONCLUSIVE", "8": "KEEP_TARGET_ONLY"},
    }


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        (equivalence(greedy=make_greedy(outcome="FAIL")), "ROLL_BACK"),
        (equivalence(controls=[make_control(False)]), "INCONCLUSIVE"),
        ({"arms": make_arms(make_arm(peak=2000 * MIB))}, "ROLL_BACK"),
    ],
)
def test_no_group_is_better_than_the_runs_equivalence(changes: dict[str, Any], verdict: str) -> None:
    comparison = make_comparison(by_category={"code": make_effect()})
    assert decided(EVERY, comparison=comparison, **changes).by_category == {"code": verdict}


def test_a_slow_whole_does_not_forbid_a_fast_group() -> None:
    comparison = make_comparison(make_effect(speedup=between(0.8, 0.9)), by_category={"code": make_effect()})
    decision = decided(comparison=comparison)
    assert (decision.verdict, decision.by_category) == ("KEEP_TARGET_ONLY", {"code": "ADOPT"})


@pytest.mark.parametrize("changes", [case[2] for case in CASES[:6]])
def test_the_same_input_gives_the_same_output_and_stays_as_it_was(changes: dict[str, Any]) -> None:
    parts: dict[str, Any] = {
        "arms": make_arms(make_arm()),
        "equivalence": make_equivalence(),
        "comparison": make_comparison(),
    } | changes
    before = {name: part.model_dump_json() for name, part in parts.items()}
    assert decided(EVERY, **parts) == decided(EVERY, **parts)
    assert {name: part.model_dump_json() for name, part in parts.items()} == before


def test_an_unregistered_policy_is_marked() -> None:
    assert decided().registered
    assert not decided(registered=False).registered


def test_the_interval_is_labelled_with_the_policys_confidence() -> None:
    row = next(row for row in decided(Policy(confidence=0.9)).matrix if row.name == "speed-up")
    assert row.interval == "90% interval 1.400 to 1.600"


def test_a_draft_that_would_be_too_slow_for_nothing_is_not_blamed() -> None:
    (reason,) = decided(**slow(without_drafting=1.0)).reasons
    assert "draft" not in reason
    (reason,) = decided(**slow(predicted=UNKNOWN)).reasons
    assert "draft" not in reason
