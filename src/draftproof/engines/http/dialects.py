"""
What each server is called, asked and answers: one row each, so that nothing else has to know which one it is. Sends nothing.

A path such as ``"choices/0/text"`` names a place in JSON: keys and list indices, one after the other.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftproof.request import FinishReason

Json = dict[str, Any]
Ask = str | Callable[[Any], Mapping[str, Any]]
OnToken = tuple[float, dict[int, float]]
"""A token's log-probability, and those of the likeliest tokens at its place."""

OPENAI_TEXT = (
    "choices/0/text",
    "choices/0/delta/content",
    "choices/0/delta/reasoning_content",
    "choices/0/delta/reasoning",
)
OPENAI_ENDS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
OPENAI_OTHERS = ("choices/0/index", "choices/1")
UINT32, INT64, UINT64 = 2**32 - 1, 2**63, 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """
    One kind of server.

    Attributes
    ----------
    name : str
    path : str
        Where a completion is streamed from.
    owner : str or None
        What ``/v1/models`` calls its owner.
    facts, sign : str or None
        Where the server describes itself, and a path that only its description has.
    version, max_len : str or None
        Paths in ``{"models": ..., "facts": ...}``, the two answers.
    prompt : str
        Where the prompt goes; as token ids if ``takes_token_ids``, else as text.
    names : mapping of SamplingParams' name to a path, or to a function of the value that gives paths and values
        What is not here is refused. A value of None is left out.
    always : mapping of path to value
        Sent with every request.
    switch_off : mapping of path to value, or None
        What turns speculation off for one request. None: the server has no such switch.
    max_seed : int
        Seeds are below it.
    text : tuple of paths
        The first that is there is the event's text.
    final_text : str or None
        The whole text, in the last event.
    token_ids : str or None
        The event's token ids (or one id). None: the server reports none.
    num_tokens : str or None
        Tokens so far. An event with as many ids holds all of them, not only the new ones; one with fewer than are new may have
        left out the first of these.
    others : tuple of paths
        What stands there, and is not 0, belongs to another completion than the one that was asked for.
    hidden : str or None
        Whether the event's text is a special token's, which the output lacks.
    finish : str
    ends : mapping of what stands there to our finish reason
    usage, prompt_usage : str
        Tokens generated, and tokens of the prompt, as the server counted them.
    logprobs : callable or None
        From an event to one `OnToken` for each of its tokens.
    logprobs_of : str or None
        Where allowed tokens go, so that they are reported and not the likeliest of all; of the target-only arm (vLLM 0.32.0 fails
        on it with speculation).
    speculation : mapping of SpeculationMetrics' name to paths
        Counts of one request.
    counters : mapping of SpeculationMetrics' name to the name in ``/metrics``
        Counts of the whole server since it started.
    finished, running : str
        Requests that have ended, and that run, in ``/metrics``; empty where that is not counted.
    scored : callable or None
        From (number of likeliest tokens, first place) to what asks for the log-probabilities of a prompt's own tokens, as a
        mapping of path to value. None where it cannot be asked.
    prompt_logprobs : callable or None
        From that answer to one `OnToken` (or None) for each token of the prompt.
    """

    name: str
    path: str
    owner: str | None = None
    facts: str | None = None
    sign: str | None = None
    version: str | None = None
    max_len: str | None = None
    prompt: str
    takes_token_ids: bool
    names: Mapping[str, Ask]
    always: Mapping[str, Any]
    switch_off: Mapping[str, Any] | None = None
    max_seed: int
    text: tuple[str, ...]
    final_text: str | None = None
    token_ids: str | None
    num_tokens: str | None = None
    others: tuple[str, ...] = ()
    hidden: str | None = None
    finish: str
    ends: Mapping[str, FinishReason]
    usage: str
    prompt_usage: str
    logprobs: Callable[[Json], list[OnToken]] | None = None
    logprobs_of: str | None = None
    speculation: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counters: Mapping[str, str] = field(default_factory=dict)
    finished: str = ""
    running: str = ""
    scored: Callable[[int, int], Mapping[str, Any]] | None = None
    prompt_logprobs: Callable[[Json], list[OnToken | None]] | None = None


def look(value: Any, path: str | None) -> Any:
    """Return what stands at a path, or None where there is nothing."""
    for key in path.split("/") if path else ():
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict):
            value = value.get(key)
        else:
            return None
    return value if path else None


def put(body: Json, values: Mapping[str, Any]) -> None:
    """Put values at their paths, and make the tables on the way; None takes away what stands there."""
    for path, value in values.items():
        *tables, last = path.split("/")
        table = body
        for name in tables:
            table = table.setdefault(name, {})
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value


def _vllm_logprobs(event: Json) -> list[OnToken]:
    part = look(event, "choices/0/logprobs") or {}
    tops = part.get("top_logprobs") or [{}] * len(part.get("token_logprobs") or ())
    return [
        (own, {_token_id(name): value for name, value in (top or {}).items()})
        for own, top in zip(part.get("token_logprobs") or (), tops, strict=True)
    ]


def _token_id(name: str) -> int:
    return int(name.removeprefix("token_id:"))


def _vllm_prompt(answer: Json) -> list[OnToken | None]:
    # the prompt's own token is named first, and the likeliest ones have ranks
    found: list[OnToken | None] = []
    for place in look(answer, "choices/0/prompt_logprobs") or ():
        values = {int(name): item["logprob"] for name, item in (place or {}).items()}
        found.append((next(iter(values.values())), values) if values else None)
    return found


def _sglang_logprobs(event: Json) -> list[OnToken]:
    return _sglang_places(event, "output_token_logprobs", "output_top_logprobs")


def _sglang_prompt(answer: Json) -> list[OnToken | None]:
    places = _sglang_places(answer, "input_token_logprobs", "input_top_logprobs")
    return [None if own is None else (own, top) for own, top in places]


def _sglang_places(event: Json, own: str, top: str) -> list[OnToken]:
    meta = event.get("meta_info") or {}
    owns: Sequence[Sequence[Any]] = meta.get(own) or ()
    tops: Sequence[Sequence[Any]] = meta.get(top) or [()] * len(owns)
    return [(one[0], {item[1]: item[0] for item in many or ()}) for one, many in zip(owns, tops, strict=True)]


def _tgi_logprobs(event: Json) -> list[OnToken]:
    if look(event, "token/logprob") is None:
        return []
    return [(event["token"]["logprob"], {item["id"]: item["logprob"] for item in event.get("top_tokens") or ()})]


def _llamacpp_logprobs(event: Json) -> list[OnToken]:
    return [
        (place["logprob"], {item["id"]: item["logprob"] for item in place.get("top_logprobs") or ()})
        for place in event.get("completion_probabilities") or ()
    ]


def _same(*names: str, inside: str = "") -> dict[str, Ask]:
    return {name: inside + name for name in names}


VLLM = Dialect(
    name="vllm",
    path="/v1/completions",
    owner="vllm",
    facts="/version",
    version="facts/version",
    max_len="models/data/0/max_model_len",
    prompt="prompt",
    takes_token_ids=True,
    names={
        **_same("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
        **_same("frequency_penalty", "logit_bias", "seed", "min_tokens", "stop", "stop_token_ids", "ignore_eos"),
        **_same("allowed_token_ids", "logprobs"),
        "regex": "structured_outputs/regex",
        "json_schema": "structured_outputs/json",
    },
    always={
        "stream": True,
        "stream_options/include_usage": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    },
    max_seed=INT64,
    text=OPENAI_TEXT,
    token_ids="choices/0/token_ids",
    others=OPENAI_OTHERS,
    finish="choices/0/finish_reason",
    ends=OPENAI_ENDS,
    usage="usage/completion_tokens",
    prompt_usage="usage/prompt_tokens",
    logprobs=_vllm_logprobs,
    logprobs_of="logprob_token_ids",
    speculation={
        name: (f"metrics/speculative_decoding/{name}",)
        for name in (
            "num_spec_steps",
            "num_draft_tokens",
            "num_accepted_draft_tokens",
            "acceptance_histogram",
            "num_spec_tokens",
        )
    },
    counters={
        "num_spec_steps": "vllm:spec_decode_num_drafts_total",
        "num_draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
        "num_accepted_draft_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    },
    finished="vllm:request_success_total",
    running="vllm:num_requests_running",
    scored=lambda num_top, start: {
        "stream": False,
        "stream_options": None,
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": num_top,
    },
    prompt_logprobs=_vllm_prompt,
)

SGLANG = Dialect(
    name="sglang",
    path="/generate",
    owner="sglang",
    facts="/get_server_info",
    version="facts/version",
    max_len="models/data/0/max_model_len",
    prompt="input_ids",
    takes_token_ids=True,
    names={
        "max_tokens": "sampling_params/max_new_tokens",
        "top_k": lambda k: {"sampling_params/top_k": k or -1},
        "seed": "sampling_params/sampling_seed",
        "min_tokens": "sampling_params/min_new_tokens",
        "json_schema": lambda schema: {"sampling_params/json_schema": json.dumps(schema)},
        "logprobs": lambda num: {"return_logprob": True, "top_logprobs_num": num},
        **_same("temperature", "top_p", "min_p", "repetition_penalty", inside="sampling_params/"),
        **_same("presence_penalty", "frequency_penalty", "logit_bias", inside="sampling_params/"),
        **_same("stop", "stop_token_ids", "ignore_eos", "regex", inside="sampling_params/"),
    },
    always={"stream": True},
    max_seed=INT64,
    text=("text",),
    token_ids="output_ids",
    num_tokens="meta_info/completion_tokens",
    finish="meta_info/finish_reason/type",
    ends=OPENAI_ENDS,
    usage="meta_info/completion_tokens",
    prompt_usage="meta_info/prompt_tokens",
    logprobs=_sglang_logprobs,
    speculation={
        "num_spec_steps": ("meta_info/spec_verify_ct",),
        "num_draft_tokens": ("meta_info/spec_num_proposed_drafts", "meta_info/spec_proposed_drafts"),
        "num_accepted_draft_tokens": ("meta_info/spec_num_correct_drafts", "meta_info/spec_accepted_drafts"),
        "acceptance_histogram": ("meta_info/spec_correct_drafts_histogram", "meta_info/spec_accept_histogram"),
    },
    counters={"num_spec_steps": "sglang:spec_verify_calls_total"},
    finished="sglang:num_requests_total",
    running="sglang:num_running_reqs",
    scored=lambda num_top, start: {
        "stream": False,
        "sampling_params/max_new_tokens": 1,
        "sampling_params/temperature": 0.0,
        "return_logprob": True,
        # the first one that is asked for may come without a value
        "logprob_start_len": max(0, start - 1),
        "top_logprobs_num": num_top,
    },
    prompt_logprobs=_sglang_prompt,
)

TGI = Dialect(
    name="tgi",
    path="/generate_stream",
    facts="/info",
    sign="max_total_tokens",
    version="facts/version",
    max_len="facts/max_total_tokens",
    prompt="inputs",
    takes_token_ids=False,
    names={
        "max_tokens": "parameters/max_new_tokens",
        "temperature": lambda value: {"parameters/do_sample": value > 0, "parameters/temperature": value or None},
        "top_k": lambda k: {"parameters/top_k": k or None},
        "top_p": lambda p: {"parameters/top_p": p if p < 1 else None},
        "repetition_penalty": lambda value: {"parameters/repetition_penalty": None if value == 1 else value},
        # none is not 0, and 0 is not taken
        "seed": lambda seed: {"parameters/seed": seed + 1},
        "stop": "parameters/stop",
        "logprobs": lambda num: {"parameters/top_n_tokens": num or None},
        "regex": lambda text: {"parameters/grammar": {"type": "regex", "value": text}},
        "json_schema": lambda schema: {"parameters/grammar": {"type": "json", "value": schema}},
    },
    always={"stream": True, "parameters/details": True, "parameters/return_full_text": False},
    max_seed=UINT64 - 1,
    text=("token/text",),
    final_text="generated_text",
    token_ids="token/id",
    hidden="token/special",
    finish="details/finish_reason",
    ends={"length": "length", "eos_token": "stop", "stop_sequence": "stop"},
    usage="details/generated_tokens",
    prompt_usage="details/input_length",
    logprobs=_tgi_logprobs,
    # forward passes that a request did without are its accepted draft tokens
    counters={"num_accepted_draft_tokens": "tgi_request_skipped_tokens_sum"},
    finished="tgi_request_skipped_tokens_count",
)

LLAMACPP = Dialect(
    name="llamacpp",
    path="/completion",
    owner="llamacpp",
    facts="/props",
    sign="default_generation_settings",
    version="facts/build_info",
    max_len="facts/default_generation_settings/n_ctx",
    prompt="prompt",
    takes_token_ids=True,
    names={
        "max_tokens": "n_predict",
        "repetition_penalty": "repeat_penalty",
        "logit_bias": lambda bias: {"logit_bias": [[token_id, value] for token_id, value in bias.items()]},
        "logprobs": lambda num: {"n_probs": max(1, num)},
        **_same("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "seed"),
        **_same("stop", "ignore_eos", "json_schema"),
    },
    always={
        "stream": True,
        "return_tokens": True,
        # a reused prefix makes passes of other widths, and so another rounding
        "cache_prompt": False,
        "repeat_last_n": -1,
        # our order; the server's own has the temperature last
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
    },
    switch_off={"speculative.n_max": 0},
    max_seed=UINT32,
    text=("content",),
    token_ids="tokens",
    num_tokens="tokens_predicted",
    others=("index",),
    finish="stop_type",
    ends={"limit": "length", "eos": "stop", "word": "stop"},
    usage="tokens_predicted",
    prompt_usage="tokens_evaluated",
    logprobs=_llamacpp_logprobs,
    speculation={
        "num_draft_tokens": ("timings/draft_n",),
        "num_accepted_draft_tokens": ("timings/draft_n_accepted",),
    },
    counters={
        "num_spec_steps": "llamacpp:spec_decode_num_drafts_total",
        "num_draft_tokens": "llamacpp:spec_decode_num_draft_tokens_total",
        "num_accepted_draft_tokens": "llamacpp:spec_decode_num_accepted_tokens_total",
    },
    running="llamacpp:requests_processing",
)

OPENAI = Dialect(
    name="openai",
    path="/v1/completions",
    prompt="prompt",
    takes_token_ids=False,
    names=_same(
        "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop"
    ),
    always={"stream": True, "stream_options/include_usage": True},
    max_seed=INT64,
    text=OPENAI_TEXT,
    token_ids=None,
    others=OPENAI_OTHERS,
    finish="choices/0/finish_reason",
    ends=OPENAI_ENDS,
    usage="usage/completion_tokens",
    prompt_usage="usage/prompt_tokens",
)

DIALECTS = {row.name: row for row in (VLLM, SGLANG, TGI, LLAMACPP, OPENAI)}
