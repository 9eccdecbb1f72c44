"""
``draftproof check``: what can be told before a study runs, cheapest first.

First what needs no weights (names, tokenizers, context, memory). Only if nothing there is refused, the engine is loaded, and a few
short requests tell whether it drafts rightly and from which acceptance on drafting pays.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftproof.decoding.model import context_limit
from draftproof.engines.base import EngineProtocol
from draftproof.engines.load import load_empty, load_tokenizer
from draftproof.engines.memory_plan import plan_memory
from draftproof.engines.native import Engine
from draftproof.engines.prompts import encode_prompt
from draftproof.errors import DraftproofError, ModelError, PromptError
from draftproof.gate.decide import weaker_claim
from draftproof.measure.run import as_chat
from draftproof.proposers import CrossTokenizer, DraftModel
from draftproof.stats.break_even import break_even
from draftproof.study import findings as say
from draftproof.study.findings import Finding
from draftproof.study.plan import Plan
from draftproof.study.progress import Progress
from draftproof.study.sampled import sampled_check
from draftproof.study.setup import encode_prompts, max_len_of, open_engine
from draftproof.study.trial import PASSES, draft_with_itself, measure_costs
from draftproof.workload.loaders import load_prompts
from draftproof.workload.prompts import WorkloadPrompt

Prompts = tuple[WorkloadPrompt, ...]
WITHOUT_MODEL = {
    "scripted": "the engine is a script, without a model",
    "openai_http": "the models are the servers' own",
}
WITHOUT_WEIGHTS = ("tokenizer", "special tokens", "vocabulary", "chat template", "cache", "memory")


def preflight(plan: Plan, progress: Progress) -> list[Finding]:
    """
    Look at everything that a study needs.

    Returns
    -------
    list of Finding
        In the order in which they were made; what a refusal left unseen is not among them.

    Raises
    ------
    PromptError
        The prompt set cannot be read.
    """
    prompts = load_prompts(plan.workload.prompts, plan.workload.limit, plan.workload.seed)
    found = without_weights(plan, prompts, progress)
    if any(item.status == "refuse" for item in found):
        return found
    try:
        engine = open_engine(plan, progress)
    except DraftproofError as error:
        return [*found, say.refused("load", "refused", error)]
    with contextlib.closing(engine):
        if plan.engine.kind in WITHOUT_MODEL:
            found.append(_context(plan, prompts, engine.encode, engine.capabilities.max_len))
            if found[-1].status == "refuse":
                return found
        return [*found, *with_engine(plan, engine, prompts, progress)]


def without_weights(plan: Plan, prompts: Prompts, progress: Progress) -> list[Finding]:
    """Make the findings for which names, configurations and tokenizers are enough."""
    if plan.engine.kind in WITHOUT_MODEL:
        why = WITHOUT_MODEL[plan.engine.kind]
        return [say.not_applicable(name, why) for name in ("target", *WITHOUT_WEIGHTS)]
    found: list[Finding] = []
    models: list[tuple[PreTrainedModel, PreTrainedTokenizerBase]] = []
    for role, name in (("target", plan.engine.target), ("draft", plan.speculation.draft)):
        if name is None:
            continue
        try:
            model = load_empty(name, dtype=plan.engine.dtype, progress=progress.say)
            models.append((model, load_tokenizer(name, progress.say)))
        except DraftproofError as error:
            return [*found, say.refused(role, "cannot be used", error)]
        found.append(say.model_finding(role, model))
    (target, tokenizer), (draft, draft_tokenizer) = models[0], models[1] if len(models) > 1 else (None, None)
    rows = _rows(target)
    limit = context_limit(target, max_len_of(plan))
    crosses = plan.speculation.proposer == "cross-tokenizer"
    # what a draft with another vocabulary calls its ends, its rows and its positions is not the target's
    twin = None if crosses else draft
    draft_limit = None if twin is None else context_limit(twin, limit)
    if plan.engine.kind == "hf":
        limit -= plan.speculation.num_speculative_tokens if limit < max_len_of(plan) else 0
    template = say.chat_template(tokenizer)
    found += [
        say.shared_vocabulary(tokenizer, draft_tokenizer)
        if crosses
        else say.tokenizer_finding(tokenizer, draft_tokenizer),
        say.special_tokens(target, tokenizer, twin, draft_tokenizer),
        say.vocabulary(rows, tokenizer, None if twin is None else _rows(twin)),
        template,
    ]
    if template.status == "fine":
        encode = partial(encode_prompt, tokenizer, vocab_size=rows, max_len=2**63)
        found.append(_context(plan, prompts, encode, limit, draft_limit))
    return [*found, *_cache_and_memory(plan, target, draft)]


def with_engine(plan: Plan, engine: EngineProtocol, prompts: Prompts, progress: Progress) -> list[Finding]:
    """Make the findings that need a loaded engine: its claim, the self-test, costs and the break-even acceptance."""
    try:
        sampled_check(engine, plan)
    except DraftproofError as error:
        return [say.refused("sampled check", "cannot be made", error)]
    shortest = min((engine.encode(as_chat(prompt)) for prompt in prompts), key=len)
    return [claim(plan, engine), _self_test(engine, shortest, progress), *_costs(plan, engine, shortest, progress)]


def claim(plan: Plan, engine: EngineProtocol) -> Finding:
    """Compare what the engine claims with what the policy asks for."""
    made, wanted = engine.capabilities.claim, plan.policy.min_claim
    if weaker_claim(made, wanted):
        return say.warn(
            "claim", made, f"weaker than the policy's min_claim '{wanted}', so the study cannot end with ADOPT"
        )
    return say.fine("claim", made, engine.capabilities.claim_basis)


def _context(
    plan: Plan, prompts: Prompts, encode: Callable[..., list[int]], limit: int, draft_limit: int | None = None
) -> Finding:
    try:
        lengths = {name: len(token_ids) for name, token_ids in encode_prompts(encode, prompts).items()}
    except PromptError as error:
        return say.refused("context", "a prompt does not fit", error)
    return say.context(lengths, plan.workload.max_tokens, limit, draft_limit)


def _cache_and_memory(plan: Plan, target: PreTrainedModel, draft: PreTrainedModel | None) -> list[Finding]:
    if plan.engine.kind == "hf":
        why = "transformers' own cache grows and goes with each request"
        return [say.not_applicable("cache", why), say.not_applicable("memory", why)]
    kind = say.cache_kind(target, draft)
    if kind.status == "refuse":
        return [kind]
    stretch = CrossTokenizer.stretch if plan.speculation.proposer == "cross-tokenizer" else DraftModel.stretch
    try:
        memory = plan_memory(
            target,
            [] if draft is None else [(draft, stretch)],
            device=plan.engine.device,
            num_speculative_tokens=plan.speculation.num_speculative_tokens,
            max_batch=max(plan.workload.concurrency),
            max_len=max_len_of(plan),
        )
    except ModelError as error:
        return [kind, say.refused("memory", "cannot be planned", error)]
    return [kind, say.memory(memory, plan.engine.target)]


def _self_test(engine: EngineProtocol, token_ids: list[int], progress: Progress) -> Finding:
    name = "self-test"
    if not isinstance(engine, Engine):
        return say.not_applicable(
            name, f"engine '{engine.capabilities.name}' has no target of ours that could draft for itself"
        )
    progress.say("running the target as its own draft")
    seen = draft_with_itself(engine, token_ids)
    result = f"{seen.accepted} of {seen.proposed} accepted"
    values = {"accepted": seen.accepted, "proposed": seen.proposed}
    if seen.error:
        return say.refuse(name, result, f"the target cannot draft for itself: {seen.error}", **values)
    if seen.worst_gap is None:
        return say.fine(name, result, "the target as its own draft, greedy, accepts everything", **values)
    if seen.worst_gap <= seen.bound:
        return say.warn(
            name, result, f"rejected only where the two best logits are within {seen.bound:.2g}: rounding", **values
        )
    return say.refuse(
        name,
        result,
        f"the target rejects its own greedy token where its two best logits are {seen.worst_gap:.2g} apart, and rounding explains "
        f"{seen.bound:.2g}: drafting is broken here",
        **values,
    )


def _costs(plan: Plan, engine: EngineProtocol, token_ids: list[int], progress: Progress) -> list[Finding]:
    if not engine.capabilities.reports_rounds:
        why = f"engine '{engine.capabilities.name}' reports no rounds, so their parts cannot be timed"
        return [say.not_applicable("costs", why), say.not_applicable("break-even", why)]
    progress.say("timing rounds and plain steps")
    num_tokens = plan.speculation.num_speculative_tokens
    costs = measure_costs(engine, token_ids, plan.params, num_tokens)
    if costs is None:
        why = f"no round drafted {num_tokens} tokens"
        return [say.warn("costs", "not measured", why), say.warn("break-even", "not measured", why)]
    values = {"plain_ms": costs.plain_ms, "propose_ms": costs.propose_ms, "score_ms": costs.score_ms}
    measured = say.fine(
        "costs",
        f"step {costs.plain_ms:.1f} ms; round {costs.propose_ms:.1f} + {costs.score_ms:.1f} ms",
        f"propose + score of {num_tokens} tokens; medians of {costs.plain_steps} steps and {costs.drafting_rounds} rounds, "
        f"{PASSES} passes in turn, one request",
        **values,
    )
    return [measured, break_even_finding(costs.ratio, num_tokens)]


def break_even_finding(ratio: float, num_tokens: int) -> Finding:
    """Say from which acceptance on drafting is faster than plain steps."""
    acceptance = break_even(ratio, num_tokens)
    values = {"cost_ratio": ratio, "acceptance": acceptance}
    costs = f"a round costs {ratio:.2f} plain steps"
    if acceptance is None:
        why = f"{costs} and gives at most {num_tokens + 1} tokens: it cannot pay for one request at a time"
        return say.warn("break-even", "none up to 1", why, **values)
    why = f"{costs}, so {max(0.0, ratio - 1):.2f} accepted tokens per round pay for it"
    return say.fine("break-even", f"acceptance {acceptance:.2f}", why, **values)


def _rows(model: PreTrainedModel) -> int:
    head: Any = cast(Any, model).get_output_embeddings()
    return int(head.weight.shape[0])
