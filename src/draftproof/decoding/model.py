"""
A model, its key/value store and the shapes of its passes. Token ids in, logits out; knows nothing about drafting.

Every pass has a shape (slots, positions, key length) from a small set, and `decoding/shapes.py` measures which of those
shapes give the same bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from draftproof.decoding.attention import GROUPED
from draftproof.decoding.cache import SlotStore, Window
from draftproof.errors import ModelError

PREFILL_CHUNK = 256
PREFILL_STEP = 32
FIRST_KEY_LEN = 256
FULL, SLIDING = "full_attention", "sliding_attention"
# windows that a model's own code applies, without a cache layer that tells
HIDDEN_WINDOWS = ("window_size", "attention_window", "local_attention_window_size")
# what configurations of mixtures of experts have
EXPERTS = (
    "num_experts_per_tok",
    "experts_per_token",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
)
KINDS: dict[Any, str] = {DynamicLayer: FULL, DynamicSlidingWindowLayer: SLIDING}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShapes:
    """
    Which passes may be used for one another.

    Attributes
    ----------
    group : int
        Slots in one pass when more than one row of the group is active.
    plain_alone, plain_group : int or None
        Positions of the narrower pass (of one slot, of a group) that may stand for a full block when nothing is
        drafted. None: there is none.
    key_lens_agree : bool
        Whether rows of different key lengths may share a pass.
    """

    group: int = 1
    plain_alone: int | None = None
    plain_group: int | None = None
    key_lens_agree: bool = False


class CachedModel:
    """
    Passes of one model over its slots.

    Parameters
    ----------
    model : PreTrainedModel
        A causal decoder with full or sliding-window attention in every layer, "eager" or "sdpa"; put into eval mode.
    num_slots : int
    max_len : int
        Longest sequence in tokens.
    block : int
        Positions of a decoding pass (K + 1 for the target).

    Raises
    ------
    ModelError
        The model's state cannot be rolled back by length, or its attention kernel takes no prepared mask.
    """

    def __init__(self, model: PreTrainedModel, *, num_slots: int, max_len: int, block: int) -> None:
        kinds = layer_kinds(model)
        self.model = model
        # dropout would make every pass another
        model.eval()
        self.block = block
        self.max_len = max_len
        self.device = model.device
        self.dtype = model.dtype
        self.shapes = PassShapes()
        head = model.get_output_embeddings()
        if head is None:
            raise ModelError(
                f"{type(model).__name__} has no language model head; allowed: causal decoders, e.g. LlamaForCausalLM"
            )
        self.vocab_size = int(head.out_features if hasattr(head, "out_features") else head.weight.shape[0])
        stock = model.config._attn_implementation
        self._eager = stock == "eager"
        # a model with attention code of its own knows its own kernels only
        self._kernel = GROUPED if not self._eager and model._supports_attention_backend else stock
        self.has_experts = any(getattr(model.config, key, None) for key in EXPERTS)
        self.num_layers = int(model.config.num_hidden_layers)
        self._mixed = len(set(kinds)) > 1
        self._window = int(model.config.sliding_window) if SLIDING in kinds else None
        self.row_len = [0] * num_slots
        self._written = [0] * num_slots
        self.store = SlotStore(self.num_layers, num_slots, max_len, block)

    @property
    def num_slots(self) -> int:
        """Sequences that fit at once."""
        return self.store.num_slots

    def key_len(self, length: int) -> int:
        """Columns a pass reads for a row of ``length`` tokens: a power-of-two bucket, at most `max_len`."""
        bucket = FIRST_KEY_LEN
        while bucket < length:
            bucket *= 2
        return min(bucket, self.max_len)

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens to a slot in passes whose widths depend on their number alone; no logits."""
        for start in range(0, len(token_ids), PREFILL_CHUNK):
            chunk = token_ids[start : start + PREFILL_CHUNK]
            width = min(PREFILL_CHUNK, -(-len(chunk) // PREFILL_STEP) * PREFILL_STEP)
            length = self.row_len[slot] + len(chunk)
            self.run(slot, slot + 1, {slot: chunk}, width, self.key_len(length), logits=False)
            self.row_len[slot] = length

    def fork(self, source: int, slot: int, length: int) -> None:
        """Start an empty slot with the first ``length`` tokens of another, as if they had been prefilled."""
        self.store.copy(source, slot, length)
        self.row_len[slot] = self._written[slot] = length

    def score(self, blocks: Mapping[int, Sequence[int] | Tensor], num_layers: int | None = None) -> Tensor:
        """
        Append each slot's tokens and return the logits after each of them.

        Parameters
        ----------
        blocks : mapping of slot to 1..block token ids
            A tensor of them stays on the device, so that a draft's next pass need not wait for the host.
        num_layers : int or None
            Layers that run; None is all.

        Returns
        -------
        Tensor, shape (rows, positions, V)
            In the order of ``blocks``; positions beyond a row's own tokens are meaningless.
        """
        widest = max(len(block) for block in blocks.values())
        order = list(blocks)
        pieces: list[Tensor] = []
        places: dict[int, tuple[int, int]] = {}
        for first, end, rows in self._passes(blocks):
            alone = end - first == 1
            plain = self.shapes.plain_alone if alone else self.shapes.plain_group
            width = plain if plain and all(len(blocks[slot]) == 1 for slot in rows) else self.block
            key_len = max(self.key_len(self.row_len[slot] + len(blocks[slot])) for slot in rows)
            logits = self.run(first, end, {slot: blocks[slot] for slot in rows}, width, key_len, num_layers=num_layers)
            for slot in rows:
                places[slot] = (len(pieces), slot - first)
            pieces.append(logits[:, :widest])
        for slot in order:
            self.row_len[slot] += len(blocks[slot])
        if len(pieces) == 1 and pieces[0].shape[0] == len(order) == order[-1] - order[0] + 1 and order == sorted(order):
            return pieces[0]
        padded = [torch.nn.functional.pad(piece, (0, 0, 0, widest - piece.shape[1])) for piece in pieces]
        return torch.stack([padded[piece][row] for piece, row in (places[slot] for slot in order)])

    def _passes(self, blocks: Mapping[int, Sequence[int] | Tensor]) -> list[tuple[int, int, list[int]]]:
        """Split rows into passes: (first slot, end slot, rows of the pass)."""
        group = self.shapes.group
        together: dict[tuple[int, int], list[int]] = {}
        for slot, block in blocks.items():
            length = 0 if self.shapes.key_lens_agree else self.key_len(self.row_len[slot] + len(block))
            together.setdefault((slot // group, length), []).append(slot)
        passes = []
        for (index, _), rows in together.items():
            if len(rows) == 1:
                passes.append((rows[0], rows[0] + 1, rows))
            else:
                # the last group may overlap the one before: a smaller one would be a shape that was not measured
                first = min(index * group, self.num_slots - group)
                passes.append((first, first + group, rows))
        return passes

    def run(
        self,
        first: int,
        end: int,
        blocks: Mapping[int, Sequence[int] | Tensor],
        width: int,
        key_len: int,
        *,
        logits: bool = True,
        num_layers: int | None = None,
    ) -> Tensor:
        """
        Run one pass of slots ``[first, end)`` by ``width`` positions over ``key_len`` columns.

        Row lengths are read, not changed. Slots without a block are padding. Returns (slots, width, V) logits.
        """
        tokens = torch.zeros(end - first, width, dtype=torch.int64)
        starts = torch.zeros(end - first, 1, dtype=torch.int64)
        counts = torch.zeros(end - first, 1, dtype=torch.int64)
        for slot, block in blocks.items():
            if not isinstance(block, Tensor):
                tokens[slot - first, : len(block)] = torch.tensor(block, dtype=torch.int64)
            starts[slot - first], counts[slot - first] = self.row_len[slot], len(block)
            self._written[slot] = max(self._written[slot], self.row_len[slot] + len(block))
        steps = torch.arange(width)
        positions = starts + steps
        columns = torch.where(steps < counts, positions, self.max_len + steps)
        positions = positions.clamp(max=self.max_len - 1)
        mask = self._mask(positions, key_len)
        self.store.open(self._window_of(first, end, key_len, blocks, columns))
        input_ids = self._on_device(tokens)
        for slot, block in blocks.items():
            if isinstance(block, Tensor):
                input_ids[slot - first, : len(block)] = block
        config = self.model.config
        stock = config._attn_implementation
        # switched for this pass only: `score` judges with the model as it came
        config._attn_implementation = self._kernel
        config.num_hidden_layers = num_layers or self.num_layers
        try:
            output = self._forward(
                input_ids=input_ids,
                attention_mask=mask,
                position_ids=self._on_device(positions),
                cache=self.store,
                use_cache=True,
                logits_to_keep=0 if logits else 1,
            )
        finally:
            config._attn_implementation = stock
            config.num_hidden_layers = self.num_layers
        return output

    def _window_of(
        self, first: int, end: int, key_len: int, blocks: Mapping[int, Sequence[int] | Tensor], columns: Tensor
    ) -> Window:
        if end - first == 1:
            start = self.row_len[first]
            return Window(first, end, key_len, span=(start, start + len(blocks.get(first, ()))))
        slots = torch.arange(first, end)[:, None]
        return Window(first, end, key_len, scatter=(self._on_device(slots), self._on_device(columns)))

    def _on_device(self, tensor: Tensor) -> Tensor:
        # the host does not wait for the copy, nor for the passes queued before it
        return tensor.to(self.device, non_blocking=True)

    def _mask(self, positions: Tensor, key_len: int) -> Tensor | dict[str, Tensor]:
        """Return the prepared mask, shape (G, 1, T, key_len); one for each kind of layer where the model mixes them."""
        columns = torch.arange(key_len)
        full = columns <= positions[..., None]
        masks = {FULL: full}
        if self._window is not None:
            masks[SLIDING] = full & (columns > positions[..., None] - self._window)
        ready = {kind: self._ready(self._on_device(mask[:, None])) for kind, mask in masks.items()}
        return ready if self._mixed else ready[SLIDING if self._window is not None else FULL]

    def _ready(self, mask: Tensor) -> Tensor:
        # as numbers to add: a kernel would make them of booleans again in every layer
        hidden = torch.finfo(self.dtype).min
        return torch.zeros(mask.shape, dtype=self.dtype, device=self.device).masked_fill(~mask, hidden)

    @torch.no_grad()
    def _forward(self, **inputs: Any) -> Tensor:
        logits: Tensor = self.model(**inputs).logits
        return logits

    def stops_at(self, num_layers: int) -> bool:
        """Whether the model's code leaves the layers above ``num_layers`` out; runs a pass of an empty slot."""
        before = self.store.num_updates
        self.run(0, 1, {0: [0]}, 1, self.key_len(1), num_layers=num_layers)
        self.release(0)
        return self.store.num_updates - before == num_layers

    def roll_back(self, slot: int, num_tokens: int) -> None:
        """Take the last tokens of a slot back; the next pass writes over them."""
        self.row_len[slot] -= num_tokens

    def scrub_tail(self, slot: int) -> None:
        """Zero everything beyond a slot's length, after a pass that produced values which are not finite."""
        self.store.scrub(slot, self.row_len[slot], self._written[slot])
        self._written[slot] = self.row_len[slot]

    def release(self, slot: int) -> None:
        """Empty a slot for the next sequence and zero what was written."""
        self.row_len[slot] = 0
        self.scrub_tail(slot)

    @property
    def weight_bytes(self) -> int:
        """Memory of the parameters, shared ones counted once, and of packed weights."""
        packed = sum(getattr(module, "packed_bytes", 0) for module in self.model.modules())
        return packed + sum(parameter.nbytes for parameter in self.model.parameters())


def context_limit(model: PreTrainedModel, max_len: int) -> int:
    """Return ``max_len``, or the model's own limit where that is lower."""
    return min(max_len, int(getattr(model.config, "max_position_embeddings", None) or max_len))


def layer_kinds(model: PreTrainedModel) -> list[str]:
    """
    Return what each layer attends to, and refuse a model that cannot be rolled back by length.

    The store keeps every column, so a sliding window is a mask and no state.

    Returns
    -------
    list of {"full_attention", "sliding_attention"}

    Raises
    ------
    ModelError
        Some layer's state is recurrent, chunked, rotating or hybrid; or the attention kernel is neither eager nor sdpa.
    """
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise ModelError(f"{name} is an encoder-decoder model; allowed: causal decoders, e.g. Llama")
    attention = model.config._attn_implementation
    if attention not in ("eager", "sdpa"):
        raise ModelError(f"{name} uses attention '{attention}'; allowed: 'eager' or 'sdpa' (attn_implementation=...)")
    layers = DynamicCache(config=model.config).layers
    named = getattr(model.config, "layer_types", None) or []
    odd = {type(layer).__name__ for layer in layers if type(layer) not in KINDS} | (set(named) - set(KINDS.values()))
    if odd:
        raise ModelError(
            f"{name} keeps a state of kind {', '.join(sorted(odd))}, which cannot be rolled back by length; "
            "allowed: full or sliding-window attention in every layer"
        )
    kinds = [KINDS[type(layer)] for layer in layers] or [FULL]
    rope = str(getattr(model.config, "rope_parameters", None))
    if "'dynamic'" in rope or "'longrope'" in rope:
        raise ModelError(
            f"{name} chooses its rotary frequencies by the longest sequence in a pass, so a request's tokens would depend on "
            "its neighbours; it is not supported"
        )
    hidden = [key for key in HIDDEN_WINDOWS if getattr(model.config, key, None)]
    if hidden and "local" in str(getattr(model.config, "attention_types", "local")):
        raise ModelError(f"{name} limits its attention by '{hidden[0]}' in its own code; it is not supported")
    return kinds
