"""The law at another temperature: what settings that reach one model, or one place, and not the other come down to."""

from torch import Tensor


def tempered(probs: Tensor, temperature: float) -> Tensor:
    """Return laws of shape (..., V) as at ``temperature`` times their own; tokens without mass stay without."""
    powers = probs ** (1.0 / temperature)
    return powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)
