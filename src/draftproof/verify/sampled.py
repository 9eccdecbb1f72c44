"""
Is the sampled speculative output drawn from the target's law?

Fixed prompts, many seeds; a small allowed vocabulary, or the whole of it in rank cells. Every token is judged by the target's
probabilities after its own prefix, which an independent pass of the plain model gives, or a server's target-only arm reports;
the speculative pass never judges itself.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from draftproof.engines.base import EngineProtocol
from draftproof.evidence import ControlResult, Outcome, SampledResult, SmallestDeviation
from draftproof.stats.goodness import pooled_chi2
from draftproof.stats.power import POWER, smallest_tv_of_chi2, smallest_tv_of_score
from draftproof.stats.variation import TVResult, pooled_tv
from draftproof.verify.advice import advice
from draftproof.verify.battery import NamedResult, examine, least
from draftproof.verify.cells import coarser
from draftproof.verify.collect import Advance, EngineFailed, Forbidden, Read, SampledDesign
from draftproof.verify.float32 import vanishes_in_float32
from draftproof.verify.live_controls import run_controls
from draftproof.verify.log import PLACES, TokenLog
from draftproof.verify.rule_check import CheckedRule, against_rule, check_rule
from draftproof.verify.search import SHARES, Tell, search
from draftproof.verify.unread import unread

CURVE_POINTS = 20


def verify_sampled(
    engine: EngineProtocol,
    design: SampledDesign,
    advance: Advance,
    tell: Tell = lambda text: None,
    read: Read | None = None,
    checked: CheckedRule | None = None,
) -> tuple[SampledResult, list[ControlResult]]:
    """
    Run the check and its controls.

    Parameters
    ----------
    engine : EngineProtocol
    design : SampledDesign
    advance : callable
        Gets the number of sequences that were finished.
    tell : callable
        Gets the e-value and the bound after each block.
    read : Read or None
        Where the target's law comes from; None is its own pass.
    checked : CheckedRule or None
        The worker to use, whose rule was looked at; None opens one.

    Returns
    -------
    SampledResult, list of ControlResult
        PASS needs: an accept rule whose law is the target's (`verify.identity`), nothing rejected at ``alpha_fail``, the
        upper bound on the total variation below ``delta``, every stratum covered and its bound below ``delta_stratum``, and
        controls that behaved. Where they did not, the outcome is INCONCLUSIVE whatever else was seen; as it is where a
        rejection in 16 bits is gone in float32.

    Notes
    -----
    Rejection: see `verify.search`. Bound: Azuma with a union over the sets of cells.
    """
    opened, identity = checked or check_rule(engine, design, judged_elsewhere=read is not None)
    worker = opened.engine
    result = unread(worker, design).model_copy(update={"identity": identity})
    try:
        found = search(opened, design, design.seed, advance, tell, read)
    except EngineFailed as failure:
        return result.model_copy(update={"reasons": [str(failure)]}), []
    except Forbidden as defect:
        return result.model_copy(update={"outcome": "FAIL", "reasons": [str(defect)]}), []
    log, p_value = found.log, found.p_value
    strata, missed = _strata(worker, design, log)
    whole = pooled_tv(log.cells, log.laws, design.alpha_eq)
    if whole.upper_bound is None or whole.upper_bound >= design.delta:
        missed["all"] = f"the bound on the total variation, {whole.upper_bound:.3f}, is not below {design.delta}"
    reasons = list(missed.values())
    controls = run_controls(engine, opened, design, advance, lambda log: least(examine(log))[0], read)
    misbehaved = [f"control '{item.name}' did not behave" for item in controls if not item.behaved]
    against = against_rule(identity)
    if p_value < design.alpha_fail:
        said = f"{found.loudest}: adjusted p = {p_value:.2g} is below {design.alpha_fail}"
        rounding = vanishes_in_float32(engine, design) if read is None and not against else None
        if rounding is None:
            against.append(said)
        else:
            reasons += [said, rounding]
    outcome: Outcome = "INCONCLUSIVE" if reasons or misbehaved else "PASS"
    if against and not misbehaved:
        outcome = "FAIL"
    result = result.model_copy(
        update={
            "outcome": outcome,
            "sequences": len(log.cells) // design.tokens,
            "tokens": whole.tokens,
            "tv_estimate": whole.estimate,
            "tv_upper_bound": whole.upper_bound,
            "p_value": p_value,
            "strata": strata,
            "reasons": [*against, *reasons, *misbehaved],
            "advice": advice(log, design, list(missed), controls) if outcome == "INCONCLUSIVE" else [],
            "tv_by_n": _curve(log, design),
            "tests": [item.row for item in found.tests],
            "smallest_deviation": smallest_deviation(log, found.tests, design.alpha_fail) if found.tests else None,
        }
    )
    return result, controls


def judge(log: TokenLog) -> tuple[float, str]:
    """Return the smallest p value, adjusted by Holm over all tests of `battery.examine`, and the name of its test."""
    return least(examine(log))


def smallest_deviation(log: TokenLog, tests: Sequence[NamedResult], alpha_fail: float) -> SmallestDeviation:
    """Return what tests of this size find with power 0.9 if each is adjusted for the number of all of them."""
    alpha = alpha_fail / SHARES / max(1, sum(item.p_value is not None for item in tests))
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


def impossible_places(num_speculative_tokens: int | None) -> tuple[str, ...]:
    """Return the places that no quota is asked of: those that cannot come, and plain steps, where nothing is speculative."""
    return ("plain", "draft 2+") if num_speculative_tokens == 1 else ("plain",)


def _strata(
    worker: EngineProtocol, design: SampledDesign, log: TokenLog
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a row for each place in the round, and by place what keeps PASS away."""
    rows, missed = [], dict[str, str]()
    for name in PLACES if worker.capabilities.reports_rounds else ():
        part = place_bound(log, name, design)
        rows.append({"place in the round": name, "tokens": part.tokens, "TV": part.estimate, "bound": part.upper_bound})
        if name in impossible_places(worker.capabilities.num_speculative_tokens):
            continue
        if part.tokens < design.min_stratum_tokens:
            missed[name] = f"only {part.tokens} tokens at '{name}', {design.min_stratum_tokens} were registered"
        elif part.upper_bound is None or part.upper_bound >= design.delta_stratum:
            missed[name] = f"bound {part.upper_bound:.3f} at '{name}' is not below {design.delta_stratum}"
    return rows, missed


def place_bound(log: TokenLog, place: str, design: SampledDesign) -> TVResult:
    """Return the total variation of the tokens of one place, in the cells of a stratum."""
    chosen = np.array([name == place for name in log.strata])
    cells, laws = log.cells[chosen], log.laws[chosen]
    if design.allowed_token_ids is None:
        cells, laws = coarser(cells, laws)
    return pooled_tv(cells, laws, design.alpha_eq)


def _curve(log: TokenLog, design: SampledDesign) -> list[tuple[int, float, float]]:
    steps = np.unique(np.linspace(len(log.cells) / CURVE_POINTS, len(log.cells), CURVE_POINTS).astype(int))
    found = [(int(n), pooled_tv(log.cells[:n], log.laws[:n], design.alpha_eq)) for n in steps if n > 0]
    return [(n, item.estimate or 0.0, item.upper_bound or 1.0) for n, item in found]
