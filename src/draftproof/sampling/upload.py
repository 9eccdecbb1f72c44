"""Put what the host has made onto the device, without waiting for what is queued there."""

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """
    Return a tensor on a device.

    Notes
    -----
    A copy that blocks, as ``to``, ``torch.tensor(..., device=...)`` and an index that is a list make it, would have the host wait for
    the passes that were queued before.
    """
    return tensor.to(device, non_blocking=True)


def upload_ids(token_ids: Sequence[int], device: torch.device) -> Tensor:
    """Return whole numbers as a tensor on a device, shape (n,), int64."""
    return upload(torch.tensor(token_ids, dtype=torch.int64), device)
