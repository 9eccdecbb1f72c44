"""One finding of `draftproof check` each: from facts to fine, warn or refuse, with one reason. Loads and runs nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftproof.decoding.model import SLIDING, layer_kinds
from draftproof.decoding.proposers.pieces import shared_tokens, token_pieces
from draftproof.engines.load import tokenizers_differ
from draftproof.engines.memory_plan import MemoryPlan, mib
from draftproof.engines.prompts import eos_token_ids
from draftproof.errors import DraftproofError

Status = Literal["fine", "warn", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    What was looked at, what was found, and what it means for the study.

    Attributes
    ----------
    finding, result, why : str
    status : {"fine", "warn", "refuse"}
    values : dict
        The numbers behind the result, with units in their names.
    """

    finding: str
    result: str
    status: Status
    why: str
    values: dict[str, Any] = field(default_factory=dict)


def fine(finding: str, result: str, why: str, **values: Any) -> Finding:
    """Nothing stands against the study."""
    return Finding(finding=finding, result=result, status="fine", why=why, values=values)


def warn(finding: str, result: str, why: str, **values: Any) -> Finding:
    """The study can run, and its user should know."""
    return Finding(finding=finding, result=result, status="warn", why=why, values=values)


def refuse(finding: str, result: str, why: str, **values: Any) -> Finding:
    """The study cannot run, or would prove nothing."""
    return Finding(finding=finding, result=result, status="refuse", why=why, values=values)


def refused(finding: str, result: str, error: DraftproofError) -> Finding:
    """What an error says, as a finding."""
    return refuse(finding, result, str(error))


def not_applicable(finding: str, why: str) -> Finding:
    """There is nothing to look at."""
    return fine(finding, "not applicable", why)


def model_finding(role: str, model: PreTrainedModel) -> Finding:
    """Name a model that was found."""
    layers, dtype = model.config.num_hidden_layers, str(model.dtype).removeprefix("torch.")
    return fine(
        role, f"{type(model).__name__}, {layers} layers, {dtype}", "its files are there, and it is a causal decoder"
    )


def tokenizer_finding(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase | None) -> Finding:
    """A draft model must spell every id as the target does."""
    if draft is None:
        return not_applicable("tokenizer", "only a draft model has one of its own")
    difference = tokenizers_differ(target, draft)
    if difference:
        return refuse(
            "tokenizer", "differs", f"{difference} (target, draft); the draft must have the target's tokenizer"
        )
    return fine("tokenizer", "equal", f"all {min(len(target), len(draft))} ids are spelt alike by target and draft")


def shared_vocabulary(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase | None) -> Finding:
    """A draft with another vocabulary proposes the tokens that both have."""
    try:
        pieces = [token_pieces(tokenizer) for tokenizer in (target, draft)]
        shared = len(shared_tokens(*pieces))
    except DraftproofError as error:
        return refused("tokenizer", "shares too little", error)
    why = f"of {len(pieces[0])} (target) and {len(pieces[1])} (draft); only these are proposed"
    return fine("tokenizer", f"{shared} tokens shared", why, shared=shared)


def special_tokens(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draft: PreTrainedModel | None,
    draft_tokenizer: PreTrainedTokenizerBase | None,
) -> Finding:
    """Requests need an end, and a draft that knows another one proposes beyond it."""
    ends = eos_token_ids(target, tokenizer)
    result = f"ends: {', '.join(map(str, sorted(ends))) or 'none'}"
    if not ends:
        return warn("special tokens", result, "no end of sequence is named, so every request runs to max_tokens")
    if draft is not None and draft_tokenizer is not None:
        others = eos_token_ids(draft, draft_tokenizer)
        if others != ends:
            return warn(
                "special tokens",
                result,
                f"the draft's ends are {', '.join(map(str, sorted(others))) or 'none'}: its guesses near an end are worth "
                "less; the output stays the target's",
            )
    return fine("special tokens", result, "they end a request, unless it ignores them")


def vocabulary(rows: int, tokenizer: PreTrainedTokenizerBase, draft_rows: int | None) -> Finding:
    """Ids that a model has rows for, and ids that the tokenizer writes."""
    result = f"{rows} rows, {len(tokenizer)} ids"
    if len(tokenizer) > rows:
        return warn("vocabulary", result, f"ids from {rows} on have no row: a prompt with one of them is refused")
    if draft_rows is not None and draft_rows != rows:
        return fine("vocabulary", f"{result}, draft {draft_rows} rows", "ids that one model lacks are never proposed")
    padding = rows - len(tokenizer)
    return fine(
        "vocabulary", result, f"{padding} rows are padding" if padding else "every id has a row, and no row is padding"
    )


def chat_template(tokenizer: PreTrainedTokenizerBase) -> Finding:
    """A study's prompts are chat messages."""
    if getattr(tokenizer, "chat_template", None):
        return fine("chat template", "present", "prompts are put through it as a user's message")
    return refuse("chat template", "missing", "a study's prompts are chat messages; give the tokenizer a chat_template")


def context(lengths: Mapping[str, int], max_tokens: int, limit: int, draft_limit: int | None = None) -> Finding:
    """
    Compare prompts with the context limit.

    Parameters
    ----------
    lengths : mapping of prompt id to tokens
    """
    name, longest = max(lengths.items(), key=lambda item: item[1])
    result = f"{longest} + {max_tokens} of {limit} tokens"
    values = {"longest_prompt_tokens": longest, "max_tokens": max_tokens, "limit_tokens": limit}
    if longest >= limit:
        return refuse(
            "context", result, f"prompt '{name}' leaves no room for a token; shorten it or raise max_len", **values
        )
    if longest + max_tokens > limit:
        why = f"the answer to prompt '{name}' ends at the limit, after {limit - longest} tokens"
        return warn("context", result, why, **values)
    if draft_limit is not None and draft_limit < longest + max_tokens:
        return warn(
            "context", result, f"beyond {draft_limit} tokens the draft has no positions: target-only there", **values
        )
    return fine("context", result, f"the longest prompt ('{name}') and its answer have room", **values)


def cache_kind(model: PreTrainedModel, draft: PreTrainedModel | None) -> Finding:
    """Say whether the models' state can be rolled back by length."""
    try:
        kinds = layer_kinds(model)
        if draft is not None:
            layer_kinds(draft)
    except DraftproofError as error:
        return refused("cache", "not by length", error)
    sliding = kinds.count(SLIDING)
    result = f"{len(kinds) - sliding} full, {sliding} sliding" if sliding else f"{len(kinds)} full"
    return fine("cache", result, "every column is kept, so rejected tokens are taken back by length")


def memory(plan: MemoryPlan, name: str) -> Finding:
    """Say whether a plan fits."""
    result = f"{mib(plan.total)} of {mib(plan.available.num_bytes)}"
    values = {**plan.parts, "working_estimate": plan.working, "available": plan.available.num_bytes}
    numbers = {f"{key}_bytes": value for key, value in values.items()}
    try:
        plan.require_fit(name)
    except DraftproofError as error:
        return refuse("memory", result, str(error), **numbers)
    return fine("memory", result, f"{plan.describe()}; {plan.available.whose}", **numbers)
