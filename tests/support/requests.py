"""The judge of whole requests: everything that a request may ask for, one token at a time, without a cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from draftproof.request import FinishReason, SamplingParams
from draftproof.sampling.noise import KeyedNoise
from support.grammars import EOS, SPECIAL, Listed
from support.oracles import warpers

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Judged:
    """What a greedy or coupled request must become."""

    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[float]


class Penalties:
    """Presence and frequency, which transformers does not have: a plain count of what was generated."""

    def __init__(self, num_prompt: int, presence: float, frequency: float) -> None:
        self.num_prompt, self.presence, self.frequency = num_prompt, presence, frequency

    def __call__(self, input_ids, scores):
        scores, generated = scores.clone(), input_ids[0, self.num_prompt :].tolist()
        for token_id in set(generated):
            scores[0, token_id] -= self.presence + self.frequency * generated.count(token_id)
        return scores


def only(token_ids: Sequence[int]):
    def mask(input_ids, scores):
        kept = torch.full_like(scores, -torch.inf)
        kept[:, list(token_ids)] = scores[:, list(token_ids)]
        return kept

    return mask


def processors_of(params: SamplingParams, num_prompt: int, ends: set[int], texts: Sequence[str] | None) -> list[object]:
    """In the order that `SamplingParams` names; ``texts`` are all that match the request's regex or schema."""
    chain: list[object] = []
    if params.logit_bias:
        chain.append(SequenceBiasLogitsProcessor([[[token_id], bias] for token_id, bias in params.logit_bias.items()]))
    if params.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    chain.append(Penalties(num_prompt, params.presence_penalty, params.frequency_penalty))
    if params.bad_words_ids:
        chain.append(NoBadWordsLogitsProcessor([list(word) for word in params.bad_words_ids]))
    if params.min_tokens and ends:
        chain.append(MinNewTokensLengthLogitsProcessor(num_prompt, params.min_tokens, sorted(ends)))
    if params.allowed_token_ids:
        chain.append(only(params.allowed_token_ids))
    chain += params.logits_processors
    if texts is None:
        return chain
    # a stop token that is text follows the grammar like any other
    return [*chain, Listed(texts, num_prompt, sorted(end for end in ends if end == EOS or end >= SPECIAL))]


def judge_request(
    model,
    decode: Decode,
    prompt: list[int],
    params: SamplingParams,
    *,
    sample: int = 0,
    eos: frozenset[int] = frozenset(),
    max_len: int,
    texts: Sequence[str] | None = None,
) -> Judged:
    """REF of greedy and coupled requests."""
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else eos)
    chain = LogitsProcessorList(processors_of(params, len(prompt), ends, texts))
    sampling = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    tokens: list[int] = []
    logprobs: list[float] = []
    while True:
        ids = torch.tensor([prompt + tokens])
        with torch.inference_mode():
            raw = model(input_ids=ids, use_cache=False).logits[:, -1]
        try:
            scores = chain(ids, raw.clone())
        except RuntimeError:
            return Judged(tokens, "error", logprobs)
        if scores.isneginf().all():
            return Judged(tokens, "error", logprobs)
        if params.is_greedy:
            tokens.append(int(scores[0].argmax()))
            processed = 0.0
        else:
            scores = LogitsProcessorList(warpers(**sampling))(ids, scores)
            key = [(params.seed, sample)]
            numbers = KeyedNoise().exponential(key, [len(tokens)], 1, scores.shape[-1], ids.device)[0, 0]
            tokens.append(int((numbers / scores[0].softmax(-1)).argmin()))
            processed = scores[0].log_softmax(-1)[tokens[-1]].item()
        of_raw = raw[0].log_softmax(-1)[tokens[-1]].item()
        logprobs.append(of_raw if params.logprobs_mode == "raw" else processed)
        if tokens[-1] in ends or _has_stop(decode, tokens, params):
            return Judged(tokens, "stop", logprobs)
        if len(tokens) >= min(params.max_tokens, max_len - len(prompt)):
            return Judged(tokens, "length", logprobs)


def _has_stop(decode: Decode, tokens: list[int], params: SamplingParams) -> bool:
    """Whether the text holds a stop string that no token below the minimum completed."""
    floor = len(decode(tokens[: params.min_tokens - 1])) if params.min_tokens > 1 else 0
    text = decode(tokens)
    return any(text.find(stop, max(0, floor - len(stop) + 1)) >= 0 for stop in params.stop)
