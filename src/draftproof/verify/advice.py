"""What would settle a sampled check that settled nothing."""

import math
from collections.abc import Sequence

import numpy as np

from draftproof.evidence import ControlResult
from draftproof.stats.power import tokens_for_pooled_bound
from draftproof.verify.cells import coarser
from draftproof.verify.collect import SampledDesign
from draftproof.verify.log import TokenLog


def advice(log: TokenLog, design: SampledDesign, short: Sequence[str], controls: Sequence[ControlResult]) -> list[str]:
    """
    Say what to change, one sentence each.

    Parameters
    ----------
    log : TokenLog
    design : SampledDesign
    short : sequence of str
        Where the tokens were too few or the bound too wide: places in the round, or "all".
    controls : sequence of ControlResult
    """
    said = [
        f"no token came at '{place}': take a draft that is accepted more often, or prompts that it can continue"
        for place in short
        if place != "all" and place not in log.strata
    ]
    wanted = [needed for place in short if (needed := _sequences(log, design, place))]
    if wanted:
        said.append(
            f"set sampled.sequences to about {_rounded(max(wanted))}: a correct engine then passes nine times in ten"
        )
    if any(item.kind == "defect" and not item.behaved for item in controls):
        said.append(
            "a planted defect was not found: raise sampled.control_sequences, or take prompts where more is drafted"
        )
    if any(item.kind == "lossless" and not item.behaved for item in controls):
        said.append(
            "the target-only arm itself does not follow the law that it is held against: mend that first, nothing can be judged by it"
        )
    return said


def _sequences(log: TokenLog, design: SampledDesign, place: str) -> int:
    """Return how many sequences a correct engine needs for its bound and quota at a place; 0 where no token came."""
    chosen = np.array([place in ("all", name) for name in log.strata])
    if not chosen.any():
        return 0
    laws, delta, quota = log.laws[chosen], design.delta, 0
    if place != "all":
        delta, quota = design.delta_stratum, design.min_stratum_tokens
        if design.allowed_token_ids is None:
            laws = coarser(log.cells[chosen], laws)[1]
    needed = max(quota, tokens_for_pooled_bound(laws.mean(axis=0), delta, design.alpha_eq))
    return math.ceil(needed / len(laws) * len(log.cells) / design.tokens)


def _rounded(count: int) -> int:
    """Round up to two digits."""
    step: int = 10 ** max(0, len(str(count)) - 2)
    return -(-count // step) * step
