"""Propose what followed the same words earlier in the text. No model, no state."""

from collections.abc import Sequence

import numpy as np

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, ProposerContext, point_masses
from draftproof.errors import InputError


class PromptLookup:
    """
    Find the last n tokens earlier in the sequence and propose what followed them.

    The longest n-gram that occurs wins; among its occurrences the most recent one that is followed by as many tokens as
    are wanted, else the earliest (which is followed by the most).

    Parameters
    ----------
    prompt_lookup_min, prompt_lookup_max : int
        Shortest and longest n-gram, 1 <= min <= max.

    Raises
    ------
    InputError
        The two are out of range.

    Notes
    -----
    Source: Saxena, "Prompt Lookup Decoding", 2023 (github.com/apoorvumang/prompt-lookup-decoding). Cost: O(length) per row and round.
    """

    def __init__(self, prompt_lookup_min: int = 1, prompt_lookup_max: int = 4) -> None:
        whole = isinstance(prompt_lookup_min, int) and isinstance(prompt_lookup_max, int)
        if not whole or not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise InputError(
                f"prompt lookup n-grams {prompt_lookup_min}..{prompt_lookup_max}: allowed 1 <= min <= max; swap or raise them"
            )
        self.prompt_lookup_min, self.prompt_lookup_max = prompt_lookup_min, prompt_lookup_max

    def bind(self, context: ProposerContext) -> None:
        """Remember the device."""
        self._device = context.device

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        drafts = [self.lookup(row.token_ids, limit) for row, limit in zip(rows, limits, strict=True)]
        return point_masses(drafts, self._device)

    def release(self, slot: int) -> None:
        """Nothing is kept."""

    def lookup(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """Return up to ``limit`` tokens that followed an earlier occurrence of the sequence's end, or none."""
        if limit < 1:
            return []
        tokens = np.asarray(token_ids, dtype=np.int64)
        for size in range(min(self.prompt_lookup_max, len(tokens) - 1), self.prompt_lookup_min - 1, -1):
            windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], size)
            starts = np.flatnonzero((windows == tokens[-size:]).all(axis=1)) + size
            if len(starts):
                full = starts[starts + limit <= len(tokens)]
                start = int(full[-1] if len(full) else starts[0])
                return list(token_ids[start : start + limit])
        return []
