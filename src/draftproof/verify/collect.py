"""Generate the tokens of the sampled check and find the law that judges each: both arms, any engine whose law can be read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.engines.base import EngineProtocol
from draftproof.records import Completion
from draftproof.request import SamplingParams
from draftproof.verify.cells import FIRST_SHARED, LAST_RANKS, rank_cells
from draftproof.verify.draft_laws import DraftLaws
from draftproof.verify.log import UNKNOWN, Array, Integers, TokenLog, joined, outcomes_before, places

SCORE_BATCH = 32
BATCHES_PER_BLOCK = 4
SEED_STRIDE = 1_000_003
DRAFTED = ("draft 1", "draft 2+")
Advance = Callable[[int], None]
Context = tuple[int, tuple[int, ...]]
"""Which prompt, and what was generated after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledDesign:
    """
    What is registered: see `study.plan.SampledPlan` for the meaning of the fields.

    Attributes
    ----------
    prompts : tuple of tuples of token ids
        Taken in turn, so that the rows of a batch differ.
    allowed_token_ids : tuple of int or None
        The cells are these tokens, and nothing else may be generated. None: the whole vocabulary, in rank cells.
    """

    prompts: tuple[tuple[int, ...], ...]
    allowed_token_ids: tuple[int, ...] | None
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

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence, its prompt included."""
        return max(map(len, self.prompts)) + self.tokens

    @property
    def num_cells(self) -> int:
        """Cells of a law."""
        return len(LAST_RANKS) + 1 if self.allowed_token_ids is None else len(self.allowed_token_ids)


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


Read = Callable[[EngineProtocol, SampledDesign, Sequence[int], Sequence[Completion]], Laws]
"""How the target's law at each token is read: of a worker, for the design's request, whose prompts are told by their numbers."""


class EngineFailed(Exception):
    """A request of the check did not run to its end, so nothing can be said about the law."""


class Forbidden(Exception):
    """A token that the request did not allow was generated: whatever else was seen, that is not the target's law."""


def collect(
    worker: EngineProtocol,
    design: SampledDesign,
    sequences: int,
    seed: int,
    advance: Advance,
    *,
    speculate: bool = True,
    alter: Callable[[SamplingParams], SamplingParams] = lambda params: params,
    drafts: DraftLaws | None = None,
    stop: Callable[[TokenLog], bool] | None = None,
    read: Read | None = None,
) -> TokenLog:
    """
    Generate, then read the target's law at each token.

    Parameters
    ----------
    worker : EngineProtocol
    design : SampledDesign
    sequences, seed : int
        How many, and of which random numbers.
    advance : callable
        Gets the number of sequences that were finished.
    speculate, alter
        The arm, and a change of each request, as planted defects make it.
    drafts : DraftLaws or None
        Where the worker's accept rule tells what was drafted.
    stop : callable or None
        The sequences are run in blocks, in the order of their seeds; it gets each, and True leaves out the rest.
    read : Read or None
        None: each distinct sequence is scored once with the plain model.

    Raises
    ------
    EngineFailed
        A request ended with an error, or early.
    Forbidden
        A token came that was not allowed.
    """
    size = sequences if stop is None else BATCHES_PER_BLOCK * design.batch
    contexts: dict[Context, int] = {}
    read = read or OwnPass()
    blocks: list[TokenLog] = []
    for start in range(0, sequences, size):
        indices = range(start, min(start + size, sequences))
        params = [
            alter(
                SamplingParams(
                    max_tokens=design.tokens,
                    temperature=design.temperature,
                    seed=seed * SEED_STRIDE + index,
                    ignore_eos=True,
                    allowed_token_ids=design.allowed_token_ids,
                    top_k=design.top_k,
                )
            )
            for index in indices
        ]
        of_prompt = [index % len(design.prompts) for index in indices]
        completions = _generate(worker, design, of_prompt, params, advance, speculate)
        law = read(worker, design, of_prompt, completions)
        block = _log(worker, design, of_prompt, completions, start, contexts, law)
        if drafts is not None:
            block = _with_drafts(block, drafts, design, [(item.seed or 0, 0) for item in params])
            drafts.forget()
        blocks.append(block)
        if stop is not None and stop(block):
            advance(sequences - start - len(completions))
            break
    return joined(blocks)


def _generate(
    worker: EngineProtocol,
    design: SampledDesign,
    of_prompt: Sequence[int],
    params: Sequence[SamplingParams],
    advance: Advance,
    speculate: bool,
) -> list[Completion]:
    prompts: list[Sequence[int]] = [design.prompts[prompt] for prompt in of_prompt]
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
    of_prompt: Sequence[int],
    completions: Sequence[Completion],
    start: int,
    contexts: dict[Context, int],
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
                contexts.setdefault((prompt, item.token_ids[:index]), len(contexts))
                for prompt, item in zip(of_prompt, completions, strict=True)
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


def _with_drafts(log: TokenLog, drafts: DraftLaws, design: SampledDesign, keys: Sequence[tuple[int, int]]) -> TokenLog:
    drafted = [place in DRAFTED for place in log.strata]
    rows = [
        drafts.of(key, drafted[at * design.tokens : (at + 1) * design.tokens], design.num_cells)
        for at, key in enumerate(keys)
    ]
    return replace(log, draft_laws=np.concatenate(rows))


class OwnPass:
    """See `Read`. The law by the target's own pass over the sequence; the cells are the allowed tokens, or ranks."""

    def __init__(self) -> None:
        self._known: dict[Context, tuple[Integers, Array]] = {}

    def __call__(
        self, worker: EngineProtocol, design: SampledDesign, of_prompt: Sequence[int], completions: Sequence[Completion]
    ) -> Laws:
        """Score each sequence that is new, and return the law at each token."""
        emitted = [(prompt, item.token_ids) for prompt, item in zip(of_prompt, completions, strict=True)]
        new = sorted(set(emitted) - self._known.keys())
        for prompt, token_ids in enumerate(design.prompts):
            mine = [sequence for number, sequence in new if number == prompt]
            for start in range(0, len(mine), SCORE_BATCH):
                batch = mine[start : start + SCORE_BATCH]
                for sequence, logits in zip(batch, worker.score(token_ids, batch), strict=True):
                    self._known[prompt, sequence] = _judged(logits, sequence, design)
        return Laws(
            cells=np.concatenate([self._known[item][0] for item in emitted]),
            laws=np.concatenate([self._known[item][1] for item in emitted]),
            other_cell=FIRST_SHARED if design.allowed_token_ids is None else None,
        )


def _judged(
    logits: npt.NDArray[np.floating[Any]], sequence: Sequence[int], design: SampledDesign
) -> tuple[Integers, Array]:
    """Return the cell of each token and the law of the cells: shapes (T,) and (T, m)."""
    allowed = design.allowed_token_ids
    scores = (logits if allowed is None else logits[:, list(allowed)]).astype(np.float64)
    laws = softmax_of_best(scores, design.temperature, design.top_k)
    if allowed is None:
        return rank_cells(laws, sequence, LAST_RANKS)
    return np.array([allowed.index(token_id) for token_id in sequence]), laws


def softmax_of_best(scores: Array, temperature: float, top_k: int) -> Array:
    """Return the law of scores, (..., V), at a temperature, from the ``top_k`` best and what ties with the last; 0 keeps all."""
    # subtracting the largest first keeps tiny temperatures finite, as in `sampling.law`
    with np.errstate(over="ignore"):
        scores = (scores - scores.max(axis=-1, keepdims=True)) / temperature
    if 0 < top_k < scores.shape[-1]:
        last = np.partition(scores, -top_k, axis=-1)[..., -top_k, None]
        scores = np.where(scores < last, -np.inf, scores)
    weights = np.exp(scores)
    law: Array = weights / weights.sum(axis=-1, keepdims=True)
    return law
