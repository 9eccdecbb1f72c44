"""The speed-up for every k from the acceptance by position and three times: no records, no prefill, no end of a request."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from draftproof.stats.break_even import break_even


class ExpectedK(NamedTuple):
    """What one k gives."""

    num_speculative_tokens: int
    tokens_per_round: float
    ms_per_token: float
    speedup: float
    break_even: (
        float | None
    )  # the acceptance, the same at every position, from which on k pays; None: no acceptance does


def expected_by_k(
    acceptance: Sequence[float], *, draft_ms: float, target_ms: float, score_ms: float
) -> list[ExpectedK]:
    """
    Return what each k gives, from 1 to the number of positions.

    Parameters
    ----------
    acceptance : sequence of float, [0, 1], 1 or more
        Chance that the draft is accepted at each position, if it was accepted before it.
    draft_ms, target_ms, score_ms : float, above 0 (draft_ms: 0 or more)
        A drafted token, a target-only step, and the pass that scores a draft.

    Notes
    -----
    A round gives 1 + a1 + a1 a2 + ... tokens. With one acceptance at every position and ``score_ms = target_ms`` the speed-up is
    that of Leviathan et al., arXiv:2211.17192, theorem 3.8.
    """
    tokens = 1.0 + np.cumsum(np.cumprod(acceptance))
    rows = []
    for k, emitted in enumerate(tokens.tolist(), start=1):
        spent = k * draft_ms + score_ms
        needed = break_even(spent / target_ms, k)
        rows.append(ExpectedK(k, emitted, spent / emitted, target_ms * emitted / spent, needed))
    return rows
