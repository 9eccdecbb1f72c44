"""The accept rule comes first: one that is wrong by itself needs no sample to say so."""

from typing import NamedTuple

from draftproof.engines.base import EngineProtocol
from draftproof.evidence import ControlResult, RuleIdentity, SampledResult
from draftproof.sampling.accept import AcceptRule, rejection
from draftproof.verify.collect import SampledDesign
from draftproof.verify.controls import RULE_DEFECTS
from draftproof.verify.identity import rule_identity
from draftproof.verify.live_controls import Kind
from draftproof.verify.unread import unread
from draftproof.verify.worker import Worker, open_worker


class CheckedRule(NamedTuple):
    """
    The worker of a sampled check, and what its accept rule's own law is.

    Attributes
    ----------
    worker : Worker
    identity : RuleIdentity or None
        None where the rule cannot be reached, or is the coupled one.
    """

    worker: Worker
    identity: RuleIdentity | None


def check_rule(engine: EngineProtocol, design: SampledDesign, *, judged_elsewhere: bool = False) -> CheckedRule:
    """Open a worker (see `open_worker`) and integrate its accept rule's law."""
    worker = open_worker(engine, design, judged_elsewhere=judged_elsewhere)
    longest = worker.engine.capabilities.num_speculative_tokens or 1
    return CheckedRule(worker, None if worker.rule is None else rule_identity(worker.rule, longest))


def against_rule(identity: RuleIdentity | None) -> list[str]:
    """Return what the accept rule's own law says against it."""
    said = []
    if identity is not None and identity.worst > identity.tolerance:
        said.append(f"the accept rule, without sampling, is {identity.worst:.3f} away from the target's law")
    if identity is not None and identity.impossible:
        said.append("the accept rule can emit tokens that the target gives no probability")
    return said


def wrong_rule(checked: CheckedRule, design: SampledDesign) -> tuple[SampledResult, list[ControlResult]] | None:
    """
    Return the verdict where the rule's own law is wrong, without a sample; None where it is not.

    The controls are the same integral of rules that are known: FAIL needs that it finds the wrong ones and clears the right one.
    """
    against = against_rule(checked.identity)
    if not against:
        return None
    controls = [_control(name, "defect", rule) for name, rule in RULE_DEFECTS.items()]
    controls.append(_control("rejection rule", "lossless", rejection))
    misbehaved = [f"control '{item.name}' did not behave" for item in controls if not item.behaved]
    reasons = [*against, *misbehaved, "no sample was drawn, since the rule is wrong without one"]
    found = {
        "outcome": "INCONCLUSIVE" if misbehaved else "FAIL",
        "sequences": 0,
        "identity": checked.identity,
        "reasons": reasons,
    }
    return unread(checked.worker.engine, design).model_copy(update=found), controls


def _control(name: str, kind: Kind, rule: AcceptRule) -> ControlResult:
    found = rule_identity(rule)
    flagged = bool(against_rule(found))
    detail = "" if found is None else f"law of the rule: {found.worst:.4f} from the target's, {found.tolerance} allowed"
    return ControlResult(name=name, kind=kind, flagged=flagged, behaved=flagged == (kind == "defect"), detail=detail)
