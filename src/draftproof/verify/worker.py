"""The engine of the sampled check: many short requests at once, and, where the accept rule can be reached, what it heard."""

from collections.abc import Callable
from typing import NamedTuple

from draftproof.engines.base import EngineProtocol
from draftproof.sampling.accept import AcceptRule
from draftproof.verify.collect import SampledDesign
from draftproof.verify.draft_laws import DraftLaws

Wrap = Callable[[AcceptRule], AcceptRule]


class Worker(NamedTuple):
    """
    An engine for a design.

    Attributes
    ----------
    engine : EngineProtocol
    rule : AcceptRule or None
        What decides its rounds; None where that cannot be reached.
    drafts : DraftLaws or None
        Where to read what was drafted. None: no rule, or the cells are ranks, which are other tokens at each place.
    """

    engine: EngineProtocol
    rule: AcceptRule | None
    drafts: DraftLaws | None


def open_worker(
    engine: EngineProtocol, design: SampledDesign, wrap: Wrap = lambda rule: rule, *, judged_elsewhere: bool = False
) -> Worker:
    """
    Return an engine for the design.

    Parameters
    ----------
    engine : EngineProtocol
    design : SampledDesign
    wrap : callable
        From the engine's own accept rule to the one to use; only where ``capabilities.replaceable_rule``.
    judged_elsewhere : bool
        Whether the cells are not those of the target's own pass, so that the drafts' laws do not fit them.
    """
    if not engine.capabilities.replaceable_rule:
        return Worker(engine.sibling(max_batch=design.batch, max_len=design.max_len), None, None)
    rules: list[AcceptRule] = []
    heard: list[DraftLaws] = []

    def replacement(own: AcceptRule) -> AcceptRule:
        rules.append(wrap(own))
        if design.allowed_token_ids is None or judged_elsewhere:
            return rules[0]
        heard.append(DraftLaws(rules[0], design.allowed_token_ids))
        return heard[0]

    worker = engine.sibling(max_batch=design.batch, max_len=design.max_len, accept=replacement)
    return Worker(worker, rules[0], heard[0] if heard else None)
