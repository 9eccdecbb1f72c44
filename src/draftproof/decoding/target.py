"""What the round needs of a target. `decoding/model.py` is the real one; engines/scripted.py has one without a model."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Target(Protocol):
    """
    Sequences in slots, scored in blocks and taken back by length.

    Attributes
    ----------
    device : torch.device
        Where its logits are.
    num_slots : int
    vocab_size : int
        V, rows of its logits.
    row_len : sequence of int
        Tokens that each slot holds.
    """

    @property
    def device(self) -> torch.device: ...  # noqa: D102

    @property
    def num_slots(self) -> int: ...  # noqa: D102

    @property
    def vocab_size(self) -> int: ...  # noqa: D102

    @property
    def row_len(self) -> Sequence[int]: ...  # noqa: D102

    def key_len(self, length: int) -> int:
        """Return the columns that a pass reads for a row of ``length`` tokens; a block must not straddle them."""
        ...

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens; no logits."""
        ...

    def fork(self, source: int, slot: int, length: int) -> None:
        """Start an empty slot with the first ``length`` tokens of another."""
        ...

    def score(self, blocks: Mapping[int, Sequence[int]]) -> Tensor:
        """Append each slot's tokens and return the logits after each, shape (rows, positions, V)."""
        ...

    def roll_back(self, slot: int, num_tokens: int) -> None:
        """Take the last tokens of a slot back."""
        ...

    def scrub_tail(self, slot: int) -> None:
        """Remove every trace beyond a slot's length, after logits that were not finite."""
        ...

    def release(self, slot: int) -> None:
        """Empty a slot for the next sequence."""
        ...
