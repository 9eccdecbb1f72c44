"""Judge a toy log: the sampled check's own tests, and bounds on rank cells. The only file here that knows how one judges."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.evidence import Outcome
from draftproof.stats.variation import pooled_tv
from draftproof.verify.cells import LAST_RANKS, STRATUM_LAST_RANKS, rank_cells
from draftproof.verify.controls.table import END_TOKEN
from draftproof.verify.log import TokenLog
from draftproof.verify.sampled import judge
from draftproof.verify.toy.run import ToyLog

ALPHA_FAIL, ALPHA_EQ = 1e-3, 0.05
DELTA, DELTA_STRATUM = 0.02, 0.05
STRATA = ("draft 1", "draft 2+", "bonus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    What is said of a log.

    Attributes
    ----------
    outcome : {"PASS", "FAIL", "INCONCLUSIVE"}
        FAIL: a test rejects at `ALPHA_FAIL`. PASS: none does, and the bounds are below `DELTA` and `DELTA_STRATUM`.
    p_value : float
        The smallest, adjusted for the number of tests.
    test : str
        Its test.
    bounds : dict of str to float
        Upper bounds of the total variation, "all" and by stratum; 1 where a stratum has no tokens.
    """

    outcome: Outcome
    p_value: float
    test: str
    bounds: dict[str, float]


def judge_toy(log: ToyLog) -> Verdict:
    """Judge a log; see `Verdict`. A place that the plan does not reach has bound 1, so that nothing passes unseen."""
    places = np.array(places_of(log))
    p_value, test = judge(
        TokenLog(
            cells=log.token_ids,
            laws=log.laws,
            contexts=log.contexts,
            strata=list(places.tolist()),
            sequences=log.sequences,
            positions=log.positions,
            after=list(log.outcomes),
            draft_laws=log.draft_laws,
            end_cell=END_TOKEN,
            num_speculative_tokens=log.num_speculative_tokens,
        )
    )
    bounds = {"all": _bound(log, np.ones(len(places), dtype=bool), LAST_RANKS)}
    bounds |= {name: _bound(log, places == name, STRATUM_LAST_RANKS) for name in STRATA}
    within = all(bound < (DELTA if name == "all" else DELTA_STRATUM) for name, bound in bounds.items())
    outcome: Outcome = "FAIL" if p_value < ALPHA_FAIL else "PASS" if within else "INCONCLUSIVE"
    return Verdict(outcome=outcome, p_value=p_value, test=test, bounds=bounds)


def places_of(log: ToyLog) -> list[str]:
    """Name each token's place in its round, as `verify.sampled.places` does."""
    names = np.where(log.offsets == 0, "draft 1", "draft 2+")
    names = np.where(log.offsets == log.num_proposed, "bonus", names)
    return list(np.where(log.num_proposed == 0, "plain", names).tolist())


def _bound(log: ToyLog, chosen: npt.NDArray[np.bool_], last_ranks: tuple[int, ...]) -> float:
    if not chosen.any():
        return 1.0
    cells, probs = rank_cells(log.laws[chosen], log.token_ids[chosen], last_ranks)
    part = pooled_tv(cells, probs, ALPHA_EQ)
    return part.upper_bound if part.upper_bound is not None else 1.0
