"""
Is the sampled speculative output drawn from the target's law?

A fixed prompt, a small allowed vocabulary, many seeds. Every token is judged by the target's exact probabilities after
its own prefix, which an independent pass of the plain model gives; the speculative pass never judges itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.engines.native import Engine
from draftproof.evidence import ControlResult, Outcome, SampledResult
from draftproof.records import Completion
from draftproof.request import SamplingParams
from draftproof.stats.goodness import holm, pooled_chi2, score_test
from draftproof.stats.variation import pooled_tv
from draftproof.verify.controls import DEFECTS

SCORE_BATCH = 32
Array = npt.NDArray[np.float64]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledDesign:
    """What is registered: see `study.plan.SampledPlan` for the fields' meaning."""

    prompt_token_ids: tuple[int, ...]
    allowed_token_ids: tuple[int, ...]
    temperature: float
    sequences: int
    control_sequences: int
    tokens: int
    batch: int
    delta: float
    delta_stratum: float
    alpha_fail: float
    alpha_eq: float
    min_stratum_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLog:
    """One entry per generated token: its cell, the law over the cells, its prefix and its place in the round."""

    cells: npt.NDArray[np.int64]
    laws: Array
    contexts: npt.NDArray[np.int64]
    strata: list[str]


def verify_sampled(
    engine: Engine, design: SampledDesign, advance: Advance
) -> tuple[SampledResult, list[ControlResult]]:
    """
    Run the check and its controls.

    Returns
    -------
    SampledResult, list of ControlResult
        PASS needs: nothing rejected at ``alpha_fail`` (Holm over all tests), the upper bound on the total variation
        below ``delta``, every stratum covered and its bound below ``delta_stratum``, and controls that behaved.

    Notes
    -----
    Tests: pooled chi-square over (prefix, token) cells; martingale score tests of the log-probability and of the
    top-1 indicator, overall and per place in the round. Bound: Azuma with a union over the sets of cells.
    """
    log = collect(engine, design, design.sequences, design.seed, advance)
    p_value, smallest = judge(log)
    whole = pooled_tv(log.cells, log.laws, design.alpha_eq)
    strata, reasons = [], []
    for name in ("plain", "draft 1", "draft 2+", "bonus"):
        chosen = np.array([stratum == name for stratum in log.strata])
        part = pooled_tv(log.cells[chosen], log.laws[chosen], design.alpha_eq)
        strata.append(
            {"place in the round": name, "tokens": part.tokens, "TV": part.estimate, "bound": part.upper_bound}
        )
        if name == "plain":
            continue
        if part.tokens < design.min_stratum_tokens:
            reasons.append(f"only {part.tokens} tokens at '{name}', {design.min_stratum_tokens} were registered")
        elif part.upper_bound is None or part.upper_bound >= design.delta_stratum:
            reasons.append(f"bound {part.upper_bound:.3f} at '{name}' is not below {design.delta_stratum}")
    if whole.upper_bound is None or whole.upper_bound >= design.delta:
        reasons.append(f"the bound on the total variation, {whole.upper_bound:.3f}, is not below {design.delta}")
    controls = _controls(engine, design, advance)
    reasons.extend(f"control '{item.name}' did not behave" for item in controls if not item.behaved)
    outcome: Outcome = "INCONCLUSIVE" if reasons else "PASS"
    if p_value < design.alpha_fail:
        outcome = "FAIL"
        reasons.insert(0, f"{smallest}: adjusted p = {p_value:.2g} is below {design.alpha_fail}")
    steps = np.unique(np.linspace(len(log.cells) / 20, len(log.cells), 20).astype(int))
    curve = [(int(n), pooled_tv(log.cells[:n], log.laws[:n], design.alpha_eq)) for n in steps if n > 0]
    result = SampledResult(
        outcome=outcome,
        configuration={
            "temperature": design.temperature,
            "allowed_token_ids": list(design.allowed_token_ids),
            "prompt_tokens": len(design.prompt_token_ids),
            "num_speculative_tokens": engine.num_speculative_tokens,
            "batch": design.batch,
        },
        sequences=design.sequences,
        tokens=whole.tokens,
        tv_estimate=whole.estimate,
        tv_upper_bound=whole.upper_bound,
        delta=design.delta,
        p_value=p_value,
        alpha_fail=design.alpha_fail,
        alpha_eq=design.alpha_eq,
        strata=strata,
        reasons=reasons,
        tv_by_n=[(n, item.estimate or 0.0, item.upper_bound or 1.0) for n, item in curve],
    )
    return result, controls


def judge(log: TokenLog) -> tuple[float, str]:
    """Return the smallest p value, adjusted by Holm over all tests, and the name of its test."""
    tests = {"chi-square over (prefix, token) cells": pooled_chi2(log.contexts, log.cells, log.laws).p_value}
    logs = np.log(np.maximum(log.laws, 1e-300))
    top = (log.laws == log.laws.max(axis=1, keepdims=True)).astype(np.float64)
    at = np.arange(len(log.cells))
    for name, h in (("log-probability", logs), ("top-1", top)):
        mean = (log.laws * h).sum(axis=1)
        variance = (log.laws * (h - mean[:, None]) ** 2).sum(axis=1)
        for stratum in ("", *sorted(set(log.strata))):
            chosen = np.array([not stratum or item == stratum for item in log.strata])
            result = score_test(h[at, log.cells][chosen], mean[chosen], variance[chosen])
            tests[f"score of {name}" + (f" at '{stratum}'" if stratum else "")] = result.p_value
    known = {name: value for name, value in tests.items() if value is not None}
    adjusted = holm(list(known.values()))
    best = int(np.argmin(adjusted))
    return float(adjusted[best]), list(known)[best]


def collect(
    engine: Engine, design: SampledDesign, sequences: int, seed: int, advance: Advance, *, speculate: bool = True
) -> TokenLog:
    """Generate, then score each distinct sequence once with the plain model."""
    params = [
        SamplingParams(
            max_tokens=design.tokens,
            temperature=design.temperature,
            seed=seed * 1_000_003 + index,
            ignore_eos=True,
            allowed_token_ids=design.allowed_token_ids,
        )
        for index in range(sequences)
    ]
    worker = engine.sibling(
        max_batch=design.batch,
        max_len=len(design.prompt_token_ids) + design.tokens,
        accept=engine.accept,
    )
    prompts: list[Sequence[int]] = [design.prompt_token_ids] * sequences
    completions = worker.generate(prompts, params, speculate=speculate, on_completion=lambda index, done: advance(1))
    laws = _laws(engine, design, [completion.token_ids for completion in completions])
    cell_of = {token_id: cell for cell, token_id in enumerate(design.allowed_token_ids)}
    contexts: dict[tuple[int, ...], int] = {}
    cells: list[int] = []
    rows: list[Array] = []
    context_ids: list[int] = []
    strata: list[str] = []
    for completion in completions:
        strata.extend(places(completion))
        for index, token_id in enumerate(completion.token_ids):
            cells.append(cell_of[token_id])
            rows.append(laws[completion.token_ids][index])
            context_ids.append(contexts.setdefault(completion.token_ids[:index], len(contexts)))
    return TokenLog(cells=np.array(cells), laws=np.array(rows), contexts=np.array(context_ids), strata=strata)


def places(completion: Completion) -> list[str]:
    """Name each token's place in its round. Reaching a place depends on the past only, so each is a fair stratum."""
    names: list[str] = []
    for item in completion.rounds:
        for offset in range(item.emitted):
            if not item.num_proposed:
                names.append("plain")
            elif offset == item.num_proposed:
                names.append("bonus")
            else:
                names.append("draft 1" if offset == 0 else "draft 2+")
    return names


def _laws(engine: Engine, design: SampledDesign, sequences: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Array]:
    distinct = sorted(set(sequences))
    allowed = np.array(design.allowed_token_ids)
    result: dict[tuple[int, ...], Array] = {}
    for start in range(0, len(distinct), SCORE_BATCH):
        batch = distinct[start : start + SCORE_BATCH]
        scores = engine.score(design.prompt_token_ids, batch)[:, :, allowed].astype(np.float64) / design.temperature
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        result.update(zip(batch, scores / scores.sum(axis=-1, keepdims=True), strict=True))
    return result


def _controls(engine: Engine, design: SampledDesign, advance: Advance) -> list[ControlResult]:
    results = []
    count = design.control_sequences
    plans: list[tuple[str, Any]] = [*DEFECTS.items(), ("target-only", None)]
    for number, (name, rule) in enumerate(plans, 1):
        subject = engine if rule is None else engine.sibling(max_batch=1, max_len=8, accept=rule)
        log = collect(subject, design, count, design.seed + number, advance, speculate=rule is not None)
        p_value, _ = judge(log)
        flagged = p_value < design.alpha_fail
        is_defect = rule is not None
        results.append(
            ControlResult(
                name=name,
                kind="defect" if is_defect else "lossless",
                flagged=flagged,
                behaved=flagged == is_defect,
                detail=f"{count} sequences, adjusted p = {p_value:.2g}",
            )
        )
    return results
