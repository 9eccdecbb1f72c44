"""What a sampled check will be able to say, and how long it takes: told before the run, from a pilot that is thrown away."""

import math

import numpy as np
import numpy.typing as npt

from draftproof.engines.base import EngineProtocol
from draftproof.evidence import PlannedPlace, SampledPlanned
from draftproof.stats.power import smallest_tv_of_score, tokens_for_pooled_bound
from draftproof.verify.battery import examine
from draftproof.verify.cells import coarser
from draftproof.verify.collect import EngineFailed, Forbidden, SampledDesign, collect
from draftproof.verify.live_controls import names_of_controls
from draftproof.verify.log import PLACES, TokenLog
from draftproof.verify.sampled import impossible_places
from draftproof.verify.search import SHARES
from draftproof.verify.worker import Worker

PILOT_BATCHES = 2
PILOT_SEED = 104_729  # away from the seeds of the check and its controls


def plan_sampled(engine: EngineProtocol, opened: Worker, design: SampledDesign) -> SampledPlanned | None:
    """
    Run a pilot on the check's worker and say what the check will see.

    Returns
    -------
    SampledPlanned or None
        None: the pilot failed, and so will the check, which says why.

    Notes
    -----
    The places' shares, the laws and the time per sequence are the pilot's; a test's smallest deviation is that of
    `stats.power.smallest_tv_of_score`, after the correction for as many tests as the pilot allows. ``enough`` holds where the
    tokens reach `stats.power.tokens_for_pooled_bound`, which gives a correct engine the bound with probability 0.9.
    """
    worker, drafts = opened.engine, opened.drafts
    pilot = min(PILOT_BATCHES * design.batch, design.sequences)
    began = engine.now_ms()
    try:
        log = collect(worker, design, pilot, design.seed + PILOT_SEED, lambda steps: None, drafts=drafts)
    except (EngineFailed, Forbidden):
        return None
    seconds_each = (engine.now_ms() - began) / 1e3 / pilot
    total = design.sequences + len(names_of_controls(engine)) * design.control_sequences
    alpha = design.alpha_fail / SHARES / max(1, sum(item.p_value is not None for item in examine(log)))
    places = [_place("all", np.ones(len(log.strata), bool), log, design, alpha)]
    for name in PLACES if worker.capabilities.reports_rounds else ():
        if name not in impossible_places(worker.capabilities.num_speculative_tokens):
            places.append(_place(name, np.array([place == name for place in log.strata]), log, design, alpha))
    return SampledPlanned(pilot_sequences=pilot, seconds=seconds_each * total, alpha=alpha, places=places)


def _place(
    name: str, chosen: npt.NDArray[np.bool_], log: TokenLog, design: SampledDesign, alpha: float
) -> PlannedPlace:
    tokens = round(float(chosen.mean()) * design.sequences * design.tokens)
    delta = design.delta if name == "all" else design.delta_stratum
    if not chosen.any():
        return PlannedPlace(place=name, tokens=0, smallest_deviation=1.0, expected_bound=1.0, delta=delta, enough=False)
    laws = log.laws[chosen]
    if name != "all" and design.allowed_token_ids is None:
        laws = coarser(log.cells[chosen], laws)[1]
    bounded = tokens_for_pooled_bound(laws.mean(axis=0), delta, design.alpha_eq)
    needed = max(bounded, 0 if name == "all" else design.min_stratum_tokens)
    return PlannedPlace(
        place=name,
        tokens=tokens,
        smallest_deviation=smallest_tv_of_score(tokens, alpha),
        # the bound falls with the square root of the tokens
        expected_bound=min(1.0, delta * math.sqrt(bounded / tokens)),
        delta=delta,
        enough=tokens >= needed,
        sequences_needed=math.ceil(needed / (float(chosen.mean()) * design.tokens)),
    )
