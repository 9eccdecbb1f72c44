"""The judge of sampled requests: one token at a time, no cache, transformers' processors, the noise by its definition."""

from collections.abc import Sequence

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftproof.sampling.noise import KeyedNoise


def warpers(temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[object]:
    chosen: list[object] = [TemperatureLogitsWarper(temperature)] if temperature else []
    chosen += [TopKLogitsWarper(top_k)] if top_k else []
    chosen += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    return chosen + ([MinPLogitsWarper(min_p)] if min_p else [])


def judged(
    model,
    prompt: Sequence[int],
    count: int,
    *,
    processors: Sequence[object] = (),
    sampling: dict[str, float] | None = None,
    seed: int = 0,
    sample: int = 0,
    eos: frozenset[int] = frozenset(),
) -> list[int]:
    """REF of greedy and coupled requests."""
    sampling = sampling or {}
    tokens = list(prompt)
    chain = LogitsProcessorList([*processors, *warpers(**sampling)])
    for place in range(count):
        ids = torch.tensor([tokens])
        with torch.inference_mode():
            scores = chain(ids, model(input_ids=ids, use_cache=False).logits[:, -1])
        if sampling.get("temperature"):
            numbers = KeyedNoise().exponential([(seed, sample)], [place], 1, scores.shape[-1], ids.device)[0, 0]
            tokens.append(int((numbers / scores[0].softmax(-1)).argmin()))
        else:
            tokens.append(int(scores[0].argmax()))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]
