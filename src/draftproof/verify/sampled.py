"""
Is the sampled speculative output drawn from the target's law?

A fixed prompt, a small allowed vocabulary, many seeds. Every token is judged by the target's exact probabilities after
its own prefix, which an independent pass of the plain model gives; the speculative pass never judges itself.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from draftproof.engines.base import EngineProtocol
from draftproof.errors import InputError
from draftproof.evidence import ControlResult, Outcome, SampledResult, SmallestDeviation
from draftproof.records import Completion
from draftproof.request import SamplingParams
from draftproof.stats.goodness import pooled_chi2
from draftproof.stats.power import POWER, smallest_tv_of_chi2, smallest_tv_of_score
from draftproof.stats.variation import pooled_tv
from draftproof.verify.battery import NamedResult, examine
from draftproof.verify.controls import REQUEST_DEFECTS, RULE_DEFECTS
from draftproof.verify.eprocess import EProcess
from draftproof.verify.log import UNKNOWN, TokenLog, joined, outcomes_before, places

SCORE_BATCH = 32
BATCHES_PER_BLOCK = 4
SHARES = 2  # of alpha_fail: one for the e-process, one for the tests at the end
PLACES = ("plain", "draft 1", "draft 2+", "bonus")
Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledDesign:
    """What is registered: see `study.plan.SampledPlan` for the fields' meaning."""

    prompt_token_ids: tuple[int, ...]
    allowed_token_ids: tuple[int, ...] | None  # None: all, for a reading that does not need them
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
    top_k: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws:
    """
    What the tokens of some completions are held against, one after the other.

    Attributes
    ----------
    cells : ndarray, shape (N,), int64
    laws : ndarray, shape (N, m), float64
    other_cell : int or None
        See `TokenLog`.
    """

    cells: Integers
    laws: Array
    other_cell: int | None = None


Read = Callable[[EngineProtocol, SampledDesign, Sequence[Completion]], Laws]
"""How the target's law after each prefix is read: of a worker, for the design's request, whatever was asked of the completions."""


class EngineFailed(Exception):
    """A request of the check did not run to its end, so nothing can be said about the law."""


class Forbidden(Exception):
    """A token that the request did not allow was generated: whatever else was seen, that is not the target's law."""


def verify_sampled(
    engine: EngineProtocol, design: SampledDesign, advance: Advance, read: Read | None = None
) -> tuple[SampledResult, list[ControlResult]]:
    """
    Run the check and its controls; ``read`` is where the target's law comes from, by default its own pass.

    Returns
    -------
    SampledResult, list of ControlResult
        PASS needs: nothing rejected at ``alpha_fail``, the upper bound on the total variation below ``delta``, every
        stratum covered and its bound below ``delta_stratum``, and controls that behaved.

    Notes
    -----
    ``alpha_fail`` is shared evenly by two judges: an e-process that looks after every block of sequences and may stop the
    run with FAIL (`verify.eprocess`), and the tests of the whole log, adjusted by Holm (`verify.battery`), which are run
    only if nothing stopped it. ``p_value`` is twice the smaller of the two. Bound: Azuma with a union over the sets of
    cells.
    """
    worker = engine.sibling(max_batch=design.batch, max_len=len(design.prompt_token_ids) + design.tokens)
    configuration = {
        "temperature": design.temperature,
        "allowed_token_ids": None if design.allowed_token_ids is None else list(design.allowed_token_ids),
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
    process = EProcess()
    limit = math.log(SHARES / design.alpha_fail)
    try:
        log = collect(
            worker,
            design,
            design.sequences,
            design.seed,
            advance,
            stop=lambda block: process.update(block) >= limit,
            read=read,
        )
    except EngineFailed as failure:
        return unread.model_copy(update={"reasons": [str(failure)]}), []
    except Forbidden as defect:
        return unread.model_copy(update={"outcome": "FAIL", "reasons": [str(defect)]}), []
    sequences = len(log.cells) // design.tokens
    tests: list[NamedResult] = []
    p_value = min(1.0, SHARES * math.exp(-process.largest_log_e))
    smallest = f"e-process after {sequences} of {design.sequences} sequences"
    if process.largest_log_e < limit:
        tests = examine(log)
        p_value, smallest = min((p_value, smallest), (min(1.0, SHARES * _least(tests)[0]), _least(tests)[1]))
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
    controls = _controls(worker, design, advance, read)
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
            "sequences": sequences,
            "tokens": whole.tokens,
            "tv_estimate": whole.estimate,
            "tv_upper_bound": whole.upper_bound,
            "p_value": p_value,
            "strata": strata,
            "reasons": reasons,
            "tv_by_n": [(n, item.estimate or 0.0, item.upper_bound or 1.0) for n, item in curve],
            "tests": [_row(item) for item in tests],
            "smallest_deviation": smallest_deviation(log, tests, design.alpha_fail) if tests else None,
        }
    )
    return result, controls


def judge(log: TokenLog) -> tuple[float, str]:
    """Return the smallest p value, adjusted by Holm over all tests of `battery.examine`, and the name of its test."""
    return _least(examine(log))


def _least(tests: Sequence[NamedResult]) -> tuple[float, str]:
    least = min((item for item in tests if item.adjusted is not None), key=lambda item: (item.adjusted, item.p_value))
    return least.adjusted or 0.0, least.title


def smallest_deviation(log: TokenLog, tests: Sequence[NamedResult], alpha_fail: float) -> SmallestDeviation:
    """Return what tests of this size find with power 0.9 if each is adjusted for the number of all of them."""
    alpha = alpha_fail / SHARES / sum(item.p_value is not None for item in tests)
    table = pooled_chi2(log.contexts, log.cells, log.laws)
    return SmallestDeviation(
        power=POWER,
        alpha=alpha,
        one_direction=smallest_tv_of_score(len(log.cells), alpha),
        any_direction=smallest_tv_of_chi2(table.tokens, table.df, alpha) if table.df else None,
        by_place={
            place: smallest_tv_of_score(log.strata.count(place), alpha) for place in PLACES if place in log.strata
        },
    )


def _row(item: NamedResult) -> dict[str, Any]:
    return {
        "test": item.name,
        "tokens of": item.stratum or "all",
        "n": item.n,
        "statistic": item.statistic,
        "p value": item.p_value,
        "adjusted": item.adjusted,
    }


def collect(
    worker: EngineProtocol,
    design: SampledDesign,
    sequences: int,
    seed: int,
    advance: Advance,
    *,
    speculate: bool = True,
    alter: Callable[[SamplingParams], SamplingParams] = lambda params: params,
    stop: Callable[[TokenLog], bool] | None = None,
    read: Read | None = None,
) -> TokenLog:
    """
    Generate, then read the target's law at each token; by default each distinct sequence is scored once with the plain model.

    With ``stop``, in blocks in the order of the sequences' seeds: it is asked after each, and True leaves out the rest.

    Raises
    ------
    EngineFailed
        A request ended with an error, or early.
    Forbidden
        A token came that was not allowed.
    """
    size = sequences if stop is None else BATCHES_PER_BLOCK * design.batch
    contexts: dict[tuple[int, ...], int] = {}
    read = read or OwnPass()
    blocks: list[TokenLog] = []
    for start in range(0, sequences, size):
        params = [
            alter(
                SamplingParams(
                    max_tokens=design.tokens,
                    temperature=design.temperature,
                    seed=seed * 1_000_003 + index,
                    ignore_eos=True,
                    allowed_token_ids=design.allowed_token_ids,
                    top_k=design.top_k,
                )
            )
            for index in range(start, min(start + size, sequences))
        ]
        completions = _generate(worker, design, params, advance, speculate)
        blocks.append(_log(worker, design, completions, start, contexts, read(worker, design, completions)))
        if stop is not None and stop(blocks[-1]):
            advance(sequences - start - len(completions))
            break
    return joined(blocks)


def _generate(
    worker: EngineProtocol, design: SampledDesign, params: Sequence[SamplingParams], advance: Advance, speculate: bool
) -> list[Completion]:
    sequences = len(params)
    prompts: list[Sequence[int]] = [design.prompt_token_ids] * sequences
    completions = worker.generate(prompts, params, speculate=speculate, on_completion=lambda index, done: advance(1))
    require_answers(completions, design.allowed_token_ids)
    lengths = {len(completion.token_ids) for completion in completions}
    if lengths != {design.tokens}:
        raise EngineFailed(
            f"requests ended after {min(lengths)} to {max(lengths)} tokens, {design.tokens} were asked for"
        )
    return completions


def require_answers(completions: Sequence[Completion], allowed_token_ids: Sequence[int] | None) -> None:
    """
    See that every request gave tokens, and only those that it allowed; None allows all.

    Raises
    ------
    EngineFailed, Forbidden
        One did not.
    """
    failed = [completion.error for completion in completions if completion.error]
    if failed:
        raise EngineFailed(f"{len(failed)} of {len(completions)} requests ended with an error: {failed[0]}")
    allowed = None if allowed_token_ids is None else set(allowed_token_ids)
    strange = [
        token for item in completions for token in item.token_ids if allowed is not None and token not in allowed
    ]
    if strange:
        raise Forbidden(f"{len(strange)} generated tokens were not among those allowed, the first is id {strange[0]}")


def _log(
    worker: EngineProtocol,
    design: SampledDesign,
    completions: Sequence[Completion],
    start: int,
    contexts: dict[tuple[int, ...], int],
    law: Laws,
) -> TokenLog:
    """Return a block as a log; a prefix that is new gets the next number in ``contexts``."""
    count = len(completions)
    unknown = [UNKNOWN] * design.tokens
    return TokenLog(
        cells=law.cells,
        laws=law.laws,
        contexts=np.array(
            [
                contexts.setdefault(item.token_ids[:index], len(contexts))
                for item in completions
                for index in range(design.tokens)
            ]
        ),
        strata=[place for item in completions for place in places(item) or unknown],
        sequences=np.repeat(np.arange(start, start + count), design.tokens),
        positions=np.tile(np.arange(design.tokens), count),
        after=[outcome for item in completions for outcome in outcomes_before(item) or unknown],
        num_speculative_tokens=worker.capabilities.num_speculative_tokens,
        other_cell=law.other_cell,
    )


class OwnPass:
    """The law by the target's own pass over the sequence; the cells are the allowed tokens."""

    def __init__(self) -> None:
        self._laws: dict[tuple[int, ...], Array] = {}

    def __call__(self, worker: EngineProtocol, design: SampledDesign, completions: Sequence[Completion]) -> Laws:
        """See `Read`."""
        if design.allowed_token_ids is None:
            raise InputError("allowed_token_ids = None: the target's own pass is read for a few tokens; name them")
        cell_of = {token_id: cell for cell, token_id in enumerate(design.allowed_token_ids)}
        new = {item.token_ids for item in completions} - self._laws.keys()
        self._laws.update(_laws(worker, design, design.allowed_token_ids, new))
        return Laws(
            cells=np.array([cell_of[token_id] for item in completions for token_id in item.token_ids]),
            laws=np.concatenate([self._laws[item.token_ids] for item in completions]),
        )


def _laws(
    worker: EngineProtocol,
    design: SampledDesign,
    allowed_token_ids: Sequence[int],
    sequences: Iterable[tuple[int, ...]],
) -> dict[tuple[int, ...], Array]:
    distinct = sorted(sequences)
    allowed = np.array(allowed_token_ids)
    result: dict[tuple[int, ...], Array] = {}
    for start in range(0, len(distinct), SCORE_BATCH):
        batch = distinct[start : start + SCORE_BATCH]
        scores = worker.score(design.prompt_token_ids, batch)[:, :, allowed].astype(np.float64)
        result.update(zip(batch, softmax_of_best(scores, design.temperature, design.top_k), strict=True))
    return result


def softmax_of_best(scores: Array, temperature: float, top_k: int) -> Array:
    """Return the law of scores, (..., V), at a temperature, from the ``top_k`` best and what ties with the last; 0 keeps all."""
    scores = scores / temperature
    if 0 < top_k < scores.shape[-1]:
        last = np.partition(scores, -top_k, axis=-1)[..., -top_k, None]
        scores = np.where(scores < last, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    law: Array = weights / weights.sum(axis=-1, keepdims=True)
    return law


def num_controls(engine: EngineProtocol) -> int:
    """Return how many controls a check of this engine runs."""
    defects = RULE_DEFECTS if engine.capabilities.replaceable_rule else REQUEST_DEFECTS
    return len(defects) + 1


def _controls(
    worker: EngineProtocol, design: SampledDesign, advance: Advance, read: Read | None
) -> list[ControlResult]:
    """Plant defects in the accept rule where the engine lets us, else in the request; and run one correct variant."""

    def run(name: str, kind: Literal["defect", "lossless"], subject: EngineProtocol, **options: Any) -> ControlResult:
        seed = design.seed + len(results) + 1
        detail = f"{design.control_sequences} sequences, "
        try:
            p_value = judge(collect(subject, design, design.control_sequences, seed, advance, read=read, **options))[0]
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
