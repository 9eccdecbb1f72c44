"""What an engine will hold, told before its weights are loaded: weights and caches to the byte, the rest as an estimate."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from draftproof.decoding.model import PREFILL_CHUNK, CachedModel, context_limit
from draftproof.decoding.proposers.draft_cache import CATCH_UP
from draftproof.engines.available import Available, available_memory
from draftproof.engines.pack import can_pack, packed_size
from draftproof.errors import ModelError

MIB = 2**20
LAWS, SELF_TEST_ROWS, ACTIVATIONS = 4, 48, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """
    Bytes by part.

    Attributes
    ----------
    parts : dict
        As `EngineProtocol.memory` will report them once loaded.
    working : int
        Estimate of what passes and decisions need for a moment.
    available : Available
    """

    parts: dict[str, int | None]
    working: int
    available: Available

    @property
    def total(self) -> int:
        """All parts and the working memory."""
        return sum(size or 0 for size in self.parts.values()) + self.working

    @property
    def fits(self) -> bool:
        """Whether that much is available."""
        return self.total <= self.available.num_bytes

    def describe(self) -> str:
        """Name the parts in MiB."""
        sizes = {name.replace("_", " "): size for name, size in self.parts.items() if size is not None}
        sizes["working memory (estimate)"] = self.working
        return " + ".join(f"{name} {mib(size)}" for name, size in sizes.items())

    def require_fit(self, name: str) -> None:
        """
        See that the plan fits.

        Raises
        ------
        ModelError
            It does not; the message names the model called ``name``, the parts and what to lower.
        """
        if not self.fits:
            raise ModelError(
                f"model '{name}' needs {mib(self.total)}, and {mib(self.available.num_bytes)} are {self.available.whose}: "
                f"{self.describe()}; lower max_batch or max_len (caches), or take a smaller dtype or model (weights)"
            )


def plan_memory(
    target: PreTrainedModel,
    drafts: Sequence[tuple[PreTrainedModel, int]],
    *,
    device: str,
    num_speculative_tokens: int,
    max_batch: int,
    max_len: int,
) -> MemoryPlan:
    """
    Plan an engine.

    Parameters
    ----------
    target : PreTrainedModel
        Without weights, on the "meta" device.
    drafts : sequence of (PreTrainedModel, int)
        The same, each with how many of its tokens one of the target's may become (`DraftModel.stretch`).
    device : str
        Where they will be.
    num_speculative_tokens, max_batch, max_len : int
        As for the engine.

    Raises
    ------
    ModelError
        A model cannot be used with our cache, or the device does not exist.

    Notes
    -----
    The sizes are not computed from a formula: the engine's own store is made on the "meta" device, and a pass over it shows how
    many heads of which width each layer keeps. A block is K + 1 positions for the target; as many columns more take the padding
    of each slot.
    """
    available = available_memory(device)
    block = num_speculative_tokens + 1
    limit = context_limit(target, max_len)
    target_weights, target_cache = _sizes(target, device, max_batch, limit, block)
    held = [
        _sizes(draft, device, max_batch, context_limit(draft, stretch * limit), CATCH_UP) for draft, stretch in drafts
    ]
    return MemoryPlan(
        parts={
            "target_weights": target_weights,
            "target_cache": target_cache,
            "draft_weights": sum(weights for weights, _ in held) if held else None,
            "draft_cache": sum(cache for _, cache in held) if held else None,
        },
        working=_working(target, max_batch, block),
        available=available,
    )


def _sizes(model: PreTrainedModel, device: str, num_slots: int, max_len: int, block: int) -> tuple[int, int]:
    """Return the bytes of a model's weights and of its store."""
    cached = CachedModel(model, num_slots=num_slots, max_len=max_len, block=block)
    packs = can_pack(torch.device(device), model.dtype)
    try:
        cached.prefill(0, [0])
        cache = cached.store.num_bytes
    except (ValueError, TypeError, RuntimeError) as error:
        # a layer whose code reads values (a router of experts) stops here, after its attention has shown the keys
        cache = cached.store.first_layer_bytes * cached.num_layers
        if not cache:
            raise ModelError(
                f"{type(model).__name__} does not run with a prepared 4-D mask and our cache ({error}); it is not supported"
            ) from None
    return packed_size(model) if packs else cached.weight_bytes, cache


def _working(target: PreTrainedModel, num_slots: int, block: int) -> int:
    """
    Estimate what passes and a round's decisions hold for a moment.

    A round has slots x (K + 1) x V logits in the model's dtype and up to four laws of that shape in float64 (scores, target,
    draft, residual). The self-test at load keeps about 48 rows of logits. A chunk of the prompt has some 16 activations of
    the hidden size for each of its tokens.
    """
    vocab, itemsize = int(target.config.vocab_size), target.dtype.itemsize
    laws = num_slots * block * vocab * (itemsize + LAWS * 8)
    activations = PREFILL_CHUNK * ACTIVATIONS * int(target.config.hidden_size) * itemsize
    return laws + SELF_TEST_ROWS * vocab * itemsize + activations


def mib(size: int) -> str:
    """Write bytes in MiB."""
    return f"{size / MIB:,.0f} MiB" if size >= 10 * MIB else f"{size / MIB:.2f} MiB"
