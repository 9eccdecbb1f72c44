"""What the tests of sampled output read: one entry per generated token. Knows neither engines nor tests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.records import Completion

UNKNOWN = "unknown"
PLACES = ("plain", "draft 1", "draft 2+", "bonus")

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLog:
    """
    One entry per generated token, sequence after sequence, each in the order of its positions.

    Attributes
    ----------
    cells : ndarray, shape (N,), int64
        What was generated, as a column of ``laws``.
    laws : ndarray, shape (N, m), float64
        The target's probabilities after the token's own prefix, by a pass of the plain model.
    contexts : ndarray, shape (N,), int64
        Tokens with equal numbers have the same law.
    strata : list of str
        The place in the round, as `places` names it.
    sequences, positions : ndarray, shape (N,), int64, or None
        Which sequence, and the index in it; None where that is not known, and what needs it is then not tested.
        Neighbouring numbers ran side by side.
    after : list of str, or None
        How the round before ended, as `outcomes_before` names it.
    draft_laws : ndarray, shape (N, m), float64, or None
        What a drafted token was drawn from; rows of NaN where nothing was drafted.
    end_cell : int or None
        The cell of the token that ends a text, where one is among them.
    num_speculative_tokens : int or None
        K.
    other_cell : int or None
        The first cell that stands for several tokens, where there is one; all after it do too.
    """

    cells: Integers
    laws: Array
    contexts: Integers
    strata: list[str]
    sequences: Integers | None = None
    positions: Integers | None = None
    after: list[str] | None = None
    draft_laws: Array | None = None
    end_cell: int | None = None
    num_speculative_tokens: int | None = None
    other_cell: int | None = None


def joined(logs: Sequence[TokenLog]) -> TokenLog:
    """Return blocks as one log, one after the other. At least one; they must know the same things."""
    columns: dict[str, Any] = {}
    for name in ("cells", "laws", "contexts", "sequences", "positions", "draft_laws"):
        parts = [getattr(log, name) for log in logs]
        columns[name] = None if parts[0] is None else np.concatenate(parts)
    after = None if logs[0].after is None else [outcome for log in logs for outcome in log.after or ()]
    return replace(logs[0], strata=[place for log in logs for place in log.strata], after=after, **columns)


def places(completion: Completion) -> list[str]:
    """Name each token's place in its round. Reaching a place depends on the past only, so each is a fair stratum."""
    names: list[str] = []
    for item in completion.rounds:
        for offset in range(item.emitted):
            if not item.num_proposed:
                names.append("plain")
            elif offset == item.num_proposed:
                names.append("bonus")
            else:
                names.append("draft 1" if offset == 0 else "draft 2+")
    return names


def outcomes_before(completion: Completion) -> list[str]:
    """
    Name, for each token, how the round before its own ended.

    Returns
    -------
    list of {"start", "rejected", "accepted", "plain"}
        Start: there was none. Accepted: all that was drafted. Plain: nothing was drafted.
    """
    names: list[str] = []
    before = "start"
    for item in completion.rounds:
        names.extend([before] * item.emitted)
        whole = "accepted" if item.num_accepted == item.num_proposed else "rejected"
        before = whole if item.num_proposed else "plain"
    return names
