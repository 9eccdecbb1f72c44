"""From which acceptance on speculation is faster, given what its parts cost."""

from scipy.optimize import brentq


def expected_emitted(acceptance: float, num_speculative_tokens: int) -> float:
    """
    Return the expected tokens of a round, ``(1 - a**(K+1)) / (1 - a)``.

    Parameters
    ----------
    acceptance : float, [0, 1]
        Probability a that a drafted token is accepted if those before it were, the same at every position.
    num_speculative_tokens : int, 1 or more
        K; every round drafts K.

    Returns
    -------
    float
        Between 1 and K + 1.

    Notes
    -----
    Source: Leviathan et al., arXiv:2211.17192, equation 1.
    """
    return sum(acceptance**power for power in range(num_speculative_tokens + 1))


def break_even(cost_ratio: float, num_speculative_tokens: int) -> float | None:
    """
    Return the acceptance at which a drafting round costs as much per token as plain steps.

    Parameters
    ----------
    cost_ratio : float, above 0
        Time of a drafting round (propose and score) over the time of a plain step.
    num_speculative_tokens : int, 1 or more
        K.

    Returns
    -------
    float or None
        In [0, 1]; 0 where a round costs no more than a step. None: no acceptance up to 1 is enough.
    """
    if cost_ratio <= 1:
        return 0.0
    if cost_ratio > num_speculative_tokens + 1:
        return None
    return float(brentq(lambda a: expected_emitted(a, num_speculative_tokens) - cost_ratio, 0.0, 1.0))
