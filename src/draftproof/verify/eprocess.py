"""
Evidence against the target's law that may be looked at after every block, so that a wrong decoder is stopped early.

It can only say FAIL: that nothing was found says nothing. By Ville's inequality the value of a
correct decoder ever reaches 1 / alpha with probability alpha at most.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from draftproof.stats.evalue import CONCENTRATIONS, STAKES, dirichlet_log_e_value, log_wealth
from draftproof.verify.log import TokenLog
from draftproof.verify.scores import scores

SCOPES = ("all tokens", "bonus", "after a rejection")

Array = npt.NDArray[np.float64]


class EProcess:
    """
    The mean of several e-values, each a martingale in the tokens of a correct decoder.

    Attributes
    ----------
    log_e : float
        Now.
    largest_log_e : float
        At the look where it was largest; ``exp(-largest_log_e)`` is a p value that holds at any time.

    Notes
    -----
    Dirichlet-multinomial mixtures over the counts per context; and bets on each score (`scores`), on all tokens, on bonus
    tokens and on those after a rejection. A score is divided by the largest deviation that it can have at that token.
    Sequence after sequence the tokens are a martingale's steps whatever ran at the same time, since sequences have their
    own random streams. Source: see `stats.evalue`. Held by: tests/verify/test_verify_eprocess.py.
    """

    def __init__(self) -> None:
        self.log_e = self.largest_log_e = 0.0
        self._rows: dict[int, int] = {}
        self._laws: list[Array] = []
        self._counts = np.zeros((0, 0))
        self._wealth: dict[tuple[str, str], Array] = {}

    def update(self, block: TokenLog) -> float:
        """Take a further block of tokens, of the same kind as those before, and return the log e-value after it."""
        self._count(block)
        self._bet(block)
        laws = np.stack(self._laws)
        parts = [float(dirichlet_log_e_value(self._counts, laws, size).sum()) for size in CONCENTRATIONS]
        parts += [float(logsumexp(wealth)) - math.log(len(STAKES)) for wealth in self._wealth.values()]
        self.log_e = math.inf if math.inf in parts else float(logsumexp(parts)) - math.log(len(parts))
        self.largest_log_e = max(self.largest_log_e, self.log_e)
        return self.log_e

    def _count(self, block: TokenLog) -> None:
        for context, law in zip(block.contexts.tolist(), block.laws, strict=True):
            if context not in self._rows:
                self._rows[context] = len(self._laws)
                self._laws.append(law / law.sum())
        grown = np.zeros((len(self._laws), block.laws.shape[1]))
        grown[: len(self._counts)] = self._counts.reshape(-1, grown.shape[1])
        rows = np.array([self._rows[context] for context in block.contexts.tolist()], dtype=np.int64)
        grown += np.bincount(rows * grown.shape[1] + block.cells, minlength=grown.size).reshape(grown.shape)
        self._counts = grown

    def _bet(self, block: TokenLog) -> None:
        places = np.array(block.strata)
        before = np.array(block.after if block.after is not None else block.strata)
        chosen = dict(zip(SCOPES, (np.ones(len(places), bool), places == "bonus", before == "rejected"), strict=True))
        for name, values in scores(block).items():
            g = _bounded(values, block)
            for scope, tokens in chosen.items():
                start = self._wealth.setdefault((name, scope), np.zeros(len(STAKES)))
                self._wealth[name, scope] = start + log_wealth(g[tokens])


def _bounded(values: Array, block: TokenLog) -> Array:
    """Return each token's score minus its mean, over its largest size among the cells that can come; 0 where unknown."""
    laws = block.laws / block.laws.sum(axis=1, keepdims=True)
    values = np.nan_to_num(values)
    deviations = np.where(laws > 0.0, values - (laws * values).sum(axis=1, keepdims=True), 0.0)
    bound = np.abs(deviations).max(axis=1)
    observed = deviations[np.arange(len(block.cells)), block.cells]
    g: Array = np.divide(observed, bound, out=np.zeros_like(observed), where=bound > 1e-12)
    return np.clip(g, -1.0, 1.0)
