"""
Evidence that may be looked at after every token.

An e-value at least ``1 / alpha`` rejects at level ``alpha``, at any time and however often it was looked at.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

DEFAULT_LAMBDAS = (-0.4, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, 0.4)

_MAX_LOG = float(np.log(np.finfo(np.float64).max))


def betting_e_value(g: ArrayLike, lambdas: Sequence[float] = DEFAULT_LAMBDAS) -> NDArray[np.float64]:
    """
    Return the wealth, after each token, of bettors who bet against the null "the mean of ``g`` is 0".

    Parameters
    ----------
    g : array_like, shape (N,)
        In the interval ``[-1, 1]``; the score minus its mean under the target's law, divided by a bound that does not
        depend on the token. In the order of emission.
    lambdas : sequence of float
        The stakes, fixed before the data; each ``-1 < lambda < 1``.

    Returns
    -------
    ndarray, shape (N,), float64
        The mean over the stakes of ``prod(1 + lambda * g)``, at most the largest finite float (wealth beyond it is cut,
        which only weakens the evidence).

    Raises
    ------
    ValueError
        ``g`` is not one-dimensional or leaves its interval, or a stake is missing or outside its interval.

    Notes
    -----
    Under the null every product is a non-negative martingale that starts at 1, and so is their mean; Ville's inequality
    gives ``P(ever >= 1/alpha) <= alpha`` [1]_. Computed in logarithms. Cost: O(N L) time and memory for L stakes.
    Held by: tests/stats/test_stats_evalue.py.

    References
    ----------
    .. [1] Ramdas, Grunwald, Vovk, Shafer, "Game-theoretic statistics and safe anytime-valid inference", 2023,
       arXiv:2210.01948.
    """
    steps = np.asarray(g, dtype=np.float64)
    stakes = np.asarray(lambdas, dtype=np.float64)
    if steps.ndim != 1:
        raise ValueError(f"g must have shape (N,), got {steps.shape}")
    if not (np.abs(steps) <= 1.0).all():
        raise ValueError("g must be in the interval [-1, 1]; divide the score by its bound")
    if stakes.ndim != 1 or stakes.size == 0 or not (np.abs(stakes) < 1.0).all():
        raise ValueError(f"lambdas must be at least one number in the interval -1 < lambda < 1, got {lambdas}")
    log_wealth = np.cumsum(np.log1p(stakes[:, None] * steps[None, :]), axis=1)
    log_mean = np.asarray(logsumexp(log_wealth, axis=0), dtype=np.float64) - np.log(stakes.size)
    running: NDArray[np.float64] = np.exp(np.minimum(log_mean, _MAX_LOG))
    return running
