"""
What `generate` is told for each way of drafting, and what it cannot do in it: one row each. Runs no request.

From transformers' own source, version 5.24. Other versions may do more or less; what is told here is checked by
tests/engines/test_assisted.py against the installed one.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedTokenizerBase

from draftproof.errors import ModelError

Options = Mapping[str, Any]
# transformers leaves its constructor untyped
CONFIG: Any = GenerationConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """
    What drafts.

    Attributes
    ----------
    num_speculative_tokens : int
        K. With another tokenizer these are tokens of the draft, which may be more or fewer of the target.
    prompt_lookup_max : int
    exit_layer : int or None
    model, tokenizer : the draft model's, or None
    target_tokenizer : PreTrainedTokenizerBase
    """

    num_speculative_tokens: int
    prompt_lookup_max: int
    exit_layer: int | None
    model: Any
    tokenizer: PreTrainedTokenizerBase | None
    target_tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """
    A way of drafting.

    Attributes
    ----------
    config : callable
        Fields of a request's `GenerationConfig`.
    arguments : callable
        Arguments of `generate` beside it.
    changes_draft : bool
        Whether `generate` puts other modules into the draft for a request that samples, which others would then find there.
    misfit : callable
        From the target and the drafter to why `generate` would not draft so, or None.
    refused : frozenset of str
        What a request may not ask for besides.
    """

    config: Callable[[Drafter], Options] = lambda drafter: {}
    arguments: Callable[[Drafter], Options] = lambda drafter: {}
    changes_draft: bool = False
    misfit: Callable[[Any, Drafter], str | None] = lambda target, drafter: None
    refused: frozenset[str] = frozenset()


def _other_rows(target: Any, drafter: Drafter) -> str | None:
    mine, other = _rows(target), _rows(drafter.model)
    if mine == other:
        return None
    return f"the draft has {other} rows and the target {mine}, which it takes for another tokenizer; use a draft with as many rows"


def _same_rows(target: Any, drafter: Drafter) -> str | None:
    if _rows(target) != _rows(drafter.model):
        return None
    return f"both have {_rows(target)} rows, which it takes for one tokenizer; use proposer 'draft-model', or another draft"


def _no_exit(target: Any, drafter: Drafter) -> str | None:
    layer, layers = drafter.exit_layer or 0, int(target.config.num_hidden_layers)
    if not 1 <= layer < layers:
        return f"early exit after layer {layer}: allowed 1 to {layers - 1} with this target"
    if _layers_run(target, layer) != layer:
        return "its code always runs all of its layers, so it has no early exit; use a draft model or prompt lookup"
    return None


WAYS: dict[str, Way] = {
    "prompt-lookup": Way(
        config=lambda drafter: {
            "prompt_lookup_num_tokens": drafter.num_speculative_tokens,
            "max_matching_ngram_size": drafter.prompt_lookup_max,
        }
    ),
    "draft-model": Way(arguments=lambda drafter: {"assistant_model": drafter.model}, misfit=_other_rows),
    "cross-tokenizer": Way(
        arguments=lambda drafter: {
            "assistant_model": drafter.model,
            "assistant_tokenizer": drafter.tokenizer,
            "tokenizer": drafter.target_tokenizer,
        },
        changes_draft=True,
        misfit=_same_rows,
        # the draft would be held to the target's ids, which are other tokens there
        refused=frozenset({"allowed_token_ids"}),
    ),
    "early-exit": Way(config=lambda drafter: {"assistant_early_exit": drafter.exit_layer}, misfit=_no_exit),
}


def way_of(draft: object, draft_tokenizer: object, exit_layer: int | None) -> str:
    """Name the way of drafting that these parts make."""
    if exit_layer is not None:
        return "early-exit"
    if draft is None:
        return "prompt-lookup"
    return "draft-model" if draft_tokenizer is None else "cross-tokenizer"


def require_fit(name: str, target: Any, drafter: Drafter) -> None:
    """
    See that `generate` drafts as it is told to.

    Raises
    ------
    ModelError
        It would not; the message names why.
    """
    misfit = WAYS[name].misfit(target, drafter)
    if misfit:
        raise ModelError(f"transformers does not draft by '{name}' for {type(target).__name__}: {misfit}")


def fixed_length(num_speculative_tokens: int) -> GenerationConfig:
    """Return a model's own config that drafts K tokens every round: the default changes K, and may end a draft early."""
    config: GenerationConfig = CONFIG(
        num_assistant_tokens=num_speculative_tokens,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    return config


def with_own_modules(model: Any) -> Any:
    """Return a model of its own modules on the same weights, so that others may be put into it."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def is_cut(model: Any, layers: int | None) -> bool:
    """Whether a pass of the model is one of its early exit."""
    return bool(getattr(_base(model).config, "num_hidden_layers", None) != layers)


@contextlib.contextmanager
def put_back(model: Any) -> Iterator[None]:
    """Give the model all of its layers again, which `generate` does not where a pass of an early exit fails."""
    config = _base(model).config
    layers = getattr(config, "num_hidden_layers", None)
    try:
        yield
    finally:
        if layers is not None:
            config.num_hidden_layers = layers


def _base(model: Any) -> Any:
    return getattr(model, model.base_model_prefix, model)


def _rows(model: Any) -> int:
    # what `generate` itself compares
    return int(model.config.get_text_config().vocab_size)


@torch.no_grad()
def _layers_run(model: Any, layer: int) -> int:
    """Return how many layers write keys when the model is cut as `generate` cuts it."""
    cache = cast(Any, DynamicCache())
    with put_back(model):
        _base(model).config.num_hidden_layers = layer
        model(torch.zeros(1, 1, dtype=torch.int64, device=model.device), cache=cache, use_cache=True)
    return len(cache.layers)
