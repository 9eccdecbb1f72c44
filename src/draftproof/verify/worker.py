"""The engine of the sampled check: many short requests at once, and, where the accept rule can be reached, what it heard."""

from collections.abc import Callable

from draftproof.engines.base import EngineProtocol
from draftproof.sampling.accept import AcceptRule
from draftproof.verify.collect import SampledDesign
from draftproof.verify.draft_laws import DraftLaws

Wrap = Callable[[AcceptRule], AcceptRule]


def open_worker(
    engine: EngineProtocol, design: SampledDesign, wrap: Wrap = lambda rule: rule
) -> tuple[EngineProtocol, DraftLaws | None]:
    """
    Return an engine for the design, and where to read what was drafted.

    Parameters
    ----------
    engine : EngineProtocol
    design : SampledDesign
    wrap : callable
        From the engine's own accept rule to the one to use; only where ``capabilities.replaceable_rule``.

    Returns
    -------
    EngineProtocol
    DraftLaws or None
        None: the rule cannot be reached, or the cells are ranks, which are another choice of tokens at each place.
    """
    if not engine.capabilities.replaceable_rule:
        return engine.sibling(max_batch=design.batch, max_len=design.max_len), None
    heard: list[DraftLaws] = []

    def rule(own: AcceptRule) -> AcceptRule:
        if design.allowed_token_ids is None:
            return wrap(own)
        heard.append(DraftLaws(wrap(own), design.allowed_token_ids))
        return heard[0]

    worker = engine.sibling(max_batch=design.batch, max_len=design.max_len, accept=rule)
    return worker, heard[0] if heard else None
