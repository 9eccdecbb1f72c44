"""
Is the speculative output drawn from the same law as the target-only output? For engines that only generate.

Nothing is known of the target but what it says: target-only and speculative sequences of several prompts are drawn side by
side, and compared. That needs many more sequences than `verify.sampled` and `verify.top_logprobs`, which know the law: try those
first.
"""

import math
from dataclasses import asdict

import numpy as np

from draftproof.engines.base import EngineProtocol
from draftproof.errors import InputError
from draftproof.evidence import ControlResult, Outcome, SampledResult
from draftproof.stats.two_sample import NUM_TESTS, two_sample_tests
from draftproof.stats.two_sample_variation import RankCells, sequences_needed, two_sample_tv
from draftproof.stats.variation import TVResult
from draftproof.verify.arms import (
    PLANTED,
    PROBE_SEQUENCES,
    PROBE_TOKENS,
    BlackBoxDesign,
    Sample,
    collect_arms,
    count_repeats,
)
from draftproof.verify.battery import NamedResult, least
from draftproof.verify.collect import Advance, EngineFailed, Forbidden

ALPHA_CONTROL = 0.01
SMALLEST_P = 4  # how many times below alpha_fail the least p value is that the exchanges can give
STEPS = 10


def verify_black_box(
    engine: EngineProtocol, design: BlackBoxDesign, advance: Advance
) -> tuple[SampledResult, list[ControlResult]]:
    """
    Run the check and its controls through ``generate`` alone.

    Parameters
    ----------
    engine : EngineProtocol
        It takes ``design.batch`` requests at once; ``speculate=False`` is the target-only arm.
    design : BlackBoxDesign
    advance : callable
        Gets the number of requests that ended.

    Returns
    -------
    SampledResult, list of ControlResult
        FAIL: both arms' sequences are told apart at ``alpha_fail``. PASS: they are not, the upper bound on the total variation
        is below ``delta``, and all controls behaved. Else INCONCLUSIVE.

    Raises
    ------
    InputError
        The engine takes one request at a time.

    Notes
    -----
    Three arms of equal size in blocks of ``batch`` requests: target-only, speculative, target-only again. Each round of
    blocks runs them in an order drawn from the seed, so that a server that changes slowly changes for all of them.

    Controls: the two target-only arms must not be told apart at `ALPHA_CONTROL`, else the server's law is not one law and
    nothing else is said; requests with another temperature, sent among the others, must be; and among `PROBE_SEQUENCES` long
    hot sequences of one prompt none may repeat, in either arm, else requests do not have random numbers of their own.
    `stats.duplicates` would need probabilities for that.

    The speculative arm is tested against both target-only arms: half as many sequences again, and if they are one law it is
    as good as one arm. The bound is between the speculative and the first target-only arm; the second one gives the cells,
    which must not depend on what they count.
    """
    if engine.capabilities.max_batch < 2:
        raise InputError("max_batch = 1: two different requests must be in flight; give an engine that takes 2 or more")
    unread = _unread(engine, design)
    try:
        repeats = count_repeats(engine, design, advance)
        before, speculative, after, planted = collect_arms(engine, design, advance)
    except EngineFailed as failure:
        return unread.model_copy(update={"reasons": [str(failure)]}), []
    except Forbidden as defect:
        return unread.model_copy(update={"outcome": "FAIL", "reasons": [str(defect)]}), []
    target_only = Sample(np.concatenate([before.tokens, after.tokens]), np.concatenate([before.prompts, after.prompts]))
    tests = _tests(target_only, speculative, design)
    p_value, name = least(tests)
    controls = [
        _freshness(repeats),
        _against_itself(before, after, design),
        _planted(target_only, planted, design),
    ]
    curve = _curve(before, speculative, after, design)
    whole = curve[-1][1]
    outcome, reasons = _judged(p_value, name, whole.upper_bound, controls, design)
    result = unread.model_copy(
        update={
            "outcome": outcome,
            "tokens": curve[-1][0],
            "tv_estimate": whole.estimate,
            "tv_upper_bound": whole.upper_bound,
            "p_value": p_value,
            "reasons": reasons,
            "tv_by_n": [(tokens, item.estimate or 0.0, item.upper_bound or 1.0) for tokens, item in curve],
            "tests": [item.row for item in tests],
        }
    )
    return result, controls


def _unread(engine: EngineProtocol, design: BlackBoxDesign) -> SampledResult:
    """Return what is said before anything was seen."""
    return SampledResult(
        outcome="INCONCLUSIVE",
        configuration={
            "temperature": design.temperature,
            "top_k": design.top_k,
            "allowed_token_ids": None if design.allowed_token_ids is None else list(design.allowed_token_ids),
            "prompts": len(design.prompts),
            "sequences of each prompt and arm": design.sequences,
            "cells": design.cells,
            "num_speculative_tokens": engine.capabilities.num_speculative_tokens,
            "batch": min(design.batch, engine.capabilities.max_batch),
            "claim about greedy output": engine.capabilities.claim,
        },
        sequences=len(design.prompts) * design.sequences,
        tokens=0,
        tv_estimate=None,
        tv_upper_bound=None,
        delta=design.delta,
        p_value=None,
        alpha_fail=design.alpha_fail,
        alpha_eq=design.alpha_eq,
        strata=[],
        reasons=[],
        tv_by_n=[],
        method="two samples",
    )


def _judged(
    p_value: float, name: str, bound: float | None, controls: list[ControlResult], design: BlackBoxDesign
) -> tuple[Outcome, list[str]]:
    """Return the outcome, and why it is not PASS."""
    reasons = [f"control '{item.name}' did not behave: {item.detail}" for item in controls if not item.behaved]
    if p_value < design.alpha_fail:
        is_one_law = all(item.behaved for item in controls if item.kind == "lossless")
        found = f"{name}: adjusted p = {p_value:.2g} is below {design.alpha_fail}"
        return "FAIL" if is_one_law else "INCONCLUSIVE", [found, *reasons]
    if bound is None or bound >= design.delta:
        needed = sequences_needed(design.cells, len(design.prompts), design.delta, design.alpha_eq)
        reasons.append(
            f"no defect found, equivalence not shown: the bound on the total variation, {bound:.3f}, is not below "
            f"{design.delta}; {needed} sequences of each prompt and arm suffice"
        )
    return "INCONCLUSIVE" if reasons else "PASS", reasons


def _against_itself(before: Sample, after: Sample, design: BlackBoxDesign) -> ControlResult:
    p_value = least(_tests(before, after, design))[0]
    return ControlResult(
        name="target-only against itself",
        kind="lossless",
        flagged=p_value < ALPHA_CONTROL,
        behaved=p_value >= ALPHA_CONTROL,
        detail=f"{2 * len(before.tokens)} sequences, adjusted p = {p_value:.2g}",
    )


def _planted(target_only: Sample, planted: Sample, design: BlackBoxDesign) -> ControlResult:
    p_value = least(_tests(target_only, planted, design))[0]
    return ControlResult(
        name=PLANTED,
        kind="defect",
        flagged=p_value < design.alpha_fail,
        behaved=p_value < design.alpha_fail,
        detail=f"{len(planted.tokens)} sequences, adjusted p = {p_value:.2g}",
    )


def _freshness(repeats: int | None) -> ControlResult:
    asked = f"{2 * PROBE_SEQUENCES} sequences of {PROBE_TOKENS} tokens"
    detail = f"{repeats} of {asked} repeat another one"
    if repeats is None:
        detail = f"most of {asked} ended early; give a first prompt that goes on"
    elif repeats:
        detail += "; the server's seed is fixed, or the first prompt leaves nothing to chance"
    return ControlResult(
        name="fresh random numbers", kind="lossless", flagged=repeats != 0, behaved=repeats == 0, detail=detail
    )


def _tests(first: Sample, second: Sample, design: BlackBoxDesign) -> list[NamedResult]:
    found = two_sample_tests(
        np.concatenate([first.tokens, second.tokens]),
        np.repeat([False, True], [len(first.tokens), len(second.tokens)]),
        np.concatenate([first.prompts, second.prompts]),
        permutations=math.ceil(SMALLEST_P * NUM_TESTS / design.alpha_fail),
        seed=design.seed,
    )
    return [NamedResult(stratum=None, **asdict(item)) for item in found]


def _curve(first: Sample, second: Sample, third: Sample, design: BlackBoxDesign) -> list[tuple[int, TVResult]]:
    """Return the compared tokens of the speculative arm, and the total variation, as both arms grew."""
    cells = RankCells(third.tokens, third.prompts, design.cells)
    one, two = (cells.of(item.tokens, item.prompts) for item in (first, second))
    least = len(design.prompts)
    steps = np.unique(np.linspace(max(least, len(one) / STEPS), len(one), STEPS).astype(int))
    return [
        (
            int(n) * (design.tokens - 1),
            two_sample_tv(
                one[:n], two[:n], first.prompts[:n], second.prompts[:n], num_cells=design.cells, alpha=design.alpha_eq
            ),
        )
        for n in steps
    ]
