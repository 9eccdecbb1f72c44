"""
Measure at load which pass shapes give the same bits on this device, with this model, dtype and thread count.

The reference at each key length is one slot by one full block, the token at row 0 and padding after it. A shape agrees when
every logit of every tested position is equal to the reference's, bit for bit, at every key length that can occur.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from draftproof.decoding.model import CachedModel, PassShapes
from draftproof.errors import ModelError

PREFIX = 24
POSITIONS = 12
PLAIN_WIDTHS = (1, 2)
ROUTED = "each expert computes over as many tokens of a pass as are sent to it, so what runs beside a token may change its bits"
# mean difference of logits over their spread that rounding can explain
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeClass:
    """
    What was measured.

    Attributes
    ----------
    claim : {"bitwise", "up_to_ties"}
        Whether greedy output can be claimed equal bit for bit, whatever the draft and the batch.
    shapes : PassShapes
    agree, differ : tuple of str
        Tested shapes, "slots x positions @ key length", and key lengths against the first.
    noise : float, logits
        Largest difference seen at a shape that differs.
    threads : int
    reason : str or None
        Why less is claimed than the tested shapes would allow.
    apart : tuple of str
        Those of ``differ`` that differ by more than rounding explains: the model computes something else in them.
    """

    claim: Literal["bitwise", "up_to_ties"]
    shapes: PassShapes
    agree: tuple[str, ...]
    differ: tuple[str, ...]
    noise: float
    threads: int
    reason: str | None = None
    apart: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return plain values for a record."""
        return asdict(self)


def measure_shapes(model: CachedModel) -> ShapeClass:
    """
    Run the self-test on an idle model, set ``model.shapes``, and leave the store empty.

    The chosen group is the largest that agrees, so that what runs beside a request cannot change its tokens.

    Raises
    ------
    ModelError
        The model does not run through the cache, or computes something else there.
    """
    length = min(model.max_len, PREFIX + POSITIONS)
    prefix = length - max(1, min(POSITIONS, length // 2))
    generator = torch.Generator().manual_seed(20221130)
    tokens = torch.randint(model.vocab_size, (length,), generator=generator).tolist()
    try:
        for slot in range(model.num_slots):
            model.prefill(slot, tokens[:prefix])
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(
            f"{type(model.model).__name__} does not run with a prepared 4-D mask and our cache ({error}); it is not supported"
        ) from None
    test = _SelfTest(model, tokens, prefix)
    _require_same_model(model, tokens, prefix, test.first)
    block_agrees = test.agrees(test.in_blocks, 1, model.block)
    key_lens_agree = test.key_lens_agree()
    plain_alone = test.plain_width(1)
    group = test.largest_group()
    plain_group = None if group == 1 else test.plain_width(group)
    for slot in range(model.num_slots):
        model.release(slot)
    model.shapes = PassShapes(
        group=group, plain_alone=plain_alone, plain_group=plain_group, key_lens_agree=key_lens_agree
    )
    return ShapeClass(
        claim="bitwise" if block_agrees and not model.has_experts else "up_to_ties",
        shapes=model.shapes,
        agree=tuple(test.agree),
        differ=tuple(test.differ),
        noise=test.noise,
        threads=torch.get_num_threads(),
        reason=ROUTED if model.has_experts else None,
        apart=tuple(test.apart),
    )


class _SelfTest:
    """
    The same tokens in passes of different shapes; every slot holds the ``prefix`` tokens before them.

    Logits are lists with one tensor of shape (slots, V) per tested position.

    Attributes
    ----------
    first : list of Tensor, shape (V,)
        The reference at the shortest key length.
    agree, differ, noise, apart
        As in `ShapeClass`, of what was compared so far.
    """

    def __init__(self, model: CachedModel, tokens: list[int], prefix: int) -> None:
        self._model, self._prefix, self._tested = model, prefix, tokens[prefix:]
        key_lens = sorted({model.key_len(size) for size in range(len(tokens), model.max_len + 1)})
        self._references = {
            key_len: [row[0] for row in self.one_by_one(1, model.block, key_len)] for key_len in key_lens
        }
        self.first = self._references[key_lens[0]]
        self.agree: list[str] = []
        self.differ: list[str] = []
        self.noise = 0.0
        self.apart: list[str] = []

    def one_by_one(self, slots: int, width: int, key_len: int) -> list[Tensor]:
        """Score each token at row 0 of a pass, with padding after it."""
        return [self._block(slots, index, 1, width, key_len)[:, 0] for index in range(len(self._tested))]

    def in_blocks(self, slots: int, width: int, key_len: int) -> list[Tensor]:
        """Score the tokens in blocks of real ones."""
        rows: list[Tensor] = []
        for index in range(0, len(self._tested), width):
            count = min(width, len(self._tested) - index)
            logits = self._block(slots, index, count, width, key_len)
            rows.extend(logits[:, row] for row in range(count))
        return rows

    def agrees(self, rows: Callable[[int, int, int], list[Tensor]], slots: int, width: int) -> bool:
        """Whether passes of one shape give the reference's bits at every key length; stops at the first that does not."""
        return all(
            self._same_bits(rows(slots, width, key_len), reference, f"{slots} x {width} @ {key_len}")
            for key_len, reference in self._references.items()
        )

    def key_lens_agree(self) -> bool:
        """Whether the references at all key lengths are the same."""
        others = list(self._references.items())[1:]
        return all([self._same_bits(reference, self.first, f"keys {key_len}") for key_len, reference in others])

    def plain_width(self, slots: int) -> int | None:
        """Return the narrowest pass for a plain step; None where only the full block agrees."""
        narrower = (width for width in PLAIN_WIDTHS if width < self._model.block)
        return next((width for width in narrower if self.agrees(self.one_by_one, slots, width)), None)

    def largest_group(self) -> int:
        """Return the most slots, a power of two, whose block agrees."""
        size = 1 << (self._model.num_slots.bit_length() - 1)
        while size > 1 and not self.agrees(self.in_blocks, size, self._model.block):
            size //= 2
        return size

    def _block(self, slots: int, index: int, count: int, width: int, key_len: int) -> Tensor:
        chunk = self._tested[index : index + count]
        for slot in range(slots):
            self._model.row_len[slot] = self._prefix + index
        return self._model.run(0, slots, {slot: chunk for slot in range(slots)}, width, key_len).clone()

    def _same_bits(self, seen: list[Tensor], wanted: list[Tensor], name: str) -> bool:
        same = all(bool((got == want).all()) for got, want in zip(seen, wanted, strict=True))
        (self.agree if same else self.differ).append(name)
        gaps = [0.0] if same else [_gap(got, want) for got, want in zip(seen, wanted, strict=True)]
        # what is not a number is more than rounding too
        if not sum(gaps) <= ROUNDING[self._model.dtype] * len(gaps):
            self.apart.append(name)
        largest = ((got - want).abs().max().item() for got, want in zip(seen, wanted, strict=True))
        self.noise = max(self.noise, *largest)
        return same


def _gap(seen: Tensor, wanted: Tensor) -> float:
    """Return the mean difference of logits over their spread."""
    seen, wanted = seen.to(torch.float64), wanted.to(torch.float64)
    return ((seen - wanted).abs().mean() / wanted.std()).item()


def _require_same_model(model: CachedModel, tokens: list[int], prefix: int, reference: list[Tensor]) -> None:
    """
    See that cached passes compute what the plain model does, up to rounding.

    Raises
    ------
    ModelError
        They do not: the model needs something of its cache or mask that a prepared 4-D mask does not give. Or its logits
        are not finite.
    """
    with torch.no_grad():
        plain = model.model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False).logits[0]
    wanted = plain[prefix : prefix + len(reference)]
    if not wanted.isfinite().all():
        raise ModelError(
            f"{type(model.model).__name__} gives logits that are not finite in {model.dtype}; check its weights, or take another dtype"
        )
    gap = _gap(torch.stack(reference), wanted)
    if not gap < ROUNDING[model.dtype]:
        raise ModelError(
            f"{type(model.model).__name__} computes something else through a cache with per-row lengths (logits differ by "
            f"{gap:.2g} of their spread); it is not supported"
        )


def any_shapes(model: CachedModel) -> ShapeClass:
    """Allow every pass and claim identity up to ties only (``numerics="fast"``)."""
    measured = measure_shapes(model)
    model.shapes = PassShapes(group=model.num_slots, plain_alone=1, plain_group=1, key_lens_agree=True)
    return replace(measured, claim="up_to_ties", shapes=model.shapes)
