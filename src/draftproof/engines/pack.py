"""
Linear weights in the layout that oneDNN's kernels read, laid out once at load instead of in every pass.

Layers that read the same tensor (a block's queries, keys and values; its gate and up projection) are one product.

Measured (SmolLM2-135M, bfloat16, 2 threads with AMX, key length 256, interleaved, median of 25): one position 35.2 ms
against 45.2 ms, six positions 38.6 ms against 48.0 ms; the logits' bits are the same. Siblings as one product: all products of
a pass of two positions took 0.66 to 0.86 of the time of separate ones (six interleaved medians of 12), with the same bits.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

# oneDNN chooses the layout for this many positions; the layout for one gave the widest class of shapes that agree
ROWS = 1
# private to torch, whose version is pinned; the compiler of the same version emits these calls
MKLDNN: Any = torch.ops.mkldnn
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class PackedLinear(nn.Module):
    """A linear layer that keeps only the packed weight; it can run, and can be neither trained nor saved."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed: Tensor = MKLDNN._reorder_linear_weight(linear.weight.detach(), ROWS)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return cast(Tensor, MKLDNN._linear_pointwise(hidden, self._packed, self.bias, "none", [], ""))

    def unpacked(self) -> nn.Linear:
        """Return a plain linear layer with the same weights, in a copy."""
        return _plain(self._packed.to_dense(), self.bias)

    @property
    def packed_bytes(self) -> int:
        """Memory of the packed weight, with what its layout pads."""
        return int(MKLDNN._nbytes(self._packed))


class _Kept:
    """The last product of `PackedSiblings`; no module, since a module's attributes are slow to set."""

    hidden: Tensor | None = None
    version = 0
    parts: Sequence[Tensor] = ()


class PackedSiblings(nn.Module):
    """
    Linear layers that read the same tensor, as one product.

    Parameters
    ----------
    linears : sequence of nn.Linear
        All with a bias, or none.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.sizes = [linear.out_features for linear in linears]
        self.whole = PackedLinear(_joined(linears))
        self._kept = _Kept()

    def part(self, hidden: Tensor, index: int) -> Tensor:
        """Return one layer's output; the product is kept for the siblings, which are asked next with the same tensor."""
        # tensors of inference mode have no version, and no model writes over what its projections read
        kept, version = self._kept, 0 if hidden.is_inference() else hidden._version
        if kept.hidden is not hidden or kept.version != version:
            kept.hidden, kept.version = hidden, version
            kept.parts = torch.split_with_sizes(self.whole.forward(hidden), self.sizes, -1)
        found = kept.parts[index]
        if index == len(self.sizes) - 1:
            kept.hidden, kept.parts = None, ()
        return found


class PackedSibling(nn.Module):
    """One of `PackedSiblings`, in the place of its linear layer."""

    def __init__(self, siblings: PackedSiblings, index: int) -> None:
        super().__init__()
        self.siblings, self.index = siblings, index
        self.in_features, self.out_features = siblings.whole.in_features, siblings.sizes[index]

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return self.siblings.part(hidden, self.index)

    def unpacked(self) -> nn.Linear:
        """Return a plain linear layer with the same weights, in a copy."""
        whole = self.siblings.whole.unpacked()
        first = sum(self.siblings.sizes[: self.index])
        rows = slice(first, first + self.out_features)
        return _plain(whole.weight.detach()[rows].clone(), None if whole.bias is None else whole.bias[rows])


Packed = PackedLinear | PackedSibling
"""What stands in the place of a linear layer."""


def _plain(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return linear


def _joined(linears: Sequence[nn.Linear]) -> nn.Linear:
    bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
    return _plain(torch.cat([linear.weight.detach() for linear in linears]), bias)


def _siblings(parent: nn.Module) -> list[list[str]]:
    """Return which of a module's own linear layers can be one product: one list of names each, single ones included."""
    # subclasses may compute something else
    names = [name for name, child in parent.named_children() if type(child) is nn.Linear]
    groups = []
    for together in TOGETHER:
        linears = [parent.get_submodule(name) for name in together if name in names]
        kinds = {(linear.in_features, linear.bias is None) for linear in linears}
        if len(linears) == len(together) and len(kinds) == 1:
            groups.append(list(together))
    return groups + [[name] for name in names if not any(name in group for group in groups)]


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device, the dtype and this build of torch allow it."""
    return bool(
        device.type == "cpu"
        and dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(MKLDNN, "_linear_pointwise")
        and MKLDNN._is_mkldnn_bf16_supported()
    )


def pack_linears(model: PreTrainedModel) -> bool:
    """
    Replace a model's linear layers in place, where the device, the dtype and this build of torch allow it.

    Parameters
    ----------
    model : PreTrainedModel
        Owned by the engine: afterwards it can only be run.

    Returns
    -------
    bool
        Whether anything was packed.
    """
    if not can_pack(model.device, model.dtype):
        return False
    packed = False
    for parent in list(model.modules()):
        for names in _siblings(parent):
            linears = [cast(nn.Linear, parent.get_submodule(name)) for name in names]
            if len(names) == 1:
                setattr(parent, names[0], PackedLinear(linears[0]))
            else:
                siblings = PackedSiblings(linears)
                for index, name in enumerate(names):
                    setattr(parent, name, PackedSibling(siblings, index))
            packed = True
    return packed


def packed_size(model: PreTrainedModel) -> int:
    """Return the bytes of parameters and packed weights that `pack_linears` will leave of a bfloat16 model; it is not run."""
    kept, packed = dict[int, int](), 0
    for module in model.modules():
        for names in _siblings(module):
            linears = [cast(nn.Linear, module.get_submodule(name)) for name in names]
            packed += _padded_bytes(sum(linear.out_features for linear in linears), linears[0].in_features)
        parameters = dict(module.named_parameters(recurse=False))
        if type(module) is nn.Linear:
            del parameters["weight"]
        kept |= {id(parameter): parameter.nbytes for parameter in parameters.values()}
    return packed + sum(kept.values())


def _padded_bytes(num_rows: int, num_columns: int) -> int:
    """Bytes of one packed weight. The layout is in blocks; one row, one column and one number of it show their sizes."""

    def measured(rows: int, columns: int) -> int:
        return int(MKLDNN._nbytes(MKLDNN._reorder_linear_weight(torch.zeros(rows, columns).bfloat16(), ROWS)))

    return measured(num_rows, 1) * measured(1, num_columns) // measured(1, 1)
