"""Compare the greedy arms token for token, and judge each first difference. Times nothing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from scipy.stats import binom

from draftproof.engines.base import EngineProtocol, Reporting
from draftproof.evidence import Divergence, GreedyResult, GreedyTriage, Outcome
from draftproof.verify.anchor import Anchor
from draftproof.verify.noise_floor import NoiseFloor, measure_noise
from draftproof.verify.reported import triage_all_reported
from draftproof.verify.triage import MULTI_ROW, Controls, Finding, Place, find_place, triage

# differences, the worst first, for which the target drafts for itself and float32 is run
CONTROLLED = 8
# where any difference is FAIL, they only name its cause
CONTROLLED_STRICT = 2
ALPHA = 0.01
SEEN = 0.95
RATE_FACTOR = 2
# upper edges of the histogram of gaps, in units of tau
EDGES = (0.0, 0.25, 0.5, 1.0, 2.0)
STRICT = ("bitwise", "bitwise_same_batch")


def compare_greedy(
    engine: EngineProtocol,
    records: Sequence[dict[str, Any]],
    encode: dict[str, list[int]],
    anchored: Anchor | None = None,
    *,
    most_likely: bool = True,
) -> GreedyResult:
    """
    Judge the B arm against the A arm of the same prompt, and the A arm against its own repetition.

    Parameters
    ----------
    engine : EngineProtocol
        Idle; it scores the differences.
    records : sequence of request records
    encode : mapping of prompt id to the prompt's token ids
    anchored : Anchor or None
        The target-only arm against the plain model; beyond its bound is a FAIL whatever the arms agree on.
    most_likely : bool
        Whether the requests took the most likely token. Sampled ones, which share their random numbers, have no regret, and
        their differences are not explained.

    Notes
    -----
    Where the engine claims bitwise equality any difference is a FAIL. Elsewhere a defect is one, and differences that are all
    explained as ties are a PASS; what cannot be told is INCONCLUSIVE. docs/exactness.md has the rules.
    """
    strict = engine.capabilities.claim in STRICT
    cells: dict[tuple[str, int, int], dict[str, dict[str, Any]]] = {}
    for item in records:
        cells.setdefault((item["prompt_id"], item["repeat"], item["concurrency"]), {})[item["block"]] = item
    pairs = [(cell["A1"], cell["B"]) for cell in cells.values() if {"A1", "B"} <= cell.keys()]
    places = [place for one, other in pairs if (place := find_place(encode[one["prompt_id"]], one, other)) is not None]
    repeats = [(cell["A1"], cell["A2"]) for cell in cells.values() if {"A1", "A2"} <= cell.keys()]
    repeated = sum(one["token_ids"] == other["token_ids"] for one, other in repeats)
    divergences, judged, outcome = _judge(engine, records, encode, pairs, places, most_likely)
    reasons = list[str]()
    if not pairs:
        reasons.append("no request was run in both arms")
    if repeated < len(repeats):
        reasons.append(f"the target-only arm gave the same tokens again on {repeated} of {len(repeats)} prompts")
    if outcome == "PASS" and reasons:
        outcome = "INCONCLUSIVE"
    if strict and pairs and (places or repeated < len(repeats)):
        outcome = "FAIL"
    if anchored is not None and not anchored.holds:
        outcome = "FAIL"
        reasons.append(
            f"the target-only arm is {anchored.worst_regret:.3g} logits below the plain model's best, and rounding explains "
            f"{anchored.bound:.3g}"
        )
    apart = engine.capabilities.details.get("shape_class", {}).get("apart", ())
    if pairs and apart:
        outcome = "FAIL"
        reasons.append(f"{MULTI_ROW}, or its one-row pass: they differ by more than rounding ({', '.join(apart)})")
    return GreedyResult(
        outcome=outcome,
        prompts=len(pairs),
        identical=len(pairs) - len(places),
        tokens=sum(len(one["token_ids"]) for one, _ in pairs),
        divergences=divergences,
        repeatability_prompts=len(repeats),
        repeatability_identical=repeated,
        how="every generated token id of the speculative arm was compared with the target-only arm's of the same "
        "prompt, run one after the other by the same engine",
        anchor_tokens=anchored.tokens if anchored else None,
        anchor_regret=anchored.worst_regret if anchored else None,
        anchor_bound=anchored.bound if anchored else None,
        triage=judged,
        reasons=reasons,
        smallest_rate=smallest_rate({one["prompt_id"]: len(one["token_ids"]) for one, _ in pairs}),
    )


def smallest_rate(tokens_of: Mapping[str, int]) -> float | None:
    """
    Return the rate of differing tokens of which a run shows at least one with probability `SEEN`; None without tokens.

    Each prompt counts once: its repeats are no further tokens. About 3 / N; tokens are taken to differ independently.
    """
    tokens = sum(tokens_of.values())
    return 1.0 - (1.0 - SEEN) ** (1.0 / tokens) if tokens else None


def _judge(
    engine: EngineProtocol,
    records: Sequence[dict[str, Any]],
    encode: dict[str, list[int]],
    pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]],
    places: Sequence[Place],
    most_likely: bool,
) -> tuple[list[Divergence], GreedyTriage | None, Outcome]:
    """Return the differences, how they were judged, and what they amount to where equality is not claimed."""
    if not places:
        return [], None, "PASS"
    if not most_likely:
        unread = Finding(kind=None, cause="not explained", notes=("sampled requests have no regret",))
        return [_divergence(engine, place, unread, None) for place in places], None, "INCONCLUSIVE"
    if engine.capabilities.score_top and not engine.capabilities.score:
        noise, found = triage_all_reported(cast(Reporting, engine), records, encode, places)
        controlled = 0
    else:
        noise = measure_noise(engine, records, encode)
        found = [triage(engine, noise, place) for place in places]
        most = CONTROLLED_STRICT if engine.capabilities.claim in STRICT else CONTROLLED
        controlled = min(most, len(places))
    controls = Controls(engine)
    worst_first = sorted(range(len(found)), key=lambda index: _badness(found[index]), reverse=True)
    for index in worst_first[:controlled]:
        found[index] = controls.check(found[index], places[index])
    controls.close()
    divergences = [_divergence(engine, place, one, noise.tau) for place, one in zip(places, found, strict=True)]
    # repeats and other loads of a prompt tell nothing new about a rate
    first = {
        id(one): other
        for one, other in pairs
        if one["repeat"] == 0 and one["concurrency"] == pairs[0][0]["concurrency"]
    }
    at = {id(place.target_only): place.at + 1 for place in places}
    compared = sum(at.get(name, len(other["token_ids"])) for name, other in first.items())
    ties = sum(
        id(place.target_only) in first and one.kind in ("OK", "TIE") for place, one in zip(places, found, strict=True)
    )
    p_value = rate_p_value(ties, compared, noise.flips, noise.positions)
    reasons, outcome = _reasons(engine, noise, found, p_value)
    judged = GreedyTriage(
        tau=noise.tau,
        noise=noise.noise,
        ulp_floor=noise.floor,
        cap=noise.cap,
        noise_positions=noise.positions,
        target_flips=noise.flips,
        compared=compared,
        ties=ties,
        tie_rate=ties / compared if compared else None,
        target_flip_rate=noise.flips / noise.positions if noise.positions else None,
        rate_p_value=p_value,
        controlled=controlled,
        gap_histogram=_histogram([one.gap for one in found if one.gap is not None], noise.tau),
        worst=divergences[max(range(len(found)), key=lambda index: _badness(found[index]))],
        reasons=reasons,
    )
    return divergences, judged, outcome


def rate_p_value(ties: int, compared: int, flips: int, positions: int) -> float | None:
    """
    Return the chance of so many ties or more if their rate were twice the target's own rate of flips.

    Given the sum of two Poisson counts, one of them is binomial. None: the target's own rate was not measured.
    """
    if not positions or not compared:
        return None
    share = RATE_FACTOR * compared / (RATE_FACTOR * compared + positions)
    return float(binom.sf(ties - 1, ties + flips, share))


def _reasons(
    engine: EngineProtocol, noise: NoiseFloor, found: Sequence[Finding], p_value: float | None
) -> tuple[list[str], Outcome]:
    defects = sorted({one.cause for one in found if one.is_defect})
    vanished = sum(one.kind == "DEFECT" and not one.is_defect for one in found)
    unexplained = sum(one.is_open for one in found) - vanished
    reasons = [f"defect: {cause}" for cause in defects]
    if vanished:
        reasons.append(f"{vanished} beyond tau, and gone in float32")
    if unexplained:
        reasons.append(f"{unexplained} not explained by the passes that were run")
    if noise.noise is None:
        reasons.append("the target's own noise was not measured, so its cap was used")
    if noise.too_large:
        reasons.append(
            f"the target's own noise, {noise.noise:.3g} logits, is above {noise.cap:g}: it may not excuse so much"
        )
    if p_value is not None and p_value < ALPHA:
        reasons.append(f"ties are more than twice as frequent as the target's own flips (p = {p_value:.2g})")
    if engine.capabilities.claim == "lossy":
        return [*reasons, "the engine is lossy by its own account"], "INCONCLUSIVE"
    if defects:
        return reasons, "FAIL"
    return reasons, "INCONCLUSIVE" if reasons else "PASS"


def _badness(found: Finding) -> tuple[bool, bool, float]:
    return found.kind == "DEFECT", found.is_open, math.inf if found.regret is None else found.regret


def _histogram(gaps: Sequence[float], tau: float) -> list[tuple[float | None, int]]:
    edges = [edge * tau for edge in EDGES]
    bins = [sum(gap > edge for edge in edges) for gap in gaps]
    return [(edge, bins.count(index)) for index, edge in enumerate([*edges, None])]


def _divergence(engine: EngineProtocol, place: Place, found: Finding, tau: float | None) -> Divergence:
    first, second = place.tokens
    strict = "the engine claims bitwise equality: a defect" if engine.capabilities.claim in STRICT else ""
    return Divergence(
        prompt_id=place.target_only["prompt_id"],
        category=place.target_only["category"],
        position=place.at,
        target_only_token=first,
        speculative_token=second,
        regret=found.regret,
        note="; ".join(part for part in (strict, *found.notes) if part),
        kind=found.kind,
        cause=found.cause,
        gap=found.gap,
        tau=tau,
        explained=found.explained,
        confirmed=found.confirmed,
    )
