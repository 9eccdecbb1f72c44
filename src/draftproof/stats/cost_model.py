"""
From what rounds cost and how long drafts hold to the speed-up for every number of drafted tokens.

A request takes its prefill, then rounds; a round takes the proposer's time, the target's pass and the host's time outside of
both. Target-only, each token takes one plain step. Knows no records, engines or files.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

from draftproof.stats.interval import Interval
from draftproof.stats.other_k import Trace

NUM_RESAMPLES = 1000
ROUNDING = 1e-12  # of a logarithm; a spread below it is none

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """
    Counts, and times in ms, over the rounds of one prompt's requests.

    ``prompt_tokens`` is 0 where no round drafted. ``plain_`` is of the target-only arm, the mean of its two runs. ``first_`` is of
    the first round that drafted, in which a draft model reads the prompt, ``later_`` of the others that did, ``idle_`` of rounds
    in which this request drafted nothing, and ``quiet_`` of those among them in which no request of the batch did. ``host`` is
    the time between rounds.
    """

    prompt_tokens: float
    plain_steps: float
    plain_propose: float
    plain_score: float
    plain_host: float
    first_rounds: float
    first_drafted: float
    first_propose: float
    later_rounds: float
    later_drafted: float
    later_propose: float
    score: float
    idle_rounds: float
    idle_propose: float
    idle_score: float
    quiet_rounds: float
    quiet_propose: float
    host: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRequest:
    """
    One prompt in both arms.

    Attributes
    ----------
    prompt_id : str
        The unit of the bootstrap.
    prefill : float, ms
        Before the first round; both arms do the same work, and this is the target-only arm's time for it.
    far_rate : float
        Tokens per round where the end of the request was far.
    sums : Sums
    trace : Trace
    """

    prompt_id: str
    prefill: float
    far_rate: float
    sums: Sums
    trace: Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """
    Times in ms, pooled over requests.

    A draft of d tokens takes ``propose_fixed + propose_token * d``, and ``reading`` per token of the prompt once. ``score`` is
    the pass of a round that drafts, with K.
    """

    plain_propose: float
    plain_score: float
    plain_host: float
    idle_propose: float
    idle_score: float
    propose_fixed: float
    propose_token: float
    reading: float
    score: float
    host: float

    @property
    def plain(self) -> float:
        """A target-only step."""
        return self.plain_propose + self.plain_score + self.plain_host

    def propose(self, num_drafted: float) -> float:
        """Return the time of a draft, the prompt already read."""
        return self.propose_fixed + self.propose_token * num_drafted

    def round(self, num_drafted: float) -> float:
        """Return the time of a round that drafts, with K."""
        return self.propose(num_drafted) + self.score + self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedK:
    """The prediction for one k; ``ms_per_token`` is without prefill."""

    num_speculative_tokens: int
    tokens_per_round: float
    ms_per_token: float
    speedup: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """
    What `predict` returns.

    Attributes
    ----------
    costs : Costs
    by_k : list of PredictedK
    ideal : float
        The speed-up if a round cost a plain step and no request ended: tokens per round.
    parts : dict of str to float
        What it is multiplied with, in turn, to become the prediction at K; below 1 is a loss.
    without_drafting : float
        The prediction at K if the proposer took no time.
    """

    costs: Costs
    by_k: list[PredictedK]
    ideal: float
    parts: dict[str, float]
    without_drafting: float


def predict(
    requests: Sequence[PairedRequest], num_speculative_tokens: Sequence[int], confidence: float, seed: int
) -> CostModel:
    """
    Predict the speed-up for each k.

    Parameters
    ----------
    requests : sequence of PairedRequest, 1 or more
        All with the same K; at least one round drafted something.
    num_speculative_tokens : sequence of int, each 1 or more
        The k to predict for.
    confidence : float
        Of the two-sided intervals; must be in the interval ``0 < confidence < 1``.
    seed : int
        Of the bootstrap.

    Returns
    -------
    CostModel
        A speed-up is defined as the measured one is: the geometric mean over prompts of the ratio of whole requests' times. Its
        limits are ``None`` for fewer than 2 prompts and where all resamples agree.

    Notes
    -----
    Of a request only its prefill, its length and its trace are its own; what a step and a round cost is pooled. So the
    prediction at K is not the measured speed-up said again: the two agree where rounds of a kind take the same time.

    For another k: a draft's time is linear in its tokens, from a round that drafts nothing to the rounds that were measured;
    the pass of a drafting round is linear in k, from the plain step to the pass that was measured (an engine pads a pass to K + 1
    positions, so that a shorter draft does not make it shorter).

    Interval: bootstrap over prompts, each resample with its own costs; the standard error of the log ratio times Student's t,
    since percentiles are too narrow for few prompts [1]_. Cost: O(NUM_RESAMPLES * requests) per k.
    Held by: tests/stats/test_stats_cost_model.py (exact on a virtual clock, coverage).

    References
    ----------
    .. [1] Efron, Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 6, 12 and 13.
    """
    model = _Model(requests)
    own = np.ones((1, model.num_prompts))
    chance = np.full(model.num_prompts, 1 / model.num_prompts)
    drawn = np.random.default_rng(seed).multinomial(model.num_prompts, chance, NUM_RESAMPLES).astype(np.float64)
    costs, resampled = model.costs(own), model.costs(drawn)
    by_k = []
    for k in num_speculative_tokens:
        rounds, share = model.rounds_at(k), k / model.wanted
        estimate, spread = (
            model.log_ratio(model.target_only(of), model.speculative(of, rounds, share), how)
            for of, how in ((costs, own), (resampled, drawn))
        )
        decoding = model.speculative(costs, rounds, share) - model.prefill[:, None]
        by_k.append(
            PredictedK(
                num_speculative_tokens=k,
                tokens_per_round=model.tokens.sum() / float(rounds[:, :2].sum()),
                ms_per_token=float(decoding.sum()) / model.tokens.sum(),
                speedup=_interval(float(estimate[0]), spread, model.num_prompts, confidence),
            )
        )
    ideal, parts, without = model.parts(costs, own)
    return CostModel(costs=_single(costs), by_k=by_k, ideal=ideal, parts=parts, without_drafting=without)


class _Model:
    """The requests as arrays: C requests, P prompts, R resamples. Costs are a dict of arrays of shape (R,)."""

    def __init__(self, requests: Sequence[PairedRequest]) -> None:
        names, self._prompt = np.unique([item.prompt_id for item in requests], return_inverse=True)
        self._requests, self.num_prompts = requests, len(names)
        self.wanted = requests[0].trace.wanted
        self.prefill = np.array([item.prefill for item in requests])
        self.tokens = np.array([float(len(item.trace.acceptance)) for item in requests])
        self._columns = {
            field.name: column
            for field, column in zip(
                fields(Sums), np.array([astuple(item.sums) for item in requests], dtype=np.float64).T, strict=True
            )
        }

    def rounds_at(self, k: int) -> Array:
        """Rounds that drafted nothing, rounds that did, and drafted tokens, shape (C, 3)."""
        return np.array([item.trace.at(k) for item in self._requests], dtype=np.float64)

    def costs(self, weights: Array) -> dict[str, Array]:
        """Pool what rounds took over prompts, with weights of shape (R, P)."""
        sums = {
            name: weights @ np.bincount(self._prompt, column, self.num_prompts)
            for name, column in self._columns.items()
        }
        steps, idle = sums["plain_steps"], sums["idle_rounds"]
        plain = {name: _over(sums[name], steps) for name in ("plain_propose", "plain_score", "plain_host")}
        rounds = sums["first_rounds"] + sums["later_rounds"]
        propose, drafted = sums["first_propose"] + sums["later_propose"], sums["first_drafted"] + sums["later_drafted"]
        quiet = _over(sums["quiet_propose"], sums["quiet_rounds"])
        fixed, token = _line(quiet, sums["later_rounds"], sums["later_drafted"], sums["later_propose"])
        excess = sums["first_propose"] - fixed * sums["first_rounds"] - token * sums["first_drafted"]
        reads = (excess > 0) & (sums["later_rounds"] > 0)
        all_fixed, all_token = _line(quiet, rounds, drafted, propose)
        return {
            **plain,
            "idle_propose": _over(sums["idle_propose"], idle, plain["plain_propose"]),
            "idle_score": _over(sums["idle_score"], idle, plain["plain_score"]),
            "propose_fixed": np.where(reads, fixed, all_fixed),
            "propose_token": np.where(reads, token, all_token),
            "reading": np.where(reads, _over(excess, sums["prompt_tokens"]), 0.0),
            "score": _over(sums["score"], rounds, plain["plain_score"]),
            "host": _over(sums["host"], rounds + idle, plain["plain_host"]),
        }

    def target_only(self, costs: dict[str, Array]) -> Array:
        """Times of the requests without speculation, ms, shape (C, R)."""
        return self.prefill[:, None] + np.outer(self._columns["plain_steps"], _plain(costs))

    def speculative(self, costs: dict[str, Array], rounds: Array, share: float) -> Array:
        """Times of the requests with rounds as given and passes of ``share * K`` drafted tokens, ms, shape (C, R)."""
        # a pass of more positions that took less than a plain step was lucky: then no line through the two is believed
        slope = np.maximum(0.0, costs["score"] - costs["plain_score"])
        score = costs["score"] + slope * (share - 1.0)
        each = (costs["idle_score"] + costs["host"], score + costs["host"])
        passes = np.outer(rounds[:, 0], each[0]) + np.outer(rounds[:, 1], each[1])
        return self.prefill[:, None] + passes + self._proposing(costs, rounds)

    def _proposing(self, costs: dict[str, Array], rounds: Array) -> Array:
        return (
            np.outer(rounds[:, 0], costs["idle_propose"])
            + np.outer(rounds[:, 1], costs["propose_fixed"])
            + np.outer(rounds[:, 2], costs["propose_token"])
            + np.outer(self._columns["prompt_tokens"], costs["reading"])
        )

    def log_ratio(self, before: Array, after: Array, weights: Array) -> Array:
        """Return the mean over prompts of the mean log ratio of a prompt's requests, shape (R,)."""
        ratios = np.log(before / after)
        means = np.zeros((self.num_prompts, ratios.shape[1]))
        np.add.at(means, self._prompt, ratios)
        means /= np.bincount(self._prompt, minlength=self.num_prompts)[:, None]
        result: Array = np.einsum("rp,pr->r", weights, means) / weights.sum(axis=1)
        return result

    def parts(self, costs: dict[str, Array], own: Array) -> tuple[float, dict[str, float], float]:
        """Return the ideal, the factors from it to the prediction at K, and the prediction without the proposer's time."""

        def geometric(before: Array, after: Array) -> float:
            return float(np.exp(self.log_ratio(before, after, own)[0]))

        rounds = self.rounds_at(self.wanted)
        idle, drafting = rounds[:, :1], rounds[:, 1:2]
        steps, plain = self._columns["plain_steps"][:, None], _plain(costs)
        before, after = steps * plain, (idle + drafting) * plain
        far = np.array([[item.far_rate] for item in self._requests])
        proposing = self._proposing(costs, rounds) - (idle + drafting) * costs["plain_propose"]
        wider = idle * (costs["idle_score"] - costs["plain_score"]) + drafting * (costs["score"] - costs["plain_score"])
        outside = (idle + drafting) * (costs["host"] - costs["plain_host"])
        prefill = self.prefill[:, None]
        stages = {
            "rounds near the end": (before, after),
            "draft time": (before, after + proposing),
            "wider passes": (before, after + proposing + wider),
            "host time": (before, after + proposing + wider + outside),
            "prefill": (before + prefill, after + proposing + wider + outside + prefill),
        }
        reached = ideal = geometric(far, np.ones_like(far))
        factors: dict[str, float] = {}
        for name, (one, other) in stages.items():
            now = geometric(one, other)
            factors[name], reached = now / reached, now
        one, other = stages["prefill"]
        return ideal, factors, geometric(one, other - proposing)


def _line(quiet: Array, rounds: Array, drafted: Array, propose: Array) -> tuple[Array, Array]:
    """Return fixed time and time per drafted token: from a round that drafts nothing to the mean of those that draft."""
    mean = _over(propose, rounds)
    token = np.maximum(0.0, _over(propose - quiet * rounds, drafted))
    return mean - token * _over(drafted, rounds), token


def _over(total: Array, count: Array, otherwise: Array | float = 0.0) -> Array:
    result: Array = np.divide(total, count, out=np.zeros_like(total) + otherwise, where=count > 0)
    return result


def _plain(costs: dict[str, Array]) -> Array:
    return costs["plain_propose"] + costs["plain_score"] + costs["plain_host"]


def _single(costs: dict[str, Array]) -> Costs:
    return Costs(**{name: float(value[0]) for name, value in costs.items()})


def _interval(estimate: float, resampled: Array, num_prompts: int, confidence: float) -> Interval:
    """Return the interval of a ratio whose logarithm was estimated and resampled."""
    error = float(np.std(resampled, ddof=1))
    if num_prompts < 2 or error < ROUNDING:
        return Interval(estimate=float(np.exp(estimate)), low=None, high=None)
    # a resample varies as if it knew the mean of the prompts, which costs one of them
    error *= float(np.sqrt(num_prompts / (num_prompts - 1)))
    half_width = float(student_t.isf((1.0 - confidence) / 2.0, num_prompts - 1)) * error
    return Interval(
        estimate=float(np.exp(estimate)),
        low=float(np.exp(estimate - half_width)),
        high=float(np.exp(estimate + half_width)),
    )
