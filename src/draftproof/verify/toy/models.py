"""A target and a draft that read a table. Only their logits are fake: what a slot holds decides which law is read."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, ProposerContext
from draftproof.decoding.proposers.stepwise import Feed, draw_stepwise
from draftproof.verify.toy.laws import Array


class TabulatedTarget:
    """
    See `decoding.target.Target`. A slot is a row of columns, as a cache is: a token is written at the slot's length.

    A pass writes its block and reads each position's last two columns, so whatever a wrong roll-back left there, or took
    away, is what the next law follows.
    """

    def __init__(self, logits: Array, *, num_slots: int, max_len: int) -> None:
        self.device = torch.device("cpu")
        self.num_slots, self.max_len, self.vocab_size = num_slots, max_len, len(logits)
        self._logits = torch.from_numpy(logits)
        self._columns = np.zeros((num_slots, max_len), dtype=np.int64)
        self.row_len = [0] * num_slots

    def key_len(self, length: int) -> int:
        """One view for all lengths."""
        return self.max_len

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens."""
        start = self.row_len[slot]
        self._columns[slot, start : start + len(token_ids)] = token_ids
        self.row_len[slot] += len(token_ids)

    def fork(self, source: int, slot: int, length: int) -> None:
        """Start a slot with another's first columns."""
        self._columns[slot, :length] = self._columns[source, :length]
        self.row_len[slot] = length

    def score(self, blocks: Mapping[int, Sequence[int]]) -> Tensor:
        """Append and return (rows, positions, V) logits; beyond a row's own block they mean nothing."""
        slots, width = np.array(list(blocks)), max(map(len, blocks.values()))
        starts = np.array([self.row_len[slot] for slot in blocks])
        written = starts[:, None] + np.arange(width)
        padded = [[*block, *[0] * (width - len(block))] for block in blocks.values()]
        self._columns[slots[:, None], written] = np.array(padded)
        for slot, block in blocks.items():
            self.row_len[slot] += len(block)
        before = self._columns[slots[:, None], written - 1]
        return self._logits[before, self._columns[slots[:, None], written]]

    def roll_back(self, slot: int, num_tokens: int) -> None:
        """Shorten the slot; its columns stay until they are written again."""
        self.row_len[slot] -= num_tokens

    def scrub_tail(self, slot: int) -> None:
        """Clear the columns beyond the slot's length."""
        self._columns[slot, self.row_len[slot] :] = 0

    def release(self, slot: int) -> None:
        """Empty the slot."""
        self.row_len[slot] = 0


class TabulatedDraft:
    """See `Proposer`: draws from its table as a draft model draws, through the engine's own `draw_stepwise`."""

    def __init__(self, logits: Array) -> None:
        self._logits = torch.from_numpy(logits)

    def bind(self, context: ProposerContext) -> None:
        """Keep the noise and the way of drawing."""
        self._context = context

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        before = {index: row.token_ids[-2] for index, row in enumerate(rows) if limits[index]}

        def score(feeds: Mapping[int, Feed]) -> Tensor:
            read = [int(feed[-1]) for feed in feeds.values()]
            law_of = [before[index] for index in feeds], read
            before.update(zip(feeds, read, strict=True))
            return self._logits[law_of]

        unread = {index: rows[index].token_ids[-1:] for index in before}
        return draw_stepwise(self._context, rows, limits, unread, score, 0.0)

    def release(self, slot: int) -> None:
        """Nothing is kept for a slot."""
