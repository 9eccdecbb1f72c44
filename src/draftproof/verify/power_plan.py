"""What a sampled check will be able to say, and how long it takes: told before the run, from a pilot that is thrown away."""

import math

from draftproof.engines.base import EngineProtocol
from draftproof.evidence import PlannedPlace, SampledPlanned
from draftproof.stats.power import smallest_tv_of_score
from draftproof.verify.battery import examine
from draftproof.verify.collect import EngineFailed, Forbidden, SampledDesign, collect
from draftproof.verify.live_controls import names_of_controls
from draftproof.verify.log import PLACES, TokenLog
from draftproof.verify.needed import needed_at, rounded_up
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
    places = [_place("all", log, design, alpha)]
    for name in PLACES if worker.capabilities.reports_rounds else ():
        if name not in impossible_places(worker.capabilities.num_speculative_tokens):
            places.append(_place(name, log, design, alpha))
    return SampledPlanned(pilot_sequences=pilot, seconds=seconds_each * total, alpha=alpha, places=places)


def _place(name: str, log: TokenLog, design: SampledDesign, alpha: float) -> PlannedPlace:
    needed = needed_at(log, design, name)
    if needed is None:
        return PlannedPlace(
            place=name,
            tokens=0,
            smallest_deviation=1.0,
            expected_bound=1.0,
            delta=design.delta_stratum,
            enough=False,
        )
    tokens = round(needed.share * design.sequences * design.tokens)
    return PlannedPlace(
        place=name,
        tokens=tokens,
        smallest_deviation=smallest_tv_of_score(tokens, alpha),
        # the bound falls with the square root of the tokens
        expected_bound=min(1.0, needed.delta * math.sqrt(needed.for_bound / tokens)),
        delta=needed.delta,
        enough=design.sequences >= needed.sequences,
        sequences_needed=rounded_up(needed.sequences),
    )
