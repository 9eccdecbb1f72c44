"""Is the output the target's? Registers how it is judged, and puts comparison, sampled check and controls into one answer."""

from collections.abc import Sequence
from typing import Any

from draftproof import evidence as ev
from draftproof.engines.base import EngineProtocol
from draftproof.engines.digest import digest_of
from draftproof.study.plan import Plan
from draftproof.study.progress import Progress
from draftproof.study.sampled import Register, SampledCheck, run_check
from draftproof.verify.anchor import anchor
from draftproof.verify.greedy import compare_greedy
from draftproof.verify.registration import registration


def registered(engine: EngineProtocol, plan: Plan, check: SampledCheck | None) -> dict[str, Any]:
    """Return how the output will be judged, with its SHA-256, as the lock stores it; ``check`` is that of `sampled_check`."""
    sampled = None if check is None else check.record(engine)
    record = registration(engine, sampled, greedy=plan.sampling.temperature == 0)
    return {"sha256": digest_of(record), "record": record}


def judge_output(
    engine: EngineProtocol,
    plan: Plan,
    records: Sequence[dict[str, Any]],
    encoded: dict[str, list[int]],
    check: SampledCheck | None,
    progress: Progress,
    register: Register,
) -> ev.Equivalence:
    """
    Compare what was recorded token for token where the arms must agree, and run the sampled check.

    Parameters
    ----------
    records : sequence of request records
        Those without an error.
    encoded : dict
        Token ids of each prompt.
    check : SampledCheck or None
    register : callable
        Gets what a sampled check will be able to see, before it begins.
    """
    most_likely = plan.sampling.temperature == 0
    greedy = None
    if most_likely or plan.speculation.verification == "coupled":
        anchored = anchor(engine, records, encoded) if most_likely else None
        greedy = compare_greedy(engine, records, encoded, anchored, most_likely=most_likely)
    sampled: ev.SampledResult | None = None
    controls: list[ev.ControlResult] = []
    if check is not None:
        sampled, controls = run_check(engine, check, progress, register)
    claim: Any = engine.capabilities.claim
    # what the configuration gives up is given up whatever these prompts show
    if claim != "lossy" and not (greedy and greedy.outcome == "PASS"):
        claim = "none"
    basis = engine.capabilities.claim_basis if claim != "none" else "greedy output was not shown to be the same"
    return ev.Equivalence(greedy=greedy, sampled=sampled, controls=controls, claim=claim, claim_basis=basis)
