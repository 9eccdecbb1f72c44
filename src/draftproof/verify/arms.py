"""The arms of the two-sample check: what is registered, and sequences of each, drawn side by side. Judges nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.engines.base import EngineProtocol
from draftproof.errors import InputError
from draftproof.records import Completion
from draftproof.request import Prompt, SamplingParams
from draftproof.stats.two_sample import END
from draftproof.verify.collect import SEED_STRIDE, Advance, EngineFailed, require_answers
from draftproof.verify.controls import REQUEST_DEFECTS

PROBE_SEQUENCES = 64
PROBE_TOKENS = 32
PROBE_HEAT = 1.5
PLANTED, _plant = next(iter(REQUEST_DEFECTS.items()))
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackBoxDesign:
    """
    What is registered before the first request.

    Attributes
    ----------
    prompts : tuple of prompts
        At least two, all different, so that what one request does to another shows. Good ones leave 1 to 3 bits to chance at
        their second to fourth tokens; some that are easy to draft reach the tokens after a whole draft.
    sequences : int
        Of each prompt, in each of the three arms. PASS is said of no other number.
    control_sequences : int
        Of each prompt, with the planted defect.
    tokens : int, 2 or more
        Of each sequence. The first one comes from the prompt's own pass, with no speculation, and is context only.
    batch : int, 2 or more
        Requests in flight.
    temperature : float, above 0
    top_k : int
        0: all.
    allowed_token_ids : tuple of int, or None
    cells : int, 2 or more
        Of the bound: the likeliest tokens of each prompt and position, and one for the rest.
    delta, alpha_fail, alpha_eq : float, in (0, 1)
        As for the other sampled checks.
    seed : int
        Of the requests, the order of the arms, and the exchanges.

    Raises
    ------
    InputError
        A value is out of its range.
    """

    prompts: tuple[Prompt, ...]
    sequences: int
    control_sequences: int
    tokens: int
    batch: int
    temperature: float
    delta: float
    alpha_fail: float
    alpha_eq: float
    seed: int
    top_k: int = 0
    allowed_token_ids: tuple[int, ...] | None = None
    cells: int = 8

    def __post_init__(self) -> None:
        if len({repr(prompt) for prompt in self.prompts}) < max(2, len(self.prompts)):
            raise InputError(f"prompts: got {len(self.prompts)}; give two or more, each different from the others")
        least = {"sequences": 1, "control_sequences": 1, "tokens": 2, "batch": 2, "cells": 2, "top_k": 0, "seed": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise InputError(f"{name} = {getattr(self, name)}: allowed {value} or more")
        if self.temperature <= 0.0:
            raise InputError(f"temperature = {self.temperature}: allowed above 0; greedy output has no law to compare")
        for name in ("delta", "alpha_fail", "alpha_eq"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise InputError(f"{name} = {getattr(self, name)}: allowed between 0 and 1, both excluded")

    def params(self, index: int) -> SamplingParams:
        """Return the request of that number; no two have the same seed."""
        return SamplingParams(
            max_tokens=self.tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            seed=self.seed * SEED_STRIDE + index,
            ignore_eos=True,
            allowed_token_ids=self.allowed_token_ids,
        )


def num_requests(design: BlackBoxDesign) -> int:
    """Return how many requests a check sends."""
    return len(design.prompts) * (3 * design.sequences + design.control_sequences) + 2 * PROBE_SEQUENCES


@dataclass(frozen=True, slots=True)
class Sample:
    """Sequences, shape (S, T), END after an end, and the number of each one's prompt, shape (S,)."""

    tokens: Integers
    prompts: Integers


def collect_arms(engine: EngineProtocol, design: BlackBoxDesign, advance: Advance) -> list[Sample]:
    """
    Return target-only, speculative, target-only again, and speculative with the planted defect.

    In blocks of ``batch`` requests; each round of blocks runs the arms in an order drawn from the seed.

    Raises
    ------
    EngineFailed, Forbidden
        A request gave no tokens, or others than it allowed.
    """
    sizes = [design.sequences] * 3 + [design.control_sequences]
    left = [len(design.prompts) * size for size in sizes]
    rows: list[list[tuple[int, ...]]] = [[] for _ in sizes]
    order = np.random.default_rng(design.seed)
    sent = 0
    while any(left):
        for arm in order.permutation(len(sizes)).tolist():
            count = min(design.batch, left[arm])
            if not count:
                continue
            params = [design.params(sent + index) for index in range(count)]
            if arm == 3:
                params = [_plant(item) for item in params]
            prompts = [design.prompts[(len(rows[arm]) + index) % len(design.prompts)] for index in range(count)]
            done = _generate(engine, prompts, params, advance, speculate=arm in (1, 3))
            rows[arm].extend(item.token_ids for item in done)
            left[arm] -= count
            sent += count
    return [Sample(_table(part, design.tokens), np.arange(len(part)) % len(design.prompts)) for part in rows]


def count_repeats(engine: EngineProtocol, design: BlackBoxDesign, advance: Advance) -> int | None:
    """
    Return how many of `PROBE_SEQUENCES` sequences of one prompt equal an earlier one, target-only and speculative together.

    They are long and hot, so that with random numbers of their own none has a chance to; a server that draws from fewer than
    about a thousand seeds is seen. Those that ended early are left out; None where more than half did, in either arm.
    """
    first = num_requests(design)
    repeats = 0
    for speculate in (False, True):
        params = [
            design.params(first + PROBE_SEQUENCES * speculate + index).model_copy(
                update={"max_tokens": PROBE_TOKENS, "temperature": PROBE_HEAT * design.temperature}
            )
            for index in range(PROBE_SEQUENCES)
        ]
        done = _generate(engine, design.prompts[:1] * PROBE_SEQUENCES, params, advance, speculate=speculate)
        whole = [item.token_ids for item in done if len(item.token_ids) == PROBE_TOKENS]
        if 2 * len(whole) < PROBE_SEQUENCES:
            return None
        repeats += len(whole) - len(set(whole))
    return repeats


def _generate(
    engine: EngineProtocol,
    prompts: Sequence[Prompt],
    params: Sequence[SamplingParams],
    advance: Advance,
    *,
    speculate: bool,
) -> list[Completion]:
    done = engine.generate(prompts, params, speculate=speculate, on_completion=lambda index, completion: advance(1))
    require_answers(done, params[0].allowed_token_ids)
    if not all(item.token_ids for item in done):
        raise EngineFailed("a request ended without a token")
    return done


def _table(rows: Sequence[tuple[int, ...]], tokens: int) -> Integers:
    return np.array([[*row[:tokens], *[END] * (tokens - len(row))] for row in rows], dtype=np.int64)
