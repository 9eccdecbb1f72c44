"""How many tokens, and so sequences, a correct engine needs to pass at a place in the round."""

import math
from dataclasses import dataclass

import numpy as np

from draftproof.stats.power import tokens_for_pooled_bound
from draftproof.verify.cells import coarser
from draftproof.verify.collect import SampledDesign
from draftproof.verify.log import TokenLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """
    What is needed at one place.

    Attributes
    ----------
    share : float
        Of all tokens, those that fall here.
    delta : float
        The bound that is allowed.
    for_bound : int
        Tokens here for the bound.
    sequences : int
        For the bound and the registered quota.
    """

    share: float
    delta: float
    for_bound: int
    sequences: int


def needed_at(log: TokenLog, design: SampledDesign, place: str) -> Needed | None:
    """
    Return what is needed at a place in the round, or at "all", as far as a log tells; None where it has no token there.

    The bound is that of `stats.power.tokens_for_pooled_bound`, which a correct engine reaches with probability 0.9.
    """
    chosen = np.array([place in ("all", name) for name in log.strata])
    if not chosen.any():
        return None
    laws, delta, quota = log.laws[chosen], design.delta, 0
    if place != "all":
        delta, quota = design.delta_stratum, design.min_stratum_tokens
        if design.allowed_token_ids is None:
            laws = coarser(log.cells[chosen], laws)[1]
    for_bound = tokens_for_pooled_bound(laws.mean(axis=0), delta, design.alpha_eq)
    share = float(chosen.mean())
    sequences = math.ceil(max(quota, for_bound) / (share * design.tokens))
    return Needed(share=share, delta=delta, for_bound=for_bound, sequences=sequences)


def rounded_up(count: int) -> int:
    """Round up to two digits: what a log tells is no more exact."""
    step: int = 10 ** max(0, len(str(count)) - 2)
    return -(-count // step) * step
