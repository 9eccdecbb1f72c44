"""Evidence made by hand for the report tests."""

from typing import Any

from draftproof.evidence import (
    Acceptance,
    Arm,
    Arms,
    Comparison,
    ControlResult,
    Criterion,
    Decision,
    Distribution,
    Divergence,
    Effect,
    Equivalence,
    Evidence,
    GreedyResult,
    GreedyTriage,
    Interval,
    Memory,
    PredictedSpeedup,
    Prediction,
    RoundCosts,
    SampledResult,
    Study,
    Throughput,
)

HOSTILE = '<script>alert("x")</script>[red]$\\frac$\x1b[31m'
UNKNOWN = Interval(estimate=None, low=None, high=None)


def between(low: float, high: float) -> Interval:
    return Interval(estimate=(low + high) / 2, low=low, high=high)


def times(middle: float) -> Distribution:
    return Distribution(
        n=24, mean=middle, p50=between(middle - 3, middle + 3), p95=between(middle, middle * 2), p99=UNKNOWN
    )


def make_acceptance() -> Acceptance:
    return Acceptance(
        rounds=300,
        drafted_rounds=260,
        proposed=1000,
        accepted=619,
        corrections=180,
        bonuses=80,
        rate=0.619,
        accepted_per_round=2.381,
        emitted_per_round=3.063,
        by_position=[0.81, 0.62, 0.44, None],
        by_position_conditional=[0.81, 0.765, 0.71, None],
        emitted_histogram=[0, 90, 60, 50, 40, 60],
        accepted_per_round_interval=Interval(estimate=2.381, low=2.1, high=2.7),
        emitted_per_round_interval=Interval(estimate=3.063, low=2.8, high=3.3),
    )


def make_arm(middle: float, speculative: bool) -> Arm:
    return Arm(
        latency=times(middle),
        ttft=times(middle / 10),
        itl=times(middle / 40),
        icl=times(middle / 30),
        tpot=times(middle / 41),
        throughput=Throughput(tokens=919, seconds=30.6, tokens_per_second=30.03, tokens_per_minute=1801.8),
        memory=Memory(weights=538 * 2**20, caches=40 * 2**20, peak_rss=None),
        acceptance=make_acceptance() if speculative else None,
        time_split_ms={"target": 2000.0, "proposer": 400.0} if speculative else {},
    )


def effect(low: float, high: float) -> Effect:
    return Effect(
        n=24,
        speedup=between(low, high),
        latency_ratio_p95=None,
        itl_ratio=between(0.6, 0.7),
        aa=between(0.98, 1.02),
        method="paired bootstrap over prompts",
    )


def make_arms() -> Arms:
    return Arms(target_only=make_arm(400.0, False), speculative=make_arm(250.0, True))


def make_prediction(**changes: Any) -> Prediction:
    rows = [
        PredictedSpeedup(
            num_speculative_tokens=k,
            tokens_per_round=1 + k / 2,
            ms_per_token=20.0 - k,
            speedup=between(1 + k / 10, 1.2 + k / 10),
            extrapolated=k > 3,
        )
        for k in range(1, 5)
    ]
    values: dict[str, Any] = {
        "num_speculative_tokens": 3,
        "predicted": between(1.3, 1.5),
        "measured": between(1.4, 1.6),
        "measured_over_predicted": 1.0714,
        "by_k": rows,
        "best": 4,
        "ideal": 2.5,
        "parts": {"draft time": 0.58, "wider passes": 0.966, "not explained": 1.0714},
        "without_drafting": 2.4,
        "costs_ms": RoundCosts(plain_step=41.0, idle_round=41.5, drafting_round=78.0, draft=33.0, score=44.5, host=0.5),
        "accepted_per_round": 1.5,
        "acceptance": 0.63,
        "break_even": 0.52,
    }
    return Prediction(**(values | changes))


def make_comparison(name: str) -> Comparison:
    return Comparison(
        overall=effect(1.4, 1.6),
        total_time_ratio=1.52,
        memory_ratio=None,
        by_category={name: effect(1.1, 1.9), "chat": effect(0.8, 1.0).model_copy(update={"speedup": UNKNOWN})},
        by_concurrency={"1": effect(1.4, 1.6)},
        prediction={"1": make_prediction()},
    )


def make_greedy(**changes: Any) -> GreedyResult:
    values: dict[str, Any] = {
        "outcome": "PASS",
        "prompts": 24,
        "identical": 24,
        "tokens": 919,
        "divergences": [],
        "repeatability_prompts": 3,
        "repeatability_identical": 3,
        "how": "token ids of both arms compared",
    }
    return GreedyResult(**(values | changes))


def make_triage(worst: Divergence) -> GreedyTriage:
    return GreedyTriage(
        tau=0.25,
        noise=0.0625,
        ulp_floor=0.25,
        cap=0.5,
        noise_positions=512,
        target_flips=3,
        compared=900,
        ties=1,
        tie_rate=1 / 900,
        target_flip_rate=3 / 512,
        rate_p_value=0.9,
        controlled=1,
        gap_histogram=[(0.0, 0), (0.0625, 0), (0.125, 1), (0.25, 0), (0.5, 0), (None, 0)],
        worst=worst,
        reasons=["1 not explained by the passes that were run"],
    )


def make_sampled(**changes: Any) -> SampledResult:
    values: dict[str, Any] = {
        "outcome": "PASS",
        "configuration": {"temperature": 1.0, "words": [" red", " blue"]},
        "sequences": 4000,
        "tokens": 32000,
        "tv_estimate": 0.0041,
        "tv_upper_bound": 0.0167,
        "delta": 0.02,
        "p_value": 0.4321,
        "alpha_fail": 0.001,
        "alpha_eq": 0.05,
        "strata": [{"name": "after a rejection", "tokens": 9000, "upper": 0.025}, {"name": "bonus", "note": None}],
        "reasons": ["every stratum is within its bound"],
        "tv_by_n": [(8000, 0.008, 0.033), (16000, 0.006, 0.024), (32000, 0.0041, 0.0167)],
    }
    return SampledResult(**(values | changes))


def full(name: str = "a study") -> Evidence:
    """Everything was measured; one criterion misses and one is not estimable. ``name`` is put wherever text goes."""
    divergence = Divergence(
        prompt_id=name,
        category=name,
        position=7,
        target_only_token=11,
        speculative_token=None,
        regret=None,
        note=name,
        kind="TIE",
        cause=name,
        gap=0.125,
        tau=0.25,
        explained=False,
    )
    return Evidence(
        draftproof_version="0.1.0",
        study=Study(
            name=name,
            hash="ab" * 32,
            locked_at="2026-11-30T06:00:00Z",
            plan={"name": name, "policy": {"min_speedup": 1.05}},
        ),
        environment={"cpu": {"model": name, "cores": 4}, "torch": "2.13.0"},
        check=[{"code": "W1", "message": name}],
        arms=make_arms(),
        equivalence=Equivalence(
            greedy=make_greedy(
                identical=23, outcome="INCONCLUSIVE", divergences=[divergence], triage=make_triage(divergence)
            ),
            sampled=make_sampled(),
            controls=[
                ControlResult(name="accept too much", kind="defect", flagged=True, behaved=True, detail="found"),
                ControlResult(name=name, kind="lossless", flagged=True, behaved=False, detail=name),
            ],
            claim="bitwise_same_batch",
            claim_basis=name,
        ),
        comparison=make_comparison(name),
        decision=Decision(
            verdict="KEEP_TARGET_ONLY",
            reasons=[f"because {name}"],
            matrix=[
                row("speed-up", "pass", "ADOPT", "1.500x", "95% interval 1.400 to 1.600"),
                row("memory", "miss", "KEEP_TARGET_ONLY", "1.712x", None),
                row(name, "not estimable", "INCONCLUSIVE", "not measured", None),
            ],
            by_category={name: "ADOPT", "chat": "INCONCLUSIVE"},
            by_concurrency={"1": "ADOPT"},
            registered=False,
        ),
        limits=[f"no limit but {name}"],
    )


def several_loads() -> Evidence:
    """`full`, with two categories at two loads; the verdicts differ from cell to cell."""
    evidence = full()
    assert evidence.comparison is not None
    cells = {"copying": {"1": effect(1.4, 1.6)}, "prose": {"8": effect(0.8, 1.0)}}
    decision = evidence.decision.model_copy(
        update={
            "by_concurrency": {"1": "ADOPT", "8": "KEEP_TARGET_ONLY"},
            "by_cell": {
                "copying": {"1": "ADOPT", "8": "INCONCLUSIVE"},
                "prose": {"1": "ROLL_BACK", "8": "KEEP_TARGET_ONLY"},
            },
        }
    )
    comparison = evidence.comparison.model_copy(update={"by_cell": cells})
    return evidence.model_copy(update={"decision": decision, "comparison": comparison})


def row(name: str, result: Any, consequence: Any, measured: str, interval: str | None) -> Criterion:
    return Criterion(
        name=name,
        threshold="at least 1.050x",
        measured=measured,
        interval=interval,
        result=result,
        consequence=consequence,
    )


def partial() -> Evidence:
    """A study that stopped before it measured anything."""
    return Evidence(
        draftproof_version="0.1.0",
        study=Study(name="stopped", hash="cd" * 32, locked_at="2026-11-30T06:00:00Z", plan={}),
        environment={},
        check=[],
        arms=None,
        equivalence=None,
        comparison=None,
        decision=Decision(verdict="INCONCLUSIVE", reasons=[], matrix=[], by_category={}, by_concurrency={}),
        limits=[],
    )


def halfway() -> Evidence:
    """A study that stopped between the arms."""
    arms = Arms(target_only=make_arm(400.0, False), speculative=None)
    equivalence = Equivalence(greedy=None, sampled=None, controls=[], claim="none", claim_basis="nothing compared")
    return partial().model_copy(update={"arms": arms, "equivalence": equivalence})


def make_requests(name: str = "p1") -> list[dict[str, Any]]:
    def request(arm: str, prompt_id: str, latency: float, **changes: Any) -> dict[str, Any]:
        values = {
            "arm": arm,
            "prompt_id": prompt_id,
            "category": "chat",
            "latency_ms": latency,
            "repeat": 0,
            "token_ids": [1, 2],
            "text": f"{arm} said {name}",
            "error": None,
        }
        return values | changes

    return [
        request("target_only", name, 400.0),
        request("speculative", name, 251.5),
        request("target_only", "p2", 300.0),
        request("speculative", "p2", 320.0, token_ids=[1, 3]),
        request("target_only", "p3", 300.0),
        request("speculative", "p3", 1.0, error=f"out of memory {name}"),
        request("target_only", "p4", 300.0),
    ]
