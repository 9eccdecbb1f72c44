"""What a request says in a server's own words. Sends nothing."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from draftproof.engines.http.dialects import Dialect, Json, put
from draftproof.engines.prompts import PLAIN, refuse
from draftproof.errors import InputError, PromptError
from draftproof.request import SamplingParams

# a server that is not told these takes its own defaults, or its model's
STATED = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "ignore_eos",
)


def require_honoured(dialect: Dialect, params: SamplingParams) -> None:
    """
    See that a server would ignore nothing that a request asks for.

    Raises
    ------
    InputError
        It would; the message names what.
    """
    refuse(params, frozenset(PLAIN) - dialect.names.keys(), dialect.name)
    if params.seed >= dialect.max_seed:
        raise InputError(
            f"seed = {params.seed}: a {dialect.name} server takes seeds below {dialect.max_seed}; lower it"
        )


def completion_body(
    dialect: Dialect,
    model: str,
    prompt: Sequence[int] | str,
    params: SamplingParams,
    *,
    speculate: bool,
    switched_off: bool,
) -> Json:
    """
    Return the body that asks for a streamed completion.

    Parameters
    ----------
    prompt : token ids, or text where the server takes no ids
    speculate : bool
        Which arm asks.
    switched_off : bool
        Whether this server's speculation is to be turned off for this request.
    """
    body: Json = {"model": model, dialect.prompt: list(prompt) if dialect.takes_token_ids else prompt}
    put(body, dialect.always)
    for name, ask in dialect.names.items():
        value = getattr(params, name)
        if name in STATED or value != PLAIN[name]:
            put(body, {ask: value} if isinstance(ask, str) else ask(value))
    if dialect.logprobs_of and params.logprobs and params.allowed_token_ids and not speculate:
        put(body, {dialect.logprobs_of: params.allowed_token_ids})
    if switched_off:
        put(body, dialect.switch_off or {})
    return body


def scoring_body(dialect: Dialect, model: str, token_ids: Sequence[int], start: int, num_top: int) -> Json:
    """Return the body that asks for the log-probabilities of a prompt's own tokens, from one of them on."""
    assert dialect.scored is not None
    body: Json = {"model": model, dialect.prompt: list(token_ids)}
    put(body, dialect.always)
    put(body, dialect.scored(num_top, start))
    return body


def as_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """
    Return a text that the tokenizer turns into just these ids.

    Raises
    ------
    PromptError
        There is none.
    """
    spelt: Any = tokenizer
    # the second without what a tokenizer puts before every text
    for start in (0, 1):
        text: str = spelt.decode(list(token_ids[start:]), skip_special_tokens=False)
        if list(spelt(text)["input_ids"]) == list(token_ids):
            return text
    raise PromptError(
        "a prompt's token ids are no text of this tokenizer, and this server takes only text; give the prompt as text"
    )
