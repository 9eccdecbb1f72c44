"""From a plan to what it names: the engine, the proposer, the design of the sampled check. Runs nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from draftproof.engines.base import EngineProtocol
from draftproof.engines.hf import HfEngine
from draftproof.engines.launch import Attached, Launch, Launched
from draftproof.engines.native import Engine
from draftproof.engines.openai_http import HttpEngine
from draftproof.engines.resolve import resolve
from draftproof.engines.scripted import ScriptedEngine
from draftproof.errors import PlanError, PromptError
from draftproof.measure.run import as_chat
from draftproof.proposers import CrossTokenizer, DraftModel, EarlyExit, PromptLookup, Proposer
from draftproof.request import Prompt
from draftproof.study.plan import Plan
from draftproof.study.progress import Progress
from draftproof.verify.controls import Control, Parts
from draftproof.workload.prompts import WorkloadPrompt

DEFAULT_MAX_LEN = 1024


def open_engine(plan: Plan, progress: Progress, plant: Control | None = None) -> EngineProtocol:
    """
    Load the engine that a plan names, with a control planted in it if one is given; sets the number of its threads.

    Raises
    ------
    ModelError, ServerError, InputError
        The model or the server is missing or cannot be used, or a value does not fit it.
    PlanError
        The engine's parts cannot be replaced, or it runs another rule, so that nothing can be planted.
    """
    table, speculation = plan.engine, plan.speculation
    if table.threads != "auto":
        torch.set_num_threads(table.threads)
    parts = {} if plant is None else _planted(plan, plant)
    max_len = max_len_of(plan)
    if table.kind == "openai_http":
        return HttpEngine.connect(
            _servers(plan, progress),
            target=table.target,
            server=table.server,
            max_batch=max(plan.workload.concurrency),
            max_len=max_len,
            timeout_s=table.timeout_s,
            samples=plan.sampling.temperature > 0 or plan.policy.require_sampled,
            progress=progress.say,
        )
    if table.kind == "hf":
        return HfEngine.from_pretrained(
            table.target,
            num_speculative_tokens=speculation.num_speculative_tokens,
            prompt_lookup_max=speculation.prompt_lookup_max,
            dtype=table.dtype,
            device=table.device,
            max_len=max_len,
            draft=speculation.draft,
            cross_tokenizer=speculation.proposer == "cross-tokenizer",
            exit_layer=speculation.exit_layer,
            progress=progress.say,
        )
    if table.kind == "scripted":
        return ScriptedEngine(
            table.script,
            num_speculative_tokens=speculation.num_speculative_tokens,
            max_batch=max(plan.workload.concurrency),
            max_len=max_len,
            **{"proposer": make_proposer(plan), **parts},
        )
    return Engine.from_pretrained(
        table.target,
        dtype=table.dtype,
        device=table.device,
        progress=progress.say,
        num_speculative_tokens=speculation.num_speculative_tokens,
        max_batch=max(plan.workload.concurrency),
        max_len=max_len,
        numerics=table.numerics,
        verification=speculation.verification,
        **{"proposer": make_proposer(plan), **parts},
    )


def _planted(plan: Plan, plant: Control) -> dict[str, Any]:
    if plan.engine.kind != "native" and (plan.engine.kind != "scripted" or plant.part == "take_back"):
        raise PlanError(f"'{plant.name}' cannot be planted in engine '{plan.engine.kind}'; allowed: native")
    if plan.speculation.verification == "coupled":
        raise PlanError(
            f"'{plant.name}' changes the rejection rule; set verification = \"rejection\" under [speculation] to plant it"
        )
    if plant.needs_draft_law and plan.speculation.proposer == "prompt-lookup":
        raise PlanError(
            f"'{plant.name}' changes how a draft is drawn or reported, and prompt lookup draws none, so nothing would be planted; "
            "choose another proposer, or a control of the accept rule"
        )
    return {plant.part: getattr(plant.plant(Parts(proposer=make_proposer(plan))), plant.part)}


def max_len_of(plan: Plan) -> int:
    """Return the longest sequence that a plan asks for, before the model's own limit."""
    return DEFAULT_MAX_LEN if plan.engine.max_len == "auto" else plan.engine.max_len


def encode_prompts(encode: Callable[[Prompt], list[int]], prompts: Sequence[WorkloadPrompt]) -> dict[str, list[int]]:
    """
    Return the token ids of each prompt, by its id.

    Raises
    ------
    PromptError
        One cannot be used; the message names it.
    """
    encoded: dict[str, list[int]] = {}
    for prompt in prompts:
        try:
            encoded[prompt.id] = encode(as_chat(prompt))
        except PromptError as error:
            raise PromptError(f"prompt '{prompt.id}': {error}") from None
    return encoded


def _servers(plan: Plan, progress: Progress) -> Attached | Launched:
    table = plan.engine
    if table.launch is None:
        return Attached(table.base_url or "", table.speculative_base_url)
    launch = Launch(**table.launch.model_dump())
    named = any("{target}" in part for part in (*launch.target_only, *launch.speculative))
    return Launched(launch, progress.say, str(resolve(table.target, progress.say)) if named else "")


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
