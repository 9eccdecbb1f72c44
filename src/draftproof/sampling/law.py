"""From logits to the law that is sampled: one function, and both models go through it. Draws nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof.request import SamplingParams


def token_law(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """
    Return the distribution each next token is drawn from.

    Parameters
    ----------
    logits : Tensor, shape (B, T, V), any floating dtype
        Raw logits of a model.
    params : sequence of SamplingParams, length B
        One per row.

    Returns
    -------
    Tensor, shape (B, T, V), float64
        Rows sum to 1. A greedy row is a point mass on the first of its largest logits.

    Notes
    -----
    The order is that of transformers: allowed ids, temperature, top-k (what ties with the k-th is kept), top-p.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, item in enumerate(params):
        groups.setdefault((item.temperature, item.top_k, item.top_p, item.allowed_token_ids), []).append(row)
    if len(groups) == 1:
        return _law(logits, params[0])
    result = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    for rows in groups.values():
        result[rows] = _law(logits[rows], params[rows[0]])
    return result


def _law(logits: Tensor, params: SamplingParams) -> Tensor:
    if params.allowed_token_ids is not None:
        allowed = sorted(set(params.allowed_token_ids))
        probs = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
        probs[..., allowed] = _law(logits[..., allowed], params.model_copy(update={"allowed_token_ids": None}))
        return probs
    if params.is_greedy:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros(logits.shape, dtype=torch.float64, device=logits.device).scatter_(-1, best, 1.0)
    scores = logits.to(torch.float64)
    # subtracting the largest first keeps tiny temperatures finite
    scores = (scores - scores.amax(-1, keepdim=True)) / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        smallest_kept = scores.topk(params.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < smallest_kept, -torch.inf)
    probs = scores.softmax(-1)
    if params.top_p < 1.0:
        ascending, order = probs.sort(dim=-1, stable=True)
        drop = ascending.cumsum(-1) <= 1.0 - params.top_p
        drop[..., -1] = False
        probs = probs.masked_fill(torch.zeros_like(drop).scatter_(-1, order, drop), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs
