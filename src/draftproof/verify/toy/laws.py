"""Tabulated laws: a target and drafts of known nearness. Each law depends on the last two tokens, through logits in a table."""

import functools
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from draftproof.errors import InputError

Nearness = Literal["near", "mid", "far"]
Array = npt.NDArray[np.float64]
ACCEPTANCE: dict[Nearness, float] = {"near": 0.92, "mid": 0.68, "far": 0.3}
SPREAD = (
    1.2  # standard deviation of the target's logits: of the half that top-k keeps, 3, 6 and 23 tokens count by entropy
)


def kept(vocab_size: int) -> int:
    """Return the request's top-k, half the vocabulary: so that drafts propose forbidden tokens, about one in ten."""
    return vocab_size // 2


@functools.cache
def target_logits(vocab_size: int) -> Array:
    """Return the target's logits after tokens i, j, shape (V, V, V)."""
    if vocab_size not in (8, 16, 64):
        raise InputError(f"a vocabulary of {vocab_size} tokens: allowed 8, 16 or 64")
    return SPREAD * np.random.default_rng(vocab_size).standard_normal((vocab_size,) * 3)


@functools.cache
def draft_logits(vocab_size: int, nearness: Nearness) -> Array:
    """
    Return a draft's logits, shape (V, V, V): the target's plus as much noise as gives the acceptance of `ACCEPTANCE`.

    Notes
    -----
    The acceptance is the mean over the V * V pairs of tokens of ``sum(min(target, draft))``, both under the request's top-k.
    """
    if nearness not in get_args(Nearness):
        raise InputError(f"a draft that is {nearness!r}: allowed {', '.join(get_args(Nearness))}")
    target, noise = target_logits(vocab_size), np.random.default_rng(vocab_size + 1).standard_normal((vocab_size,) * 3)
    law = exact_law(target, kept(vocab_size))
    low, high = 0.0, 32.0
    for _ in range(40):
        middle = (low + high) / 2
        accepted = np.minimum(law, exact_law(target + middle * noise, kept(vocab_size))).sum(-1).mean()
        low, high = (middle, high) if accepted > ACCEPTANCE[nearness] else (low, middle)
    return target + low * noise


def exact_law(logits: Array, top_k: int) -> Array:
    """
    Return probabilities, shape (..., V), of the ``top_k`` likeliest tokens: the softmax at temperature 1 over them.

    Written apart from the engine's own law, which it judges.
    """
    smallest = np.sort(logits, axis=-1)[..., -top_k, None]
    weights = np.where(logits >= smallest, np.exp(logits - logits.max(axis=-1, keepdims=True)), 0.0)
    law: Array = weights / weights.sum(axis=-1, keepdims=True)
    return law
