"""A sampled rejection in 16 bits, looked at again in float32, where a defect stays and rounding goes."""

from draftproof.engines.base import EngineProtocol
from draftproof.errors import DraftproofError
from draftproof.verify.collect import EngineFailed, Forbidden, SampledDesign
from draftproof.verify.search import search
from draftproof.verify.worker import open_worker

SEED = 15_485_863  # away from the seeds of the check, its controls and its pilot


def vanishes_in_float32(engine: EngineProtocol, design: SampledDesign) -> str | None:
    """
    Repeat a check that rejected, with other seeds, on a float32 copy of the target.

    Returns
    -------
    str or None
        Why the rejection is not one of the algorithm; None where it stays, where the engine is in float32 already, or where
        that cannot be run.
    """
    if "float32" not in engine.capabilities.control_arms:
        return None
    try:
        again = search(
            open_worker(engine.control_arm("float32"), design),
            design,
            design.seed + SEED,
            lambda steps: None,
            lambda text: None,
        )
    except (DraftproofError, EngineFailed, Forbidden):
        return None
    if again.p_value < design.alpha_fail:
        return None
    return f"in float32 nothing is rejected (adjusted p = {again.p_value:.2g}): rounding, not the algorithm"
