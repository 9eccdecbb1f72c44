"""Draft token by token from a model: the loop that a draft model and an early exit share."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, ProposerContext
from draftproof.errors import InputError
from draftproof.sampling.law import token_law

Score = Callable[[dict[int, list[int]]], Tensor]
"""Row index to the tokens it is fed; returns the logits after each row's last one, shape (rows, V of the draft)."""


def require_threshold(confidence_threshold: float) -> None:
    """
    See that a confidence threshold is a probability below 1.

    Raises
    ------
    InputError
        It is not.
    """
    if not 0 <= confidence_threshold < 1:
        raise InputError(f"confidence_threshold = {confidence_threshold}: allowed 0 up to, not including, 1")


def draw_stepwise(
    context: ProposerContext,
    rows: Sequence[Row],
    wanted: Sequence[int],
    feeds: dict[int, list[int]],
    score: Score,
    confidence: float,
    to_draft: Callable[[int], int] = lambda token_id: token_id,
) -> Proposal:
    """
    Draw up to ``wanted[i]`` tokens for row i, each from the law that its request asks for.

    Parameters
    ----------
    feeds : dict of row index to token ids
        What the model has not read yet, at least the last committed token; in its own ids.
    confidence : float
        Stop a row before a token whose most likely candidate has less than this probability; 0 never stops.
    to_draft : callable
        From a drafted id to the one that the model reads for it.

    Notes
    -----
    Whether a place is drafted is decided before the draw, from the draft's distribution there: so the law stays exact.
    Dropping a token because of what was drawn would not be.
    """
    vocab_size, device = context.vocab_size, context.device
    width = max(wanted, default=0)
    token_ids = torch.zeros(len(rows), width, dtype=torch.int64, device=device)
    probs = torch.zeros(len(rows), width, vocab_size, dtype=torch.float64, device=device)
    drafts: list[list[int]] = [[] for _ in rows]
    active = [index for index in feeds if wanted[index] > 0]
    for step in range(width):
        active = [index for index in active if wanted[index] > step]
        if not active:
            break
        logits = _fit(score({index: feeds[index] for index in active}), vocab_size).to(device)
        prefixes = [rows[index].prefix() for index in active]
        for prefix, index in zip(prefixes, active, strict=True):
            prefix.token_ids = [*prefix.token_ids, *drafts[index]]
        law = token_law(logits[:, None], [rows[index].params for index in active], prefixes)[:, 0]
        # no mass: nothing is allowed here
        sure = ((law > 0).any(-1) & (law.amax(-1) >= confidence)).tolist()
        keys = [rows[index].key for index in active]
        places = [rows[index].num_generated + step for index in active]
        drawn = context.draw(law, keys, places, context.noise)
        token_ids[active, step], probs[active, step] = drawn, law
        going = []
        for index, token_id, goes_on in zip(active, drawn.tolist(), sure, strict=True):
            if goes_on:
                drafts[index].append(token_id)
                feeds[index] = [to_draft(token_id)]
                going.append(index)
        active = going
    counts = torch.tensor([len(draft) for draft in drafts], dtype=torch.int64, device=device)
    return Proposal(token_ids=token_ids, num_tokens=counts, probs=probs)


def _fit(logits: Tensor, vocab_size: int) -> Tensor:
    """Ids that only one of the models has (vocabulary padding) are never proposed."""
    if logits.shape[-1] >= vocab_size:
        return logits[..., :vocab_size]
    return torch.nn.functional.pad(logits, (0, vocab_size - logits.shape[-1]), value=-torch.inf)


def last_logits(logits: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (rows, V) from (rows, T, V): those after each row's last token."""
    last = torch.tensor([length - 1 for length in lengths], device=logits.device)
    return logits[torch.arange(len(lengths), device=logits.device), last]
