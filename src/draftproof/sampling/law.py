"""From logits to the law that is sampled: one function, and both models go through it. Draws nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof.request import SamplingParams
from draftproof.sampling.adjust import Prefix, adjust, needs_prefix
from draftproof.sampling.upload import upload_ids


def token_law(
    logits: Tensor,
    params: Sequence[SamplingParams],
    prefixes: Sequence[Prefix] | None = None,
    *,
    explain: bool = True,
) -> Tensor:
    """
    Return the distribution each next token is drawn from.

    Parameters
    ----------
    logits : Tensor, shape (B, T, V), any floating dtype
        Raw logits of a model.
    params : sequence of SamplingParams, length B
        One per row.
    prefixes : sequence of Prefix, length B, or None
        What each row's logits follow; needed where the parameters depend on it.
    explain : bool
        Set the ``problem`` of a row that cannot have a law, for which the host waits for the device.

    Returns
    -------
    Tensor, shape (B, T, V), float64
        Rows sum to 1, or are 0 where no token is allowed. A greedy row is a point mass on the first of its largest
        scores.

    Notes
    -----
    The order is that of transformers: what `adjust` does, temperature, top-k (what ties with the k-th is kept), top-p,
    min-p.
    """
    given: Sequence[Prefix | None] = prefixes if prefixes is not None else [None] * len(params)
    groups: dict[tuple[object, ...], list[int]] = {}
    alone: list[int] = []
    for row, (item, prefix) in enumerate(zip(params, given, strict=True)):
        if needs_prefix(item, prefix):
            alone.append(row)
        else:
            key = (item.temperature, item.top_k, item.top_p, item.min_p, item.allowed_token_ids)
            groups.setdefault(key, []).append(row)
    if len(groups) == 1 and not alone:
        return _law(logits, params[0])
    result = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    for rows in groups.values():
        at = upload_ids(rows, logits.device)
        result[at] = _law(logits[at], params[rows[0]])
    states: list[tuple[Prefix, Tensor]] = []
    for row in alone:
        one = given[row]
        if one is None:
            raise ValueError("these sampling parameters need the row's tokens")
        result[row], state = _adjusted_law(logits[row], params[row], one)
        states.append((one, state))
    if states and explain:
        # read once for all rows
        flags = torch.stack([state for _, state in states]).tolist()
        for (prefix, _), (sound, alive) in zip(states, flags, strict=True):
            if not sound:
                prefix.problem = (
                    "the request's penalties, bias or processors gave a score that is infinite or not a number"
                )
            elif not alive:
                prefix.problem = (
                    "no token is allowed by the request's bans, processors and constraint, nor may it end here"
                )
    return result


def _adjusted_law(logits: Tensor, params: SamplingParams, prefix: Prefix) -> tuple[Tensor, Tensor]:
    """
    Return (T, V), of which only the positions that the draft reaches mean anything.

    And two flags: whether the first position's scores are sound, and whether they allow a token.
    """
    reached = min(logits.shape[0], len(prefix.draft) + 1)
    probs = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    try:
        scores = adjust(logits[:reached].to(torch.float64, copy=True), params, prefix)
    except Exception as error:  # a user's processor may raise anything; the request ends, the batch goes on
        prefix.problem = f"a logits processor or the constraint failed: {type(error).__name__}: {error}"
        return probs, torch.ones(2, dtype=torch.bool, device=logits.device)
    sound = (scores < torch.inf).all(-1)
    alive = (scores > -torch.inf).any(-1) & sound
    unrestricted = params.model_copy(update={"allowed_token_ids": None})
    probs[:reached] = _law(scores.masked_fill(~alive[:, None], -torch.inf), unrestricted)
    return probs, torch.stack([sound[0], alive[0]])


def _law(logits: Tensor, params: SamplingParams) -> Tensor:
    if params.allowed_token_ids is not None:
        allowed = upload_ids(sorted(set(params.allowed_token_ids)), logits.device)
        probs = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
        probs[..., allowed] = _law(logits[..., allowed], params.model_copy(update={"allowed_token_ids": None}))
        return probs
    if params.is_greedy:
        best = logits.argmax(-1, keepdim=True)
        mass = (logits.gather(-1, best) != -torch.inf).to(torch.float64)
        return torch.zeros(logits.shape, dtype=torch.float64, device=logits.device).scatter_(-1, best, mass)
    scores = logits.to(torch.float64)
    # subtracting the largest first keeps tiny temperatures finite
    largest = scores.amax(-1, keepdim=True)
    nothing = largest == -torch.inf
    scores = (scores - largest.masked_fill(nothing, 0.0)) / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        smallest_kept = scores.topk(params.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < smallest_kept, -torch.inf)
    probs = scores.softmax(-1).masked_fill(nothing, 0.0)
    if params.top_p < 1.0:
        if reading_is_free(probs):
            flat = probs.view(-1, probs.shape[-1])
            probs = torch.stack([_top_p_of_row(row, params.top_p) for row in flat]).view(probs.shape)
        else:
            probs = _top_p(probs, params.top_p)
    if params.min_p > 0.0:
        probs = probs.masked_fill(probs < params.min_p * probs.amax(-1, keepdim=True), 0.0)
        probs = probs / probs.sum(-1, keepdim=True).masked_fill(nothing, 1.0)
    return probs


def reading_is_free(tensor: Tensor) -> bool:
    """Whether the host may look at values without waiting for a device."""
    return tensor.is_cpu


def _top_p(probs: Tensor, top_p: float) -> Tensor:
    """Drop the least likely tokens of each row, shape (..., V), while what was dropped is at most ``1 - top_p``."""
    ascending, order = probs.sort(dim=-1, stable=True)
    keep = ascending.cumsum(-1) > 1.0 - top_p
    keep[..., -1] = True
    kept = torch.zeros_like(probs).scatter_(-1, order, ascending * keep)
    mass = kept.sum(-1, keepdim=True)
    return kept / mass.masked_fill(mass == 0, 1.0)


def _top_p_of_row(probs: Tensor, top_p: float) -> Tensor:
    """Do as `_top_p` for shape (V,), sorting few tokens: faster, but how many they are must be read."""
    # V tokens below this sum to less than 1 - top_p, so they all go and only the others are sorted
    likely = (probs >= (1.0 - top_p) / len(probs)).nonzero()[:, 0]
    if not len(likely):
        return probs
    ascending, order = probs[likely].sort(stable=True)
    dropped = ascending.cumsum(0) + (probs.sum() - ascending.sum() if len(likely) < len(probs) else 0.0)
    keep = dropped > 1.0 - top_p
    keep[-1] = True
    kept = likely[order[keep]]
    result = torch.zeros_like(probs)
    result[kept] = probs[kept]
    return result / result.sum()
