"""
Is the sampled speculative output drawn from the target's law?

A fixed prompt, a small allowed vocabulary, many seeds. Every token is judged by the target's exact probabilities after
its own prefix, which an independent pass of the plain model gives; the speculative pass never judges itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from draftproof.engines.base import EngineProtocol
from draftproof.evidence import ControlResult, Outcome, SampledResult
from draftproof.records import Completion
from draftproof.request import SamplingParams
from draftproof.stats.goodness import holm, pooled_chi2, score_test
from draftproof.stats.variation import pooled_tv
from draftproof.verify.controls import REQUEST_DEFECTS, RULE_DEFECTS

SCORE_BATCH = 32
PLACES = ("plain", "draft 1", "draft 2+", "bonus")
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


class EngineFailed(Exception):
    """A request of the check did not run to its end, so nothing can be said about the law."""


class Forbidden(Exception):
    """A token that the request did not allow was generated: whatever else was seen, that is not the target's law."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLog:
    """One entry per generated token: its cell, the law over the cells, its prefix and its place in the round."""

    cells: npt.NDArray[np.int64]
    laws: Array
    contexts: npt.NDArray[np.int64]
    strata: list[str]


def verify_sampled(
    engine: EngineProtocol, design: SampledDesign, advance: Advance
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
    worker = engine.sibling(max_batch=design.batch, max_len=len(design.prompt_token_ids) + design.tokens)
    configuration = {
        "temperature": design.temperature,
        "allowed_token_ids": list(design.allowed_token_ids),
        "prompt_tokens": len(design.prompt_token_ids),
        "num_speculative_tokens": worker.capabilities.num_speculative_tokens,
        "batch": min(design.batch, worker.capabilities.max_batch),
        "claim about greedy output": worker.capabilities.claim,
    }
    registered = {"delta": design.delta, "alpha_fail": design.alpha_fail, "alpha_eq": design.alpha_eq}
    unread = SampledResult(
        outcome="INCONCLUSIVE",
        configuration=configuration,
        sequences=design.sequences,
        tokens=0,
        tv_estimate=None,
        tv_upper_bound=None,
        p_value=None,
        strata=[],
        reasons=[],
        tv_by_n=[],
        **registered,
    )
    try:
        log = collect(worker, design, design.sequences, design.seed, advance)
    except EngineFailed as failure:
        return unread.model_copy(update={"reasons": [str(failure)]}), []
    except Forbidden as defect:
        return unread.model_copy(update={"outcome": "FAIL", "reasons": [str(defect)]}), []
    p_value, smallest = judge(log)
    whole = pooled_tv(log.cells, log.laws, design.alpha_eq)
    strata, reasons = [], []
    for name in PLACES if worker.capabilities.reports_rounds else ():
        chosen = np.array([stratum == name for stratum in log.strata])
        part = pooled_tv(log.cells[chosen], log.laws[chosen], design.alpha_eq)
        strata.append(
            {"place in the round": name, "tokens": part.tokens, "TV": part.estimate, "bound": part.upper_bound}
        )
        if name == "plain" or (name == "draft 2+" and worker.capabilities.num_speculative_tokens == 1):
            continue
        if part.tokens < design.min_stratum_tokens:
            reasons.append(f"only {part.tokens} tokens at '{name}', {design.min_stratum_tokens} were registered")
        elif part.upper_bound is None or part.upper_bound >= design.delta_stratum:
            reasons.append(f"bound {part.upper_bound:.3f} at '{name}' is not below {design.delta_stratum}")
    if whole.upper_bound is None or whole.upper_bound >= design.delta:
        reasons.append(f"the bound on the total variation, {whole.upper_bound:.3f}, is not below {design.delta}")
    controls = _controls(worker, design, advance)
    reasons.extend(f"control '{item.name}' did not behave" for item in controls if not item.behaved)
    outcome: Outcome = "INCONCLUSIVE" if reasons else "PASS"
    if p_value < design.alpha_fail:
        outcome = "FAIL"
        reasons.insert(0, f"{smallest}: adjusted p = {p_value:.2g} is below {design.alpha_fail}")
    steps = np.unique(np.linspace(len(log.cells) / 20, len(log.cells), 20).astype(int))
    curve = [(int(n), pooled_tv(log.cells[:n], log.laws[:n], design.alpha_eq)) for n in steps if n > 0]
    result = unread.model_copy(
        update={
            "outcome": outcome,
            "tokens": whole.tokens,
            "tv_estimate": whole.estimate,
            "tv_upper_bound": whole.upper_bound,
            "p_value": p_value,
            "strata": strata,
            "reasons": reasons,
            "tv_by_n": [(n, item.estimate or 0.0, item.upper_bound or 1.0) for n, item in curve],
        }
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
    worker: EngineProtocol,
    design: SampledDesign,
    sequences: int,
    seed: int,
    advance: Advance,
    *,
    speculate: bool = True,
    alter: Callable[[SamplingParams], SamplingParams] = lambda params: params,
) -> TokenLog:
    """
    Generate, then score each distinct sequence once with the plain model.

    Raises
    ------
    EngineFailed
        A request ended with an error, or early.
    Forbidden
        A token came that was not allowed.
    """
    params = [
        alter(
            SamplingParams(
                max_tokens=design.tokens,
                temperature=design.temperature,
                seed=seed * 1_000_003 + index,
                ignore_eos=True,
                allowed_token_ids=design.allowed_token_ids,
            )
        )
        for index in range(sequences)
    ]
    prompts: list[Sequence[int]] = [design.prompt_token_ids] * sequences
    completions = worker.generate(prompts, params, speculate=speculate, on_completion=lambda index, done: advance(1))
    failed = [completion.error for completion in completions if completion.error]
    if failed:
        raise EngineFailed(f"{len(failed)} of {sequences} requests ended with an error: {failed[0]}")
    cell_of = {token_id: cell for cell, token_id in enumerate(design.allowed_token_ids)}
    strange = [token for completion in completions for token in completion.token_ids if token not in cell_of]
    if strange:
        raise Forbidden(f"{len(strange)} generated tokens were not among those allowed, the first is id {strange[0]}")
    lengths = {len(completion.token_ids) for completion in completions}
    if lengths != {design.tokens}:
        raise EngineFailed(
            f"requests ended after {min(lengths)} to {max(lengths)} tokens, {design.tokens} were asked for"
        )
    laws = _laws(worker, design, [completion.token_ids for completion in completions])
    contexts: dict[tuple[int, ...], int] = {}
    cells: list[int] = []
    rows: list[Array] = []
    context_ids: list[int] = []
    strata: list[str] = []
    for completion in completions:
        strata.extend(places(completion) or ["unknown"] * len(completion.token_ids))
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


def _laws(
    worker: EngineProtocol, design: SampledDesign, sequences: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], Array]:
    distinct = sorted(set(sequences))
    allowed = np.array(design.allowed_token_ids)
    result: dict[tuple[int, ...], Array] = {}
    for start in range(0, len(distinct), SCORE_BATCH):
        batch = distinct[start : start + SCORE_BATCH]
        scores = worker.score(design.prompt_token_ids, batch)[:, :, allowed].astype(np.float64) / design.temperature
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        result.update(zip(batch, scores / scores.sum(axis=-1, keepdims=True), strict=True))
    return result


def num_controls(engine: EngineProtocol) -> int:
    """Return how many controls a check of this engine runs."""
    defects = RULE_DEFECTS if engine.capabilities.replaceable_rule else REQUEST_DEFECTS
    return len(defects) + 1


def _controls(worker: EngineProtocol, design: SampledDesign, advance: Advance) -> list[ControlResult]:
    """Plant defects in the accept rule where the engine lets us, else in the request; and run one correct variant."""

    def run(name: str, kind: Literal["defect", "lossless"], subject: EngineProtocol, **options: Any) -> ControlResult:
        seed = design.seed + len(results) + 1
        detail = f"{design.control_sequences} sequences, "
        try:
            p_value = judge(collect(subject, design, design.control_sequences, seed, advance, **options))[0]
            flagged = p_value < design.alpha_fail
            detail += f"adjusted p = {p_value:.2g}"
        except Forbidden as defect:
            flagged = True
            detail += str(defect)
        except EngineFailed as failure:
            return ControlResult(name=name, kind=kind, flagged=False, behaved=False, detail=detail + str(failure))
        return ControlResult(
            name=name, kind=kind, flagged=flagged, behaved=flagged == (kind == "defect"), detail=detail
        )

    results: list[ControlResult] = []
    if worker.capabilities.replaceable_rule:
        for name, rule in RULE_DEFECTS.items():
            subject = worker.sibling(
                max_batch=worker.capabilities.max_batch, max_len=worker.capabilities.max_len, accept=rule
            )
            results.append(run(name, "defect", subject))
    else:
        for name, alter in REQUEST_DEFECTS.items():
            results.append(run(name, "defect", worker, alter=alter))
    return [*results, run("target-only", "lossless", worker, speculate=False)]
