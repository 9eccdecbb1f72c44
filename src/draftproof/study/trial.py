"""A few short requests before a study: the target as its own draft, and what a round and a plain step cost here."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from draftproof.engines.base import EngineProtocol
from draftproof.engines.native import Engine
from draftproof.records import Round
from draftproof.request import SamplingParams
from draftproof.verify.anchor import rounding_bound

SELF_DRAFT_TOKENS = 32
PASSES = 5
ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfDraft:
    """
    The target as its own draft, greedy.

    Attributes
    ----------
    proposed, accepted : int
    worst_gap : float, logits, or None
        Largest distance between the target's two best logits where a drafted token was rejected. None: nowhere.
    bound : float, logits
        What rounding can explain.
    error : str or None
        Why a draft was dropped.
    """

    proposed: int
    accepted: int
    worst_gap: float | None
    bound: float
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Medians in ms, one request at a time, and how many of each were seen."""

    plain_ms: float
    propose_ms: float
    score_ms: float
    plain_steps: int
    drafting_rounds: int

    @property
    def ratio(self) -> float:
        """Time of a drafting round over the time of a plain step."""
        return (self.propose_ms + self.score_ms) / self.plain_ms


def draft_with_itself(engine: Engine, token_ids: Sequence[int]) -> SelfDraft:
    """Run one greedy request with the target as its own draft, and look at what was rejected."""
    own = engine.with_own_draft(len(token_ids) + SELF_DRAFT_TOKENS)
    params = SamplingParams(max_tokens=SELF_DRAFT_TOKENS, temperature=0.0, ignore_eos=True)
    completion = own.generate([token_ids], params)[0]
    logits = own.score(token_ids, [completion.token_ids])[0].astype(np.float64)
    gaps, done = [], 0
    for item in completion.rounds:
        if item.num_accepted < item.num_proposed:
            second, first = np.partition(logits[done + item.num_accepted], -2)[-2:]
            gaps.append(float(first - second))
        done += item.emitted
    return SelfDraft(
        proposed=sum(item.num_proposed for item in completion.rounds),
        accepted=sum(item.num_accepted for item in completion.rounds),
        worst_gap=max(gaps, default=None),
        bound=rounding_bound(own, float(np.abs(logits).max())),
        error=completion.error or next((item.draft_error for item in completion.rounds if item.draft_error), None),
    )


def measure_costs(
    engine: EngineProtocol, token_ids: Sequence[int], params: SamplingParams, num_speculative_tokens: int
) -> Costs | None:
    """
    Time rounds that draft K tokens and plain steps, in turn, on one prompt said twice (so that prompt lookup finds something).

    Parameters
    ----------
    params : SamplingParams
        Their ``max_tokens`` and ``ignore_eos`` are replaced.

    Returns
    -------
    Costs or None
        None: the engine reports no rounds, or no round drafted K tokens.
    """
    length = ROUNDS * (num_speculative_tokens + 1)
    twice = [*token_ids, *token_ids]
    prompt = twice if len(twice) + length <= engine.capabilities.max_len else list(token_ids)
    params = params.model_copy(update={"max_tokens": length, "ignore_eos": True})
    plain: list[float] = []
    drafting: list[Round] = []
    for _ in range(PASSES):
        target_only, speculative = (
            engine.generate([prompt], params, speculate=speculate)[0].rounds for speculate in (False, True)
        )
        plain += [item.propose_ms + item.score_ms for item in target_only]
        full = [item for item in speculative if item.num_proposed == num_speculative_tokens]
        # a draft model reads the prompt in a request's first round
        drafting += [item for item in full if item is not speculative[0]] or full
    if not plain or not drafting:
        return None
    return Costs(
        plain_ms=median(plain),
        propose_ms=median(item.propose_ms for item in drafting),
        score_ms=median(item.score_ms for item in drafting),
        plain_steps=len(plain),
        drafting_rounds=len(drafting),
    )
