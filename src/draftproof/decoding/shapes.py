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

Claim = Literal["bitwise", "bitwise_same_batch", "up_to_ties"]
PREFIX = 24
POSITIONS = 12
PLAIN_WIDTHS = (1, 2)
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
    apart : tuple of str
        Those of ``differ`` that differ by more than rounding explains: the model computes something else in them.
    """

    claim: Claim
    shapes: PassShapes
    agree: tuple[str, ...]
    differ: tuple[str, ...]
    noise: float
    threads: int
    apart: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return plain values for a record."""
        return asdict(self)


def measure_shapes(model: CachedModel) -> ShapeClass:
    """
    Run the self-test on an idle model, set ``model.shapes``, and leave the store empty.

    The chosen group is the largest that agrees, so that what runs beside a request cannot change its tokens.
    """
    length = min(model.max_len, PREFIX + POSITIONS)
    positions = max(1, min(POSITIONS, length // 2))
    prefix = length - positions
    generator = torch.Generator().manual_seed(20221130)
    tokens = torch.randint(model.vocab_size, (length,), generator=generator).tolist()
    try:
        for slot in range(model.num_slots):
            model.prefill(slot, tokens[:prefix])
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(
            f"{type(model.model).__name__} does not run with a prepared 4-D mask and our cache ({error}); it is not supported"
        ) from None

    def one_by_one(slots: int, width: int, key_len: int) -> list[Tensor]:
        rows: list[Tensor] = []
        for index in range(positions):
            rows.append(block(slots, index, 1, width, key_len)[:, 0])
        return rows

    def block(slots: int, index: int, count: int, width: int, key_len: int) -> Tensor:
        chunk = tokens[prefix + index : prefix + index + count]
        for slot in range(slots):
            model.row_len[slot] = prefix + index
        return model.run(0, slots, {slot: chunk for slot in range(slots)}, width, key_len).clone()

    def in_blocks(slots: int, width: int, key_len: int) -> list[Tensor]:
        rows: list[Tensor] = []
        for index in range(0, positions, width):
            count = min(width, positions - index)
            logits = block(slots, index, count, width, key_len)
            rows.extend(logits[:, row] for row in range(count))
        return rows

    key_lens = sorted({model.key_len(size) for size in range(length, model.max_len + 1)})
    references = {key_len: [row[0] for row in one_by_one(1, model.block, key_len)] for key_len in key_lens}
    _require_same_model(model, tokens, prefix, references[key_lens[0]])
    agree: list[str] = []
    differ: list[str] = []
    apart: list[str] = []
    noise = 0.0

    def same_bits(seen: list[Tensor], wanted: list[Tensor], name: str) -> bool:
        nonlocal noise
        same = all(bool((got == want).all()) for got, want in zip(seen, wanted, strict=True))
        (agree if same else differ).append(name)
        gaps = [] if same else [_gap(got, want) for got, want in zip(seen, wanted, strict=True)]
        if sum(gaps) > ROUNDING[model.dtype] * len(gaps):
            apart.append(name)
        noise = max(noise, *((got - want).abs().max().item() for got, want in zip(seen, wanted, strict=True)))
        return same

    def agrees(rows: Callable[[int, int, int], list[Tensor]], slots: int, width: int) -> bool:
        return all(
            same_bits(rows(slots, width, key_len), references[key_len], f"{slots} x {width} @ {key_len}")
            for key_len in key_lens
        )

    block_agrees = agrees(in_blocks, 1, model.block)
    first = references[key_lens[0]]
    key_lens_agree = all([same_bits(references[key_len], first, f"keys {key_len}") for key_len in key_lens[1:]])

    def plain(slots: int) -> int | None:
        narrower = (width for width in PLAIN_WIDTHS if width < model.block)
        return next((width for width in narrower if agrees(one_by_one, slots, width)), None)

    plain_alone, group, plain_group = plain(1), 1, None
    size = 1
    while size * 2 <= model.num_slots:
        size *= 2
    while size > 1:
        if agrees(in_blocks, size, model.block):
            group, plain_group = size, plain(size)
            break
        size //= 2
    for slot in range(model.num_slots):
        model.release(slot)
    model.shapes = PassShapes(
        group=group, plain_alone=plain_alone, plain_group=plain_group, key_lens_agree=key_lens_agree
    )
    return ShapeClass(
        claim="bitwise" if block_agrees else "up_to_ties",
        shapes=model.shapes,
        agree=tuple(agree),
        differ=tuple(differ),
        noise=noise,
        threads=torch.get_num_threads(),
        apart=tuple(apart),
    )


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
        They do not: the model needs something of its cache or mask that a prepared 4-D mask does not give.
    """
    with torch.no_grad():
        plain = model.model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False).logits[0]
    gap = _gap(torch.stack(reference), plain[prefix : prefix + len(reference)])
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
