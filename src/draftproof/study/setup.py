"""From a plan to what it names: the engine, the proposer, the design of the sampled check. Runs nothing."""

from draftproof.engines.base import EngineProtocol
from draftproof.engines.hf import HfEngine
from draftproof.engines.native import Engine
from draftproof.engines.scripted import ScriptedEngine
from draftproof.errors import PlanError
from draftproof.proposers import CrossTokenizer, DraftModel, EarlyExit, PromptLookup, Proposer
from draftproof.study.plan import Plan
from draftproof.study.progress import Progress
from draftproof.verify.sampled import SampledDesign

DEFAULT_MAX_LEN = 1024


def open_engine(plan: Plan, progress: Progress) -> EngineProtocol:
    """
    Load the engine that a plan names.

    Raises
    ------
    ModelError, InputError
        The model is missing or cannot be used, or a value does not fit it.
    """
    table, speculation = plan.engine, plan.speculation
    max_len = max_len_of(plan)
    if table.kind == "hf":
        return HfEngine.from_pretrained(
            table.target,
            num_speculative_tokens=speculation.num_speculative_tokens,
            prompt_lookup_max=speculation.prompt_lookup_max,
            dtype=table.dtype,
            device=table.device,
            max_len=max_len,
            draft=speculation.draft,
            progress=progress.say,
        )
    if table.kind == "scripted":
        return ScriptedEngine(
            table.script,
            proposer=make_proposer(plan),
            num_speculative_tokens=speculation.num_speculative_tokens,
            max_batch=max(plan.workload.concurrency),
            max_len=max_len,
        )
    return Engine.from_pretrained(
        table.target,
        proposer=make_proposer(plan),
        dtype=table.dtype,
        device=table.device,
        progress=progress.say,
        num_speculative_tokens=speculation.num_speculative_tokens,
        max_batch=max(plan.workload.concurrency),
        max_len=max_len,
        numerics=table.numerics,
        verification=speculation.verification,
    )


def max_len_of(plan: Plan) -> int:
    """Return the longest sequence that a plan asks for, before the model's own limit."""
    return DEFAULT_MAX_LEN if plan.engine.max_len == "auto" else plan.engine.max_len


def sampled_design(engine: EngineProtocol, plan: Plan) -> SampledDesign | None:
    """
    Return the design of the sampled check in token ids, or None when the plan has none.

    Raises
    ------
    PlanError
        A word is not one token, or two words are the same token.
    """
    if not plan.sampled.enabled:
        return None
    values = plan.sampled.model_dump(exclude={"enabled", "prompt", "words"})
    allowed: list[int] = []
    for word in plan.sampled.words:
        token_ids = engine.encode(word)
        if len(token_ids) != 1 or token_ids[0] in allowed:
            what = "a token that another word has" if len(token_ids) == 1 else f"{len(token_ids)} tokens"
            raise PlanError(f"sampled.words: {word!r} is {what} in this tokenizer; choose different one-token words")
        allowed.extend(token_ids)
    return SampledDesign(
        prompt_token_ids=tuple(engine.encode(plan.sampled.prompt)), allowed_token_ids=tuple(allowed), **values
    )


def make_proposer(plan: Plan) -> Proposer:
    """Return the proposer that a plan names; models that it names are not loaded yet."""
    table = plan.speculation
    if table.proposer == "draft-model":
        return DraftModel(table.draft or "", table.confidence_threshold)
    if table.proposer == "cross-tokenizer":
        return CrossTokenizer(table.draft or "", confidence_threshold=table.confidence_threshold)
    if table.exit_layer is not None:
        return EarlyExit(table.exit_layer, table.confidence_threshold)
    return PromptLookup(table.prompt_lookup_min, table.prompt_lookup_max)
