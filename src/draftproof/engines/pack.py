"""
Linear weights in the layout that oneDNN's kernels read, laid out once at load instead of in every pass.

Measured (SmolLM2-135M, bfloat16, 2 threads with AMX, key length 256, interleaved, median of 25): one position 35.2 ms
against 45.2 ms, six positions 38.6 ms against 48.0 ms; the logits' bits are the same.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

# oneDNN chooses the layout for this many positions; the layout for one gave the widest class of shapes that agree
ROWS = 1
# private to torch, whose version is pinned; the compiler of the same version emits these calls
MKLDNN: Any = torch.ops.mkldnn


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
        linear = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        linear.weight = nn.Parameter(self._packed.to_dense(), requires_grad=False)
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias.detach().clone(), requires_grad=False)
        return linear

    @property
    def packed_bytes(self) -> int:
        """Memory of the packed weight, with what its layout pads."""
        return int(MKLDNN._nbytes(self._packed))


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
        for name, child in parent.named_children():
            # subclasses may compute something else
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
                packed = True
    return packed


def packed_size(model: PreTrainedModel) -> int:
    """Return the bytes of parameters and packed weights that `pack_linears` will leave of a bfloat16 model; it is not run."""
    kept, packed = dict[int, int](), 0
    for module in model.modules():
        parameters = dict(module.named_parameters(recurse=False))
        if type(module) is nn.Linear:
            packed += _padded_bytes(module.out_features, module.in_features)
            del parameters["weight"]
        kept |= {id(parameter): parameter.nbytes for parameter in parameters.values()}
    return packed + sum(kept.values())


def _padded_bytes(num_rows: int, num_columns: int) -> int:
    """Bytes of one packed weight. The layout is in blocks; one row, one column and one number of it show their sizes."""

    def measured(rows: int, columns: int) -> int:
        return int(MKLDNN._nbytes(MKLDNN._reorder_linear_weight(torch.zeros(rows, columns).bfloat16(), ROWS)))

    return measured(num_rows, 1) * measured(1, num_columns) // measured(1, 1)
