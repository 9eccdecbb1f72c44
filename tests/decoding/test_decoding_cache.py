"""The store writes where the window says, shows what it says, and forgets only when it is told to."""

import pytest
import torch

from draftproof.decoding.cache import SlotStore, Window

LAYERS, SLOTS, MAX_LEN, BLOCK = 2, 3, 10, 4
KEYS, VALUES = (2, 5), (2, 7)  # heads and their size; some models have values of another size


def make(filled: bool = True) -> SlotStore:
    store = SlotStore(LAYERS, SLOTS, MAX_LEN, BLOCK)
    if filled:
        store.open(window(0, 1, [[0]]))
        for layer in range(LAYERS):
            store.update(states(1, 1, KEYS, 0.0), states(1, 1, VALUES, 0.0), layer)
    return store


def window(first: int, end: int, columns: list[list[int]], key_len: int = MAX_LEN) -> Window:
    return Window(first, end, key_len, scatter=(torch.arange(first, end)[:, None], torch.tensor(columns)))


def states(slots: int, positions: int, shape: tuple[int, int], value: float) -> torch.Tensor:
    """Shape (slots, heads, positions, size); slot s, position t is value + 10 s + t."""
    heads, size = shape
    marks = value + 10 * torch.arange(slots)[:, None] + torch.arange(positions)[None]
    return marks[:, None, :, None].expand(slots, heads, positions, size).double()


def marks(tensor: torch.Tensor) -> list[list[float]]:
    """What `states` wrote: one number per slot and column, equal in all heads and their entries."""
    assert (tensor == tensor[:, :1, :, :1]).all()
    return tensor[:, 0, :, 0].tolist()


def test_nothing_is_allocated_before_the_first_pass() -> None:
    store = make(filled=False)
    assert store.num_bytes == 0
    store.scrub(0, 0, MAX_LEN)
    store.copy(0, 1, MAX_LEN)
    assert store.num_bytes == 0


def test_the_memory_is_that_of_every_slot_with_room_for_the_padding() -> None:
    columns = MAX_LEN + BLOCK
    assert make().num_bytes == LAYERS * SLOTS * columns * (2 * 5 + 2 * 7) * 8


def test_each_row_writes_at_its_own_columns_and_reads_its_own_slots() -> None:
    store = make()
    store.open(window(1, 3, [[2, 3], [0, 11]], key_len=5))
    keys, values = store.update(states(2, 2, KEYS, 1.0), states(2, 2, VALUES, 101.0), 0)
    assert keys.shape == (2, 2, 5, 5) and values.shape == (2, 2, 5, 7)
    assert marks(keys) == [[0, 0, 1, 2, 0], [11, 0, 0, 0, 0]]
    assert marks(values) == [[0, 0, 101, 102, 0], [111, 0, 0, 0, 0]]
    whole = store.layers[0].keys
    assert marks(whole)[0] == [0] * 14
    assert marks(whole)[2] == [11] + [0] * 10 + [12, 0, 0]
    # the other layer was not written
    assert not store.layers[1].keys.any() and not store.layers[1].values.any()


def test_a_view_is_the_store_itself_and_not_a_copy() -> None:
    store = make()
    store.open(window(0, 2, [[0], [0]]))
    keys, _ = store.update(states(2, 1, KEYS, 1.0), states(2, 1, VALUES, 1.0), 0)
    assert keys.data_ptr() == store.layers[0].keys.data_ptr()


@pytest.mark.parametrize(("first", "end"), [(0, MAX_LEN), (3, 5), (4, 4)])
def test_scrubbing_removes_what_is_not_a_number_from_one_slot_alone(first: int, end: int) -> None:
    store = make()
    for layer in store.layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    store.scrub(1, first, end)
    for layer in store.layers:
        for tensor in (layer.keys, layer.values):
            clean = ~tensor.isnan().any(3).any(1)
            assert clean.nonzero().tolist() == [[1, column] for column in range(first, end)]
            assert not tensor[1, :, first:end].any()


def test_copying_takes_the_first_columns_of_one_slot_to_another() -> None:
    store = make()
    store.open(window(0, 2, [[0, 1, 2], [0, 1, 2]]))
    for layer in range(LAYERS):
        store.update(states(2, 3, KEYS, 1.0), states(2, 3, VALUES, 101.0), layer)
    store.copy(1, 2, 2)
    for layer in store.layers:
        assert [row[:4] for row in marks(layer.keys)] == [[1, 2, 3, 0], [11, 12, 13, 0], [11, 12, 0, 0]]
        assert [row[:4] for row in marks(layer.values)] == [[101, 102, 103, 0], [111, 112, 113, 0], [111, 112, 0, 0]]


def test_the_window_is_that_of_the_last_open_in_every_layer() -> None:
    store = make()
    store.open(window(0, 1, [[4]]))
    store.open(window(2, 3, [[5]]))
    for layer in range(LAYERS):
        store.update(states(1, 1, KEYS, 9.0), states(1, 1, VALUES, 9.0), layer)
        assert store.layers[layer].keys.nonzero()[:, [0, 2]].unique(dim=0).tolist() == [[2, 5]]
