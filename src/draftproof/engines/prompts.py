"""From what a request says to what a decoder needs: its parameters, token ids, text and end. Runs no model."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftproof.decoding.stopping import StopRule
from draftproof.errors import InputError, PromptError
from draftproof.request import Prompt, SamplingParams

PLAIN = SamplingParams().model_dump()
ENGINE_SPECIFIC = frozenset(
    {
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "bad_words_ids",
        "min_tokens",
        "n",
        "logits_processors",
        "logprobs",
        "logprobs_mode",
        "regex",
        "json_schema",
    }
)


def refuse(params: SamplingParams, unsupported: frozenset[str], engine: str) -> None:
    """
    See that a request asks for nothing that an engine would ignore.

    Raises
    ------
    InputError
        It does; the message names what.
    """
    asked = [name for name in sorted(unsupported) if getattr(params, name) != PLAIN[name]]
    if asked:
        raise InputError(
            f"{', '.join(asked)} cannot be honoured by engine '{engine}'; leave out, or use another engine"
        )


def require_params(params: object) -> None:
    """
    See that a request's parameters are `SamplingParams`.

    Raises
    ------
    InputError
        They are not.
    """
    if not isinstance(params, SamplingParams):
        raise InputError(f"sampling parameters of type {type(params).__name__}; give SamplingParams(...)")


def pair_with_params(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams], vocab_size: int
) -> list[tuple[Prompt, SamplingParams]]:
    """
    Return each prompt with its own parameters.

    Parameters
    ----------
    params : SamplingParams, or one for each prompt
    vocab_size : int
        Ids that the model has.

    Raises
    ------
    PromptError
        The prompts are no list.
    InputError
        There is not one set of parameters for each prompt, or a token id in them is not in the vocabulary.
    """
    if isinstance(prompts, str) or not isinstance(prompts, Sequence | np.ndarray):
        got = "one string" if isinstance(prompts, str) else f"of type {type(prompts).__name__}"
        raise PromptError(f"prompts is {got}; give a list of prompts")
    # anything but a sequence is one for all, and seen to below
    each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
    if len(each) != len(prompts):
        raise InputError(f"{len(each)} sampling parameters for {len(prompts)} prompts; give one, or one for each")
    for item in each:
        require_params(item)
        named = {
            "allowed_token_ids": item.allowed_token_ids or (),
            "logit_bias": item.logit_bias,
            "bad_words_ids": [token_id for word in item.bad_words_ids for token_id in word],
            "stop_token_ids": item.stop_token_ids,
        }
        for name, token_ids in named.items():
            if max(token_ids, default=0) >= vocab_size:
                raise InputError(f"{name} holds {max(token_ids)}; the model's vocabulary is 0..{vocab_size - 1}")
    return list(zip(prompts, each, strict=True))


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, vocab_size: int, max_len: int) -> list[int]:
    """
    Return the token ids of a prompt.

    Parameters
    ----------
    prompt : str, chat messages or token ids
        Chat messages go through the tokenizer's template, up to where the assistant's answer begins.
    vocab_size : int
        Ids that the model has.
    max_len : int
        Longest sequence in tokens, prompt included.

    Raises
    ------
    PromptError
        It is empty, holds an id that the model does not have, or leaves no room for a token.
    """
    if isinstance(prompt, str):
        token_ids = list(tokenizer(prompt)["input_ids"])
    elif isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], dict):
        messages = cast(list[dict[str, str]], list(prompt))
        try:
            token_ids = list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
        except (ValueError, KeyError, TypeError, TemplateError) as error:
            raise PromptError(
                f"a chat prompt does not fit the tokenizer's template ({' '.join(str(error).split())}); give text or token ids"
            ) from None
    else:
        if (
            isinstance(prompt, bytes | bytearray)
            or not isinstance(prompt, Sequence | np.ndarray)
            or not all(isinstance(token_id, int | np.integer) and not isinstance(token_id, bool) for token_id in prompt)
        ):
            raise PromptError(
                "a prompt is neither text, chat messages nor a list of token ids; give one of them for each prompt"
            )
        token_ids = [int(cast(int, token_id)) for token_id in prompt]
    if not token_ids:
        raise PromptError("a prompt has no tokens; give at least one")
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        raise PromptError(f"a prompt holds an id outside 0..{vocab_size - 1}, the model's vocabulary")
    if len(token_ids) >= max_len:
        raise PromptError(
            f"a prompt has {len(token_ids)} tokens and the context limit is {max_len}; shorten it or raise max_len"
        )
    return token_ids


def decode_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Return the text of token ids, without special tokens."""
    return cast(str, tokenizer.decode(list(token_ids), skip_special_tokens=True))


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ends that the model's generation config and the tokenizer name; some say -1 where they have none."""
    config = getattr(model, "generation_config", None)
    named = getattr(config, "eos_token_id", None)
    ids = set(named if isinstance(named, list) else [named])
    ids.add(getattr(tokenizer, "eos_token_id", None))
    return frozenset(token_id for token_id in ids if token_id is not None and token_id >= 0)


def stop_rule(
    tokenizer: PreTrainedTokenizerBase, params: SamplingParams, *, eos: frozenset[int], room: int
) -> StopRule:
    """
    Return where a request ends.

    Parameters
    ----------
    eos : frozenset of int
        The model's ends, for a request that does not ignore them.
    room : int, 1 or more
        Tokens between the prompt and the context limit.

    Raises
    ------
    InputError
        A stop string is in part a special token.
    """
    ends = frozenset(params.stop_token_ids) | _special_stops(tokenizer, params.stop)
    return StopRule(
        max_tokens=min(params.max_tokens, room),
        end_token_ids=ends | (frozenset() if params.ignore_eos else eos),
        min_tokens=params.min_tokens,
        stop=params.stop,
        decode=partial(decode_text, tokenizer),
    )


def _special_stops(tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> frozenset[int]:
    """Return the special tokens among stop strings: they are no text, so they cannot be found there."""
    found: set[int] = set()
    added = getattr(tokenizer, "added_tokens_decoder", {}) if stops else {}
    for token_id, token in added.items():
        for stop in stops:
            if token.special and token.content == stop:
                found.add(token_id)
            elif token.special and token.content in stop:
                raise InputError(
                    f"stop = {stop!r} holds the special token {token.content!r}, which is no text; give that token alone"
                )
    return frozenset(found)
