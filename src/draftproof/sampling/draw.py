"""Draw a token from a distribution with a given uniform number."""

import torch
from torch import Tensor


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """
    Return the token at which the cumulative distribution first exceeds the uniform number.

    Parameters
    ----------
    probs : Tensor, shape (B, V), float64
        Non-negative; rows need not sum to 1.
    uniform : Tensor, shape (B,), float64
        In [0, 1).

    Returns
    -------
    Tensor, shape (B,), int64
        Never a token of probability 0 when the row has any mass.
    """
    cumulative = probs.cumsum(-1)
    wanted = uniform.to(probs.device)[:, None] * cumulative[:, -1:]
    token_ids = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    # rounding of the product can only reach the total, one step beyond the last token that has mass
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous(), right=False)[:, 0]
    return torch.minimum(token_ids, last)
