"""A model again in float32, on the same weights: what rounding explains is gone there, and a defect is not."""

import copy

import torch
from transformers import PreTrainedModel

from draftproof.engines.available import available_memory
from draftproof.engines.pack import Packed
from draftproof.errors import ModelError

HALF = (torch.bfloat16, torch.float16)
# the copy as it is and the copy in float32, for a moment together
BYTES_PER_WEIGHT = 6


def float32_copy(model: PreTrainedModel) -> PreTrainedModel:
    """
    Return a copy of a 16-bit model in float32, packed weights unpacked; hooks stay.

    Raises
    ------
    ModelError
        There is no memory for it.
    """
    packed = [module for module in model.modules() if isinstance(module, Packed)]
    count = sum(part.numel() for part in model.parameters()) + sum(one.in_features * one.out_features for one in packed)
    needed, available = BYTES_PER_WEIGHT * count, available_memory(str(model.device))
    if needed > available.num_bytes:
        raise ModelError(
            f"a copy in float32 needs {needed >> 20:,} MiB, and {available.num_bytes >> 20:,} MiB are {available.whose}; "
            "free memory, or do without it"
        )
    twin = copy.deepcopy(model, {id(module): module.unpacked() for module in packed})
    torch.nn.Module.float(twin)
    return twin
