"""The scores that tokens are judged by: fixed before a token is seen, each the sign of one kind of mistake."""

import numpy as np
import numpy.typing as npt

from draftproof.verify.log import TokenLog

LEAST = 1e-300
"""What a probability of zero counts as in a logarithm."""
LEAKAGE_LIMITS = (-1.0, 3.0)


def scores(log: TokenLog) -> dict[str, npt.NDArray[np.float64]]:
    """
    Return each score of every cell at every token, (N, m); rows of NaN where it is not known.

    Notes
    -----
    "log-probability" sees a law that is too sharp or too flat, "top-1" a preference for the likeliest token, and "end"
    what is done with the end of a text. Where the draft's law is known, "draft favours it" (the draft gives the token more
    than the target) and "draft's excess" (draft / target - 1, clipped) see drafted tokens that come too often; the latter is
    the efficient score for a mixture of both laws.
    """
    laws = log.laws
    found = {
        "log-probability": np.log(np.maximum(laws, LEAST)),
        "top-1": (laws == laws.max(axis=1, keepdims=True)).astype(np.float64),
    }
    if log.end_cell is not None:
        found["end"] = np.broadcast_to(np.arange(laws.shape[1]) == log.end_cell, laws.shape).astype(np.float64)
    if log.draft_laws is not None:
        drafts = log.draft_laws
        unknown = np.isnan(drafts)
        excess = np.clip(drafts / np.maximum(laws, LEAST) - 1.0, *LEAKAGE_LIMITS)
        found["draft favours it"] = np.where(unknown, np.nan, drafts > laws)
        found["draft's excess"] = excess
    return found
