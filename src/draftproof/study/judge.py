"""Is the output the target's? Puts the greedy comparison, the sampled check and the controls into one answer."""

from collections.abc import Sequence
from typing import Any

from draftproof import evidence as ev
from draftproof.engines.base import EngineProtocol
from draftproof.study.plan import Plan
from draftproof.study.progress import Progress
from draftproof.verify.anchor import anchor
from draftproof.verify.collect import SampledDesign
from draftproof.verify.greedy import compare_greedy
from draftproof.verify.live_controls import names_of_controls
from draftproof.verify.power_plan import plan_sampled
from draftproof.verify.sampled import verify_sampled


def judge_output(
    engine: EngineProtocol,
    plan: Plan,
    records: Sequence[dict[str, Any]],
    encoded: dict[str, list[int]],
    design: SampledDesign | None,
    progress: Progress,
) -> ev.Equivalence:
    """
    Compare what was recorded token for token where the arms must agree, and run the sampled check.

    Parameters
    ----------
    records : sequence of request records
        Those without an error.
    encoded : dict
        Token ids of each prompt.
    design : SampledDesign or None
        None: no sampled check.
    """
    most_likely = plan.sampling.temperature == 0
    greedy = None
    if most_likely or plan.speculation.verification == "coupled":
        anchored = anchor(engine, records, encoded) if most_likely else None
        greedy = compare_greedy(engine, records, encoded, anchored, most_likely=most_likely)
    sampled: ev.SampledResult | None = None
    controls: list[ev.ControlResult] = []
    if design:
        planned = tell_plan(engine, design, progress)
        total = design.sequences + len(names_of_controls(engine)) * design.control_sequences
        advance = progress.start("sampled check and controls", total)
        sampled, controls = verify_sampled(engine, design, advance, advance.tell)
        sampled = sampled.model_copy(update={"planned": planned})
    claim: Any = engine.capabilities.claim if greedy and greedy.outcome == "PASS" else "none"
    basis = engine.capabilities.claim_basis if claim != "none" else "greedy output was not shown to be the same"
    return ev.Equivalence(greedy=greedy, sampled=sampled, controls=controls, claim=claim, claim_basis=basis)


def tell_plan(engine: EngineProtocol, design: SampledDesign, progress: Progress) -> ev.SampledPlanned | None:
    """Say, before the check, what it will be able to see and how long it will take."""
    planned = plan_sampled(engine, design)
    if planned is None:
        progress.say("sampled check: the pilot failed, and so will the check")
        return None
    progress.say(f"sampled check: about {planned.seconds:.0f} s, each test at alpha {planned.alpha:.2g}")
    for place in planned.places:
        enough = "enough to pass" if place.enough else "too few to pass: INCONCLUSIVE at best"
        progress.say(
            f"  {place.place:8} {place.tokens:6} tokens, sees deviations from {place.smallest_deviation:.3f} on; bound about "
            f"{place.expected_bound:.3f} of {place.delta:g} allowed, {enough}"
        )
    return planned
