"""From evidence and a policy to a verdict. A pure table: measures nothing, reads nothing, and has no clock."""

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from draftproof.evidence import (
    Arms,
    Comparison,
    Criterion,
    Decision,
    Effect,
    Equivalence,
    HostNoise,
    Interval,
    VerdictName,
)
from draftproof.gate.policy import Policy
from draftproof.gate.undecided import cause, known, span, times, undecided, within_noise

# strongest first: a run gets the first of these that any of its rows asks for
_PRECEDENCE: tuple[VerdictName, ...] = ("ROLL_BACK", "INCONCLUSIVE", "KEEP_TARGET_ONLY", "ADOPT")
# strongest first
_CLAIMS = ("bitwise", "bitwise_same_batch", "up_to_ties", "lossy", "none")
_ABSENT = "not measured"


class _Row(NamedTuple):
    """A criterion and the sentence that explains it."""

    criterion: Criterion
    reason: str


def decide(
    *,
    arms: Arms | None,
    equivalence: Equivalence | None,
    comparison: Comparison | None,
    policy: Policy,
    registered: bool = True,
    stopped: str | None = None,
) -> Decision:
    """
    Hold the evidence against the policy.

    A row's ``consequence`` is the verdict that this row alone leads to (``ADOPT`` where it stands in nobody's way).

    Parameters
    ----------
    arms, equivalence, comparison
        The parts of the evidence; None where the study did not get that far.
    policy : Policy
        The thresholds.
    registered : bool
        Whether the policy is the one that was locked before the run.
    stopped : str or None
        Why a stage ended the study early, if one did.

    Returns
    -------
    Decision
    """
    effect, host = (None, None) if comparison is None else (comparison.overall, comparison.noise)
    shared = [*_equivalence(equivalence, policy), *_boundary(arms, policy), _noise(comparison, policy)]
    memory = list(_memory_ratio(comparison, policy))
    rows = [
        *shared,
        _speedup(effect, policy, host, _draft_cost(comparison, policy)),
        *_no_slower(effect, policy, host),
        *memory,
        *_accepted(arms, policy),
        *_cost(comparison, policy),
    ]
    verdict = _verdict(rows, stopped)

    # a group stands on the run's equivalence, memory and noise, and on its own speed-up with the noise of its own prompts
    def grouped(effects: dict[str, Effect]) -> dict[str, VerdictName]:
        return {
            name: _verdict([*shared, *memory, _speedup(group, policy, host)], stopped)
            for name, group in effects.items()
        }

    return Decision(
        verdict=verdict,
        reasons=_reasons(rows, verdict, policy, stopped),
        matrix=[row.criterion for row in rows],
        by_category={} if comparison is None else grouped(comparison.by_category),
        by_concurrency={} if comparison is None else grouped(comparison.by_concurrency),
        by_cell={}
        if comparison is None
        else {category: grouped(levels) for category, levels in comparison.by_cell.items()},
        registered=registered,
    )


def weaker_claim(claim: str, wanted: str) -> bool:
    """Whether a claim says less than another."""
    return _CLAIMS.index(claim) > _CLAIMS.index(wanted)


def _verdict(rows: Iterable[_Row], stopped: str | None) -> VerdictName:
    found = {row.criterion.consequence for row in rows}
    if stopped is not None:
        found.add("INCONCLUSIVE")
    return next((name for name in _PRECEDENCE if name in found), "ADOPT")


def _reasons(rows: list[_Row], verdict: VerdictName, policy: Policy, stopped: str | None) -> list[str]:
    if verdict == "ADOPT":
        shown = {row.criterion.name: row.criterion for row in rows}
        greedy, speedup = shown["greedy output"], shown["speed-up"]
        return [
            f"Greedy output agrees on {greedy.measured}; the speed-up is {speedup.measured} ({speedup.interval}), "
            f"at least the {times(policy.min_speedup)} asked for; none of the {len(rows)} criteria stands against it."
        ]
    driving = [row for row in rows if row.criterion.consequence == verdict]
    if verdict == "INCONCLUSIVE" and stopped is not None:
        # what the stop left unmeasured needs no sentence of its own
        told = [row.reason for row in driving if row.criterion.measured != _ABSENT]
        return [f"The study stopped early: {stopped.rstrip('.')}.", *told]
    # a clear miss is worth knowing before the open question is settled at some cost
    missed = [row for row in rows if verdict == "INCONCLUSIVE" and row.criterion.consequence == "KEEP_TARGET_ONLY"]
    return [row.reason for row in driving] + [f"Missed besides: {row.reason}" for row in missed]


def _row(
    name: str,
    threshold: str,
    measured: str,
    result: Literal["pass", "miss", "not estimable"],
    consequence: VerdictName,
    reason: str,
    interval: str | None = None,
) -> _Row:
    criterion = Criterion(
        name=name, threshold=threshold, measured=measured, interval=interval, result=result, consequence=consequence
    )
    return _Row(criterion, reason)


def _equivalence(equivalence: Equivalence | None, policy: Policy) -> Iterable[_Row]:
    yield _greedy(equivalence, policy)
    yield _repeatable(equivalence)
    yield from _sampled(equivalence, policy)
    yield from _controls(equivalence, policy)


def _greedy(equivalence: Equivalence | None, policy: Policy) -> _Row:
    name, threshold = "greedy output", f"claim at least {policy.min_claim}"
    if equivalence is None or equivalence.greedy is None:
        reason = "Greedy output of the two arms was not compared."
        return _row(name, threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
    greedy, claim = equivalence.greedy, equivalence.claim
    seen = f"{greedy.identical} of {greedy.prompts} prompts token for token"
    measured = f"{seen}; claim {claim}"
    judged = greedy.triage
    why = "" if judged is None or not judged.reasons else f" ({'; '.join(judged.reasons)})"
    if judged is not None:
        measured += f"; {judged.ties} ties in {judged.compared} tokens"
    if greedy.anchor_regret is not None and greedy.anchor_bound is not None:
        measured += f"; target-only tokens at most {greedy.anchor_regret:.3g} logits below the plain model's best"
    if greedy.outcome == "FAIL":
        reason = f"Greedy output is not the target's: the arms agree on {seen}{why}."
        if greedy.anchor_regret is not None and greedy.anchor_regret > (greedy.anchor_bound or 0.0):
            reason += (
                f" A target-only token lies {greedy.anchor_regret:.3g} logits below the plain model's best, and rounding "
                f"explains {greedy.anchor_bound:.3g}: both arms are wrong."
            )
        return _row(name, threshold, measured, "miss", "ROLL_BACK", reason)
    if greedy.outcome == "INCONCLUSIVE" and claim != "lossy":
        reason = f"The greedy comparison is inconclusive: the arms agree on {seen}{why}."
        return _row(name, threshold, measured, "not estimable", "INCONCLUSIVE", reason)
    if weaker_claim(claim, policy.min_claim):
        reason = f"The run supports the claim {claim} about greedy output, which is weaker than {policy.min_claim}."
        if claim == "lossy":
            reason = f"{reason.removesuffix('.')} ({equivalence.claim_basis})."
        return _row(name, threshold, measured, "miss", "ROLL_BACK", reason)
    reason = f"Greedy output agrees on {seen}; claim {claim}."
    return _row(name, threshold, measured, "pass", "ADOPT", reason)


def _repeatable(equivalence: Equivalence | None) -> _Row:
    name, threshold = "repeatability", "every repeated prompt identical"
    greedy = None if equivalence is None else equivalence.greedy
    if greedy is None or greedy.repeatability_prompts == 0:
        reason = "No prompt of the target-only arm was run twice, so repeatability is unknown."
        return _row(name, threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
    measured = f"{greedy.repeatability_identical} of {greedy.repeatability_prompts} prompts"
    if greedy.repeatability_identical < greedy.repeatability_prompts:
        reason = f"The target-only arm is not reproducible: it repeated its own output on {measured}."
        return _row(name, threshold, measured, "miss", "ROLL_BACK", reason)
    return _row(name, threshold, measured, "pass", "ADOPT", f"The target-only arm repeated its output on {measured}.")


def _sampled(equivalence: Equivalence | None, policy: Policy) -> Iterable[_Row]:
    name = "sampled law"
    threshold = "the target's law" if policy.require_sampled else "the target's law (not required)"
    sampled = None if equivalence is None else equivalence.sampled
    if sampled is None:
        if policy.require_sampled:
            reason = "The law of sampled output was not tested, and the policy requires it."
            yield _row(name, threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
        return
    bound = "no bound" if sampled.tv_upper_bound is None else f"at most {sampled.tv_upper_bound:.4f}"
    p_value = "no p-value" if sampled.p_value is None else f"p = {sampled.p_value:.3g}"
    measured = f"{sampled.outcome}: total variation {bound}, {p_value}, {sampled.tokens} tokens"
    detail = f"total variation {bound} against {sampled.delta:.4g} allowed, {p_value}, over {sampled.tokens} tokens"
    if sampled.outcome == "FAIL":
        reason = f"Sampled output does not follow the target's law: {detail}."
        yield _row(name, threshold, measured, "miss", "ROLL_BACK", reason)
    elif sampled.outcome == "INCONCLUSIVE":
        verdict: VerdictName = "INCONCLUSIVE" if policy.require_sampled else "ADOPT"
        reason = f"The test of sampled output is inconclusive: {detail}."
        reason += "".join(f" What to do: {line}." for line in sampled.advice)
        yield _row(name, threshold, measured, "not estimable", verdict, reason)
    else:
        yield _row(name, threshold, measured, "pass", "ADOPT", f"Sampled output follows the target's law: {detail}.")


def _controls(equivalence: Equivalence | None, policy: Policy) -> Iterable[_Row]:
    name, threshold = "controls", "every control behaves"
    controls = [] if equivalence is None else equivalence.controls
    if not controls:
        # the controls guard the sampled check, so nothing is missing where that was not asked for
        if policy.require_sampled:
            reason = "No control was run, so the checks were not shown to find a defect."
            yield _row(name, threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
        return
    wrong = [control.name for control in controls if not control.behaved]
    measured = f"{len(controls) - len(wrong)} of {len(controls)} behaved"
    if wrong:
        reason = f"The checks cannot be trusted: {measured}, not {', '.join(wrong)}."
        yield _row(name, threshold, measured, "miss", "INCONCLUSIVE", reason)
    else:
        yield _row(name, threshold, measured, "pass", "ADOPT", f"Of the controls, {measured}.")


def _boundary(arms: Arms | None, policy: Policy) -> Iterable[_Row]:
    limit = policy.max_peak_memory_bytes
    if limit is None:
        return
    name, threshold = "peak memory", f"at most {_mib(limit)}"
    memory = None if arms is None or arms.speculative is None else arms.speculative.memory
    peak = None if memory is None else memory.peak if memory.on_gpu else memory.peak_rss
    if peak is None:
        reason = f"Peak memory of the speculative arm was not measured; the boundary is {_mib(limit)}."
        yield _row(name, threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
    elif peak > limit:
        reason = f"The speculative arm peaked at {_mib(peak)}, above the boundary of {_mib(limit)}."
        yield _row(name, threshold, _mib(peak), "miss", "ROLL_BACK", reason)
    else:
        reason = f"The speculative arm peaked at {_mib(peak)}, within {_mib(limit)}."
        yield _row(name, threshold, _mib(peak), "pass", "ADOPT", reason)


def _noise(comparison: Comparison | None, policy: Policy) -> _Row:
    effect = None if comparison is None else comparison.overall
    most = policy.max_aa_spread
    threshold = f"between {1 / most:.3f} and {most:.3f}"
    found = None if effect is None else known(effect.aa)
    if found is None:
        reason = "The target-only arm was not compared with itself on enough prompts, so the noise is unknown."
        return _row("noise", threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
    estimate, low, high = found
    measured, interval = times(estimate), span(low, high, policy)
    if low < 1 / most or high > most:
        reason = (
            f"The run is too noisy: target-only against itself differs by {measured} ({interval}), not {threshold}. "
            f"{cause(None if comparison is None else comparison.noise)}"
        )
        return _row("noise", threshold, measured, "miss", "INCONCLUSIVE", reason, interval)
    reason = f"Target-only against itself gives {measured} ({interval})."
    return _row("noise", threshold, measured, "pass", "ADOPT", reason, interval)


def _draft_cost(comparison: Comparison | None, policy: Policy) -> str:
    """Say what drafting costs, where the speed-up would reach the policy's if drafting took no time; else nothing."""
    for found in () if comparison is None else comparison.prediction.values():
        measured, predicted = found.measured.estimate, found.predicted.estimate
        if not measured or not predicted:
            continue
        free = measured * found.without_drafting / predicted
        if measured < policy.min_speedup <= free:
            needs = "no acceptance breaks even"
            if found.break_even is not None:
                needs = f"break-even needs acceptance {found.break_even:.2f}"
            costs = found.costs_ms
            return (
                f" The draft is too slow: a round accepts {found.accepted_per_round:.1f} tokens, but drafting takes "
                f"{costs.draft:.3g} of its {costs.drafting_round:.3g} ms; at these costs {needs}, and if drafting took no "
                f"time, the speed-up would be {times(free)}."
            )
    return ""


def _speedup(effect: Effect | None, policy: Policy, host: HostNoise | None, why: str = "") -> _Row:
    name, least = "speed-up", times(policy.min_speedup)
    threshold = f"at least {least}"
    found = None if effect is None else known(effect.speedup)
    if effect is None or found is None:
        prompts = "" if effect is None else f" from {effect.n} prompts"
        reason = f"The speed-up could not be estimated{prompts}; {least} is asked for."
        return _row(name, threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
    estimate, low, high = found
    measured, interval = times(estimate), span(low, high, policy)
    told = f"The speed-up is {measured} ({interval}, {effect.n} prompts)"
    is_clear = not within_noise(estimate, policy.min_speedup, effect)
    if is_clear and low >= policy.min_speedup:
        return _row(name, threshold, measured, "pass", "ADOPT", f"{told}, at least {least}.", interval)
    if is_clear and high < policy.min_speedup:
        return _row(name, threshold, measured, "miss", "KEEP_TARGET_ONLY", f"{told}, below {least}.{why}", interval)
    reason = f"{told}, and at least {least} is asked for. {undecided(found, policy.min_speedup, effect, policy, host)}"
    return _row(name, threshold, measured, "not estimable", "INCONCLUSIVE", reason, interval)


def _no_slower(effect: Effect | None, policy: Policy, host: HostNoise | None) -> Iterable[_Row]:
    """Hold the ratios to target-only against their limits, by both ends of their intervals."""
    of = (
        ("time per token", "itl_ratio", policy.max_itl_ratio),
        ("time between chunks", "icl_ratio", policy.max_icl_ratio),
        ("p95 latency", "latency_ratio_p95_interval", policy.max_p95_latency_ratio),
    )
    for name, key, most in of:
        if most is not None:
            yield _at_most_times(name, None if effect is None else getattr(effect, key), most, effect, policy, host)


def _at_most_times(
    name: str, ratio: Interval | None, most: float, effect: Effect | None, policy: Policy, host: HostNoise | None
) -> _Row:
    subject, threshold = f"The {name}", f"at most {times(most)} target-only"
    found = None if ratio is None else known(ratio)
    if effect is None or found is None:
        reason = f"{subject} has no ratio to target-only with an interval; at most {times(most)} is asked for."
        return _row(name, threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
    estimate, low, high = found
    measured, interval = times(estimate), span(low, high, policy)
    told = f"{subject} is {measured} that of target-only ({interval})"
    is_clear = not within_noise(estimate, most, effect)
    if is_clear and high <= most:
        return _row(name, threshold, measured, "pass", "ADOPT", f"{told}, at most {times(most)}.", interval)
    if is_clear and low > most:
        return _row(name, threshold, measured, "miss", "KEEP_TARGET_ONLY", f"{told}, above {times(most)}.", interval)
    reason = f"{told}, and at most {times(most)} is asked for. {undecided(found, most, effect, policy, host)}"
    return _row(name, threshold, measured, "not estimable", "INCONCLUSIVE", reason, interval)


def _memory_ratio(comparison: Comparison | None, policy: Policy) -> Iterable[_Row]:
    if policy.max_memory_ratio is not None:
        ratio = None if comparison is None else comparison.memory_ratio
        yield _at_most("memory", "Memory for weights and caches", ratio, policy.max_memory_ratio)


def _at_most(name: str, subject: str, ratio: float | None, most: float) -> _Row:
    threshold = f"at most {times(most)} target-only"
    if ratio is None or math.isnan(ratio):
        reason = f"{subject} has no ratio to target-only; at most {times(most)} is asked for."
        return _row(name, threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
    told = f"{subject} is {times(ratio)} that of target-only"
    if ratio > most:
        return _row(name, threshold, times(ratio), "miss", "KEEP_TARGET_ONLY", f"{told}, above {times(most)}.")
    return _row(name, threshold, times(ratio), "pass", "ADOPT", f"{told}, at most {times(most)}.")


def _accepted(arms: Arms | None, policy: Policy) -> Iterable[_Row]:
    least = policy.min_accepted_per_round
    if least is None:
        return
    name, threshold = "accepted per round", f"at least {least:.2f} tokens"
    acceptance = None if arms is None or arms.speculative is None else arms.speculative.acceptance
    accepted = None if acceptance is None else acceptance.accepted_per_round
    if acceptance is None or accepted is None or math.isnan(accepted):
        reason = f"No round proposed a token, so accepted tokens per round are unknown; {least:.2f} are asked for."
        yield _row(name, threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
        return
    limits = acceptance.accepted_per_round_interval
    found = None if limits is None else known(limits)
    # without an interval every prompt accepts as many, or a server counted them together
    _, low, high = found or (accepted, accepted, accepted)
    measured = f"{accepted:.2f} tokens"
    interval = None if found is None else span(low, high, policy)
    told = f"A round accepts {measured} on average" + ("" if interval is None else f" ({interval})")
    if low >= least:
        yield _row(name, threshold, measured, "pass", "ADOPT", f"{told}, at least {least:.2f}.", interval)
    elif high < least:
        yield _row(name, threshold, measured, "miss", "KEEP_TARGET_ONLY", f"{told}, below {least:.2f}.", interval)
    else:
        reason = f"{told}, and the interval lies on both sides of {least:.2f}: too few prompts to tell."
        yield _row(name, threshold, measured, "not estimable", "INCONCLUSIVE", reason, interval)


def _cost(comparison: Comparison | None, policy: Policy) -> Iterable[_Row]:
    cost = policy.cost
    if cost is None:
        return
    name, threshold = "operating cost", f"saves at least its {cost.total:,.2f} {cost.unit} a month"
    found = None if comparison is None else known(comparison.overall.speedup)
    if comparison is None or found is None or comparison.load == "open":
        why = "the speed-up could not be estimated"
        if comparison is not None and comparison.load == "open":
            why = "under open-loop arrival latency is mostly waiting, which is no GPU time; measure it in a closed loop"
        reason = f"What speculation saves is unknown: {why}."
        yield _row(name, threshold, _ABSENT, "not estimable", "INCONCLUSIVE", reason)
        return
    saved, low, high = map(cost.saved, found)
    measured = f"{saved:,.2f} {cost.unit} a month"
    interval = f"{policy.confidence * 100:g}% interval {low:,.2f} to {high:,.2f}"
    told = f"Speculation saves {measured} ({interval}) and costs {cost.total:,.2f}"
    needed = cost.break_even_speedup
    is_clear = needed is None or not within_noise(found[0], needed, comparison.overall)
    if is_clear and low >= cost.total:
        yield _row(name, threshold, measured, "pass", "ADOPT", f"{told}: it pays.", interval)
    elif needed is None or (is_clear and high < cost.total):
        yield _row(name, threshold, measured, "miss", "KEEP_TARGET_ONLY", f"{told}: it does not pay.", interval)
    else:
        why = undecided(found, needed, comparison.overall, policy, comparison.noise)
        reason = f"{told}; it pays from a speed-up of {times(needed)} on. {why}"
        yield _row(name, threshold, measured, "not estimable", "INCONCLUSIVE", reason, interval)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
