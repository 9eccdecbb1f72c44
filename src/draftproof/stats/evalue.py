"""
Evidence that may be looked at after every token.

An e-value at least ``1 / alpha`` rejects at level ``alpha``, at any time and however often it was looked at.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlogy

CONCENTRATIONS = (20.0, 100.0, 500.0)
STAKES = (-0.4, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, 0.4)


def log_wealth(g: ArrayLike) -> NDArray[np.float64]:
    """
    Return what a block of tokens adds to the log wealth of bettors who bet against the null "the mean of ``g`` is 0".

    Parameters
    ----------
    g : array_like, shape (N,)
        In the interval ``[-1, 1]``; the score minus its mean under the target's law, divided by a bound that does not
        depend on the token. The bound may differ from token to token, if it was fixed before the token.

    Returns
    -------
    ndarray, shape (L,), float64
        ``sum log(1 + lambda * g)`` for each stake lambda of `STAKES`; sums of blocks are those of the whole. The mean of their
        exponentials is an e-value.

    Raises
    ------
    ValueError
        ``g`` is not one-dimensional or leaves its interval.

    Notes
    -----
    Under the null every product ``prod(1 + lambda * g)`` is a non-negative martingale that starts at 1, and so is their mean;
    Ville's inequality gives ``P(ever >= 1/alpha) <= alpha`` [1]_. Cost: O(N L).
    Held by: tests/stats/test_stats_evalue.py.

    References
    ----------
    .. [1] Ramdas, Grunwald, Vovk, Shafer, "Game-theoretic statistics and safe anytime-valid inference", 2023,
       arXiv:2210.01948.
    """
    steps = np.asarray(g, dtype=np.float64)
    if steps.ndim != 1:
        raise ValueError(f"g must have shape (N,), got {steps.shape}")
    if not (np.abs(steps) <= 1.0).all():
        raise ValueError("g must be in the interval [-1, 1]; divide the score by its bound")
    added: NDArray[np.float64] = np.log1p(np.outer(STAKES, steps)).sum(axis=1)
    return added


def dirichlet_log_e_value(counts: ArrayLike, probs: ArrayLike, concentration: float) -> NDArray[np.float64]:
    """
    Return the log e-value of each context against the null that its tokens were drawn from its law.

    Parameters
    ----------
    counts : array_like, shape (C, m)
        How often each cell came in each context, so far.
    probs : array_like, shape (C, m)
        The law of each context; rows sum to 1.
    concentration : float, above 0
        ``A``: the alternative is centred on the law, the closer the larger A is.

    Returns
    -------
    ndarray, shape (C,), float64
        Add them over contexts for the log e-value of a run. Infinite where a cell of probability zero came.

    Raises
    ------
    ValueError
        The shapes differ, an entry is negative, or the concentration is not above 0.

    Notes
    -----
    The likelihood ratio of a Dirichlet-multinomial mixture to the law [1]_,
    ``lnG(A) - lnG(A + n) + sum_c [lnG(A p_c + n_c) - lnG(A p_c) - n_c ln p_c]``. It depends on the counts alone, and as a
    process in the tokens it is a non-negative martingale that starts at 1. Cost: O(C m).
    Held by: tests/stats/test_stats_evalue.py.

    References
    ----------
    .. [1] Lindon, Malek, "Anytime-valid inference for multinomial count data", 2022, arXiv:2011.03567.

    Examples
    --------
    >>> np.exp(dirichlet_log_e_value([[1, 0], [2, 0]], [[0.5, 0.5], [0.5, 0.5]], 2.0)).round(6)
    array([1.      , 1.333333])
    """
    seen, laws = np.asarray(counts, dtype=np.float64), np.asarray(probs, dtype=np.float64)
    if seen.ndim != 2 or seen.shape != laws.shape:
        raise ValueError(f"counts and probs must have one shape (C, m), got {seen.shape} and {laws.shape}")
    if not (seen >= 0.0).all() or not (laws >= 0.0).all() or not concentration > 0.0:
        raise ValueError("counts and probs must not be negative, and the concentration must be above 0")
    possible = laws > 0.0
    prior = np.where(possible, concentration * laws, 1.0)
    gained = gammaln(prior + seen) - gammaln(prior) - xlogy(seen, np.where(possible, laws, 1.0))
    gained = np.where(possible, gained, np.where(seen > 0.0, np.inf, 0.0))
    total: NDArray[np.float64] = gained.sum(axis=1) + gammaln(concentration) - gammaln(concentration + seen.sum(axis=1))
    return total
