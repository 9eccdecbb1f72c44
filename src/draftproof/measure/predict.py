"""The cost model over a study's records: the speed-up it predicts for every k, beside the measured one. Runs nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof import evidence as ev
from draftproof.measure.compare import cells_of
from draftproof.stats.break_even import break_even
from draftproof.stats.cost_model import PairedRequest, PredictedK, Sums, predict
from draftproof.stats.other_k import RoundCount, trace

LARGEST_K = 15
"""The largest k that an engine takes."""
ENOUGH = 20
"""Rounds that must have accepted K tokens before anything is said about a larger k."""

Record = dict[str, Any]
Round = dict[str, Any]


def with_prediction(
    comparison: ev.Comparison, records: Sequence[Record], num_speculative_tokens: int, confidence: float
) -> ev.Comparison:
    """
    Add the prediction for every k, for each number of requests at a time.

    Parameters
    ----------
    comparison : Comparison
        What was measured.
    records : sequence of request records
        Without errors.
    num_speculative_tokens : int
        K, with which it was measured.
    confidence : float
        Of the intervals.

    Returns
    -------
    Comparison
        There is no prediction where the engine reports no rounds, where none of them drafted, or where requests arrived by
        themselves, since those wait for one another.
    """
    found = {}
    for name, effect in comparison.by_concurrency.items():
        cells = cells_of([record for record in records if str(record["concurrency"]) == name])
        cells = [cell for cell in cells if all(map(_is_modelled, cell.values()))]
        if any(item["num_proposed"] for cell in cells for item in cell["B"]["rounds"]):
            found[name] = _prediction(cells, effect, num_speculative_tokens, confidence)
    return comparison.model_copy(update={"prediction": found})


def _prediction(cells: Sequence[dict[str, Record]], effect: ev.Effect, wanted: int, confidence: float) -> ev.Prediction:
    drafting = [item for cell in cells for item in cell["B"]["rounds"] if item["num_proposed"]]
    full = [item for item in drafting if item["num_proposed"] == wanted]
    deep = [item for item in full if item["num_accepted"] >= wanted - 1]
    held = sum(item["num_accepted"] == wanted for item in deep)
    # the time of a batch's round is in the records of all that were in it
    shared = {(item["propose_ms"], item["score_ms"]) for item in drafting}
    requests = [_request(cell, wanted, held / len(deep) if deep else 0.0, shared) for cell in cells]
    longest = min(LARGEST_K, 2 * wanted) if held >= ENOUGH else wanted
    model = predict(requests, range(1, longest + 1), confidence, seed=0)
    by_k = [_row(item, wanted) for item in model.by_k]
    best = max(by_k, key=lambda row: row.speedup.estimate or 0.0)
    predicted, measured = by_k[wanted - 1].speedup, effect.speedup
    ratio = measured.estimate / predicted.estimate if measured.estimate and predicted.estimate else None
    costs, typical = model.costs, full or drafting
    drafted = _mean(typical, "num_proposed")
    accepted = _mean(typical, "num_accepted")
    return ev.Prediction(
        num_speculative_tokens=wanted,
        predicted=predicted,
        measured=measured,
        measured_over_predicted=ratio,
        by_k=by_k,
        best=best.num_speculative_tokens if (best.speedup.estimate or 0.0) > 1.0 else None,
        ideal=model.ideal,
        parts=model.parts | ({} if ratio is None else {"not explained": ratio}),
        without_drafting=model.without_drafting,
        costs_ms=ev.RoundCosts(
            plain_step=costs.plain,
            idle_round=costs.idle_propose + costs.idle_score + costs.host,
            drafting_round=costs.round(drafted),
            draft=costs.propose(drafted),
            score=costs.score,
            host=costs.host,
        ),
        accepted_per_round=accepted,
        acceptance=break_even(1.0 + accepted, wanted),
        break_even=break_even(costs.round(drafted) / costs.plain, wanted),
    )


def _is_modelled(record: Record) -> bool:
    return bool(record["rounds"]) and record.get("arrived_ms") is None


def _mean(rounds: Sequence[Round], name: str) -> float:
    return sum(float(item[name]) for item in rounds) / len(rounds)


def _row(item: PredictedK, wanted: int) -> ev.PredictedSpeedup:
    limits = item.speedup
    return ev.PredictedSpeedup(
        num_speculative_tokens=item.num_speculative_tokens,
        tokens_per_round=item.tokens_per_round,
        ms_per_token=item.ms_per_token,
        speedup=ev.Interval(estimate=limits.estimate, low=limits.low, high=limits.high),
        extrapolated=item.num_speculative_tokens > wanted,
    )


def _request(
    cell: Mapping[str, Record], wanted: int, bonus_acceptance: float, shared: set[tuple[float, float]]
) -> PairedRequest:
    record, plain = cell["B"], (cell["A1"], cell["A2"])
    rounds: list[Round] = record["rounds"]
    drafting = [item for item in rounds if item["num_proposed"]]
    idle = [item for item in rounds if not item["num_proposed"]]
    quiet = [item for item in idle if (item["propose_ms"], item["score_ms"]) not in shared]
    first, later = drafting[:1], drafting[1:]
    cut = record["finish_reason"] == "length"
    counts = [RoundCount(item["num_proposed"], item["num_accepted"], item["emitted"]) for item in rounds]
    return PairedRequest(
        prompt_id=record["prompt_id"],
        prefill=sum(map(_before_the_rounds, plain)) / 2,
        far_rate=_far_rate(counts, wanted, cut),
        trace=trace(counts, wanted, bonus_acceptance, cut=cut),
        sums=Sums(
            prompt_tokens=record["num_prompt_tokens"] if drafting else 0,
            plain_steps=sum(len(one["rounds"]) for one in plain) / 2,
            plain_propose=sum(_total(one["rounds"], "propose_ms") for one in plain) / 2,
            plain_score=sum(_total(one["rounds"], "score_ms") for one in plain) / 2,
            plain_host=sum(map(_between_rounds, plain)) / 2,
            first_rounds=len(first),
            first_drafted=_total(first, "num_proposed"),
            first_propose=_total(first, "propose_ms"),
            later_rounds=len(later),
            later_drafted=_total(later, "num_proposed"),
            later_propose=_total(later, "propose_ms"),
            score=_total(drafting, "score_ms"),
            idle_rounds=len(idle),
            idle_propose=_total(idle, "propose_ms"),
            idle_score=_total(idle, "score_ms"),
            quiet_rounds=len(quiet),
            quiet_propose=_total(quiet, "propose_ms"),
            host=_between_rounds(record),
        ),
    )


def _total(rounds: Sequence[Round], name: str) -> float:
    return sum(float(item[name]) for item in rounds)


def _before_the_rounds(record: Record) -> float:
    first = record["rounds"][0]
    return float(record["chunks"][0][1] - first["propose_ms"] - first["score_ms"])


def _between_rounds(record: Record) -> float:
    later = record["rounds"][1:]
    spent = _total(later, "propose_ms") + _total(later, "score_ms")
    return float(record["chunks"][-1][1] - record["chunks"][0][1]) - spent


def _far_rate(rounds: Sequence[RoundCount], wanted: int, cut: bool) -> float:
    """Return tokens per round over the rounds after which the request could still have gone on; over all if there is none."""
    size, place, far = sum(item.emitted for item in rounds), 0, []
    for item in rounds:
        if place + (wanted + 1 if cut else item.emitted + 1) <= size:
            far.append(item.emitted)
        place += item.emitted
    far = far or [item.emitted for item in rounds]
    return sum(far) / len(far)
