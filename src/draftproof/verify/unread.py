"""What a sampled check says before it has seen anything."""

from draftproof.engines.base import EngineProtocol
from draftproof.evidence import SampledResult
from draftproof.verify.collect import SampledDesign


def unread(worker: EngineProtocol, design: SampledDesign) -> SampledResult:
    """Return the design as a result without tokens: INCONCLUSIVE."""
    words = design.allowed_token_ids
    claim = (
        f"at a total variation below {design.delta}, tokens follow the target's law on {len(design.prompts)} prompt(s)"
    )
    return SampledResult(
        outcome="INCONCLUSIVE",
        configuration={
            "temperature": design.temperature,
            "allowed_token_ids": "all, in rank cells" if words is None else list(words),
            "prompt_tokens": [len(prompt) for prompt in design.prompts],
            "num_speculative_tokens": worker.capabilities.num_speculative_tokens,
            "batch": min(design.batch, worker.capabilities.max_batch),
            "claim about greedy output": worker.capabilities.claim,
        },
        claim=claim,
        sequences=design.sequences,
        tokens=0,
        tv_estimate=None,
        tv_upper_bound=None,
        delta=design.delta,
        p_value=None,
        alpha_fail=design.alpha_fail,
        alpha_eq=design.alpha_eq,
        strata=[],
        reasons=[],
        tv_by_n=[],
    )
