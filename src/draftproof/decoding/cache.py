"""
The key/value store: one slot per sequence, one length per slot, never copied, never trimmed.

A pass writes each row's new keys at that row's own positions and reads a fixed-length view. Taking tokens back is
forgetting that they are there: the row's length shrinks and the next pass writes over them.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(slots=True)
class Window:
    """Where the current pass writes and what it reads: slots ``[first, end)``, columns ``[0, key_len)``."""

    first: int
    end: int
    key_len: int
    # one slot: its columns [start, stop); padding is not written
    span: tuple[int, int] | None = None
    # several: slots (G, 1) and each token's column (G, T); padding goes to columns that no pass reads
    scatter: tuple[Tensor, Tensor] | None = None


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values, shape (slots, heads, columns, head size), zero-filled."""

    is_sliding = False

    def __init__(self, num_slots: int, num_columns: int) -> None:
        super().__init__()
        self.num_slots, self.num_columns = num_slots, num_columns
        self.window: Window | None = None
        self.num_updates = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate, once the model has shown how many heads it has and how wide they are."""

        def zeros(like: Tensor) -> Tensor:
            return like.new_zeros(self.num_slots, like.shape[1], self.num_columns, like.shape[3])

        self.keys, self.values = zeros(key_states), zeros(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write (G, heads, T, head size) where the window says, and return the view that it says."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.window
        self.num_updates += 1
        assert window is not None and self.keys is not None and self.values is not None
        for store, states in ((self.keys, key_states), (self.values, value_states)):
            if window.span is not None:
                start, stop = window.span
                store[window.first, :, start:stop] = states[0, :, : stop - start]
            elif window.scatter is not None:
                slots, at = window.scatter
                store[slots, :, at] = states.transpose(1, 2)
        rows, columns = slice(window.first, window.end), slice(0, window.key_len)
        return self.keys[rows, :, columns], self.values[rows, :, columns]

    def tensors(self) -> tuple[Tensor, ...]:
        """Keys and values, or nothing before the first pass."""
        return () if self.keys is None or self.values is None else (self.keys, self.values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Not used: every pass brings its own mask."""
        return self.num_columns, 0

    def get_seq_length(self) -> int:
        """Not used: every pass brings its own positions."""
        return 0

    def get_max_length(self) -> int:
        """Columns that a pass may read."""
        return self.num_columns


class SlotStore(Cache):
    """
    All layers.

    Parameters
    ----------
    num_layers, num_slots : int
    max_len : int
        Longest sequence; a pass reads at most this many columns.
    max_block : int
        Widest pass; as many columns more take the padding.
    """

    def __init__(self, num_layers: int, num_slots: int, max_len: int, max_block: int) -> None:
        self._slots = [SlotLayer(num_slots, max_len + max_block) for _ in range(num_layers)]
        super().__init__(layers=[*self._slots])
        self.num_slots, self.max_len = num_slots, max_len

    def open(self, window: Window) -> None:
        """Set what the next pass writes and reads."""
        for layer in self._slots:
            layer.window = window

    def scrub(self, slot: int, first: int, end: int) -> None:
        """Zero columns ``[first, end)`` of a slot: stale finite keys under the mask are harmless, NaN leaks through it."""
        for layer in self._slots:
            for tensor in layer.tensors():
                tensor[slot, :, first:end].zero_()

    def copy(self, source: int, slot: int, length: int) -> None:
        """Copy the first columns of a slot to another."""
        for layer in self._slots:
            for tensor in layer.tensors():
                tensor[slot, :, :length] = tensor[source, :, :length]

    @property
    def num_updates(self) -> int:
        """Writes of all layers so far."""
        return sum(layer.num_updates for layer in self._slots)

    @property
    def first_layer_bytes(self) -> int:
        """Memory held by the first layer."""
        return sum(tensor.nbytes for tensor in self._slots[0].tensors())

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return sum(tensor.nbytes for layer in self._slots for tensor in layer.tensors())
