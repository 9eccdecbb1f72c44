"""Did a second run of a study show what the first one showed? Pure: looks at two stored runs, runs nothing."""

from collections.abc import Mapping
from typing import Any, Literal

from draftproof import __version__
from draftproof import evidence as ev
from draftproof.measure.across import AcrossRuns, Other, compare_runs
from draftproof.measure.stored import StoredRun

Reproduced = Literal["REPRODUCED", "INCONCLUSIVE", "NOT_REPRODUCED"]
RERUN_CODES: dict[Reproduced, int] = {"REPRODUCED": 0, "INCONCLUSIVE": 11, "NOT_REPRODUCED": 12}
SAME_BITS = ("bitwise", "bitwise_same_batch")
Tokens = dict[tuple[str, int, int, str], list[int]]  # by prompt, repeat, concurrency and block


class Repeated(ev.Part):
    """
    One finding of the first run beside the second's.

    ``result``: "may differ" is a difference that nothing promised to be absent; "not settled" is none that can be judged.
    """

    name: str
    first: str
    rerun: str
    result: Literal["same", "may differ", "not settled", "differs"]
    why: str


class Reproduction(ev.Part):
    """The whole of ``rerun.json``; ``runs`` holds every difference of the two environments and plans, and the paired ratios."""

    schema_version: Literal[1] = 1
    draftproof_version: str
    study: str
    outcome: Reproduced
    reasons: list[str]
    findings: list[Repeated]
    runs: AcrossRuns


def judge_rerun(first: StoredRun, rerun: StoredRun) -> Reproduction:
    """
    Say whether the second run shows what the first one showed. Pure.

    Runs that may not be compared (`measure.across`) settle nothing. Else the verdict and the claim must be the same, the
    intervals of the speed-up must overlap, and every request must have the same tokens where that is promised: by a claim of
    equal bits, on the same machine and software.
    """
    runs = compare_runs([first, rerun])
    other = runs.others[0]
    findings = [
        _verdict(first.evidence, rerun.evidence),
        _claim(first.evidence, rerun.evidence),
        _tokens("target-only tokens", first, rerun, other, speculative=False),
        _tokens("speculative tokens", first, rerun, other, speculative=True),
        _speedup(first.evidence, rerun.evidence, other),
    ]
    outcome: Reproduced = "REPRODUCED"
    reasons = [f"{item.name}: {item.why}" for item in findings if item.result in ("differs", "not settled")]
    if not other.comparable:
        outcome = "INCONCLUSIVE"
        named = (f"{item.name} ({item.kind})" for item in other.differences if item.kind in ("work", "machine"))
        reasons.insert(0, f"the runs may not be compared; what differs: {', '.join(named)}")
    elif any(item.result == "differs" for item in findings):
        outcome = "NOT_REPRODUCED"
    elif reasons:
        outcome = "INCONCLUSIVE"
    return Reproduction(
        draftproof_version=__version__,
        study=first.evidence.study.name,
        outcome=outcome,
        reasons=reasons,
        findings=findings,
        runs=runs,
    )


def _verdict(first: ev.Evidence, rerun: ev.Evidence) -> Repeated:
    one, two = first.decision.verdict, rerun.decision.verdict
    if one == two:
        return Repeated(name="verdict", first=one, rerun=two, result="same", why="the same")
    if "INCONCLUSIVE" in (one, two):
        why = f"{one}, then {two}: one of the runs allows no claim, and its own reasons say why"
        return Repeated(name="verdict", first=one, rerun=two, result="not settled", why=why)
    return Repeated(name="verdict", first=one, rerun=two, result="differs", why=f"{one}, then {two}")


def _claim(first: ev.Evidence, rerun: ev.Evidence) -> Repeated:
    one, two = _claimed(first), _claimed(rerun)
    outcomes = {
        item.equivalence.greedy.outcome for item in (first, rerun) if item.equivalence and item.equivalence.greedy
    }
    if one == two:
        return Repeated(name="claim", first=one, rerun=two, result="same", why="the same")
    result: Literal["not settled", "differs"] = "not settled" if "INCONCLUSIVE" in outcomes else "differs"
    return Repeated(name="claim", first=one, rerun=two, result=result, why=f"{one}, then {two}")


def _claimed(evidence: ev.Evidence) -> str:
    return evidence.equivalence.claim if evidence.equivalence else "none"


def _tokens(name: str, first: StoredRun, rerun: StoredRun, other: Other, *, speculative: bool) -> Repeated:
    """Compare token ids request by request; one that only one of the runs finished is not the same."""
    not_promised = _not_promised(first.evidence, rerun.evidence, other)
    if first.records is None or rerun.records is None:
        why = "no requests.jsonl lies beside the evidence, so tokens cannot be compared"
        result: Literal["may differ", "not settled"] = "may differ" if not_promised else "not settled"
        return Repeated(name=name, first="not stored", rerun="not stored", result=result, why=why)
    one, two = (_outputs(run.records or (), speculative) for run in (first, rerun))
    prompts = dict.fromkeys(key[0] for key in [*one, *two])
    apart = {key[0]: key for key in reversed([*one, *two]) if one.get(key) != two.get(key)}
    said = {"first": f"{len(prompts)} prompts", "rerun": f"{len(prompts) - len(apart)} of {len(prompts)} the same"}
    if not apart:
        return Repeated(name=name, **said, result="same", why="the same, token for token")
    prompt = next(prompt for prompt in prompts if prompt in apart)
    why = f"{said['rerun']}; {_first_difference(prompt, one.get(apart[prompt]), two.get(apart[prompt]))}"
    if not_promised:
        return Repeated(name=name, **said, result="may differ", why=f"{why}; {not_promised}")
    return Repeated(name=name, **said, result="differs", why=f"{why}; claim {_claimed(first.evidence)} promises none")


def _not_promised(first: ev.Evidence, rerun: ev.Evidence, other: Other) -> str | None:
    """Why two runs may have other tokens; None where they may not."""
    claims = _claimed(first), _claimed(rerun)
    for claim in claims:
        if claim not in SAME_BITS:
            return f"claim {claim} does not promise the same tokens in two runs"
    changed = [item.name for item in other.differences if item.kind != "plan"]
    if changed:
        return f"equal bits are promised on the same machine and software only, and {', '.join(changed)} changed"
    if "bitwise_same_batch" in claims and (first.study.plan.get("workload") or {}).get("arrival"):
        return "claim bitwise_same_batch promises the same tokens in the same batch, and arrivals form other batches"
    return None


def _outputs(records: tuple[Mapping[str, Any], ...], speculative: bool) -> Tokens:
    return {
        (item["prompt_id"], item["repeat"], item["concurrency"], item["block"]): item["token_ids"]
        for item in records
        if (item["block"] == "B") == speculative
    }


def _first_difference(prompt: str, one: list[int] | None, two: list[int] | None) -> str:
    if one is None or two is None:
        return f"prompt '{prompt}' was finished by one of the runs only"
    place = next(
        (at for at, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), min(len(one), len(two))
    )
    return f"prompt '{prompt}' differs from token {place + 1} on"


def _speedup(first: ev.Evidence, rerun: ev.Evidence, other: Other) -> Repeated:
    one, two = (item.comparison.overall.speedup if item.comparison else None for item in (first, rerun))
    said = {"first": _span(one), "rerun": _span(two)}
    ratio = f"; paired by prompt, the rerun's over the first's: {_span(other.ratios.speedup)}" if other.ratios else ""
    if one is None or two is None or None in (one.low, one.high, two.low, two.high):
        why = "not estimable in both runs"
        return Repeated(name="speed-up", **said, result="not settled", why=why)
    if not other.comparable:
        why = "times of runs that may not be compared"
        return Repeated(name="speed-up", **said, result="not settled", why=why)
    if _overlap(one, two):
        return Repeated(name="speed-up", **said, result="same", why=f"the intervals overlap{ratio}")
    apart = f"{said['first']}, then {said['rerun']}: the intervals do not overlap{ratio}"
    if "INCONCLUSIVE" in (first.decision.verdict, rerun.decision.verdict):
        why = f"{apart}; one of the runs allows no claim"
        return Repeated(name="speed-up", **said, result="not settled", why=why)
    return Repeated(name="speed-up", **said, result="differs", why=apart)


def _overlap(one: ev.Interval, two: ev.Interval) -> bool:
    assert one.low is not None and one.high is not None and two.low is not None and two.high is not None
    return one.low <= two.high and two.low <= one.high


def _span(interval: ev.Interval | None) -> str:
    if interval is None or interval.estimate is None:
        return "not estimable"
    if interval.low is None or interval.high is None:
        return f"{interval.estimate:.3f}x (no interval)"
    return f"{interval.estimate:.3f}x ({interval.low:.3f} to {interval.high:.3f})"
