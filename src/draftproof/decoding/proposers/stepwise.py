"""Draft token by token from a model: the loop that a draft model and an early exit share."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, ProposerContext
from draftproof.errors import InputError
from draftproof.sampling.adjust import needs_prefix, reads_tokens
from draftproof.sampling.law import reading_is_free, token_law

Feed = Sequence[int] | Tensor
"""What the model reads next: the first time a list of ids, then the one that was drawn, still on the device."""
Score = Callable[[dict[int, Feed]], Tensor]
"""Row index to what it is fed; returns the logits after each row's last token, shape (rows, V of the draft)."""


def require_threshold(confidence_threshold: float) -> None:
    """
    See that a confidence threshold is a probability below 1.

    Raises
    ------
    InputError
        It is not.
    """
    if not isinstance(confidence_threshold, int | float) or not 0 <= confidence_threshold < 1:
        raise InputError(f"confidence_threshold = {confidence_threshold}: allowed 0 up to, not including, 1")


def draw_stepwise(
    context: ProposerContext,
    rows: Sequence[Row],
    wanted: Sequence[int],
    feeds: Mapping[int, Sequence[int]],
    score: Score,
    confidence: float,
    to_draft: Tensor | None = None,
) -> Proposal:
    """
    Draw up to ``wanted[i]`` tokens for row i, each from the law that its request asks for.

    Parameters
    ----------
    feeds : dict of row index to token ids
        What the model has not read yet, at least the last committed token; in its own ids.
    confidence : float
        Stop a row before a token whose most likely candidate has less than this probability; 0 never stops.
    to_draft : Tensor, shape (V,), int64, or None
        The id that the model reads for each drafted one; None where they are the same.

    Notes
    -----
    Whether a place is drafted is decided before the draw, from the draft's distribution there: so the law stays exact.
    Dropping a token because of what was drawn would not be.

    The host does not wait for a drawn token, unless it needs it for bad words and processors, which compare tokens. So the passes
    after a stop for want of confidence are saved only where looking costs nothing; elsewhere what they draft is dropped.
    """
    vocab_size, device = context.vocab_size, context.device
    width = max(wanted, default=0)
    token_ids = torch.zeros(len(rows), width, dtype=torch.int64, device=device)
    probs = torch.zeros(len(rows), width, vocab_size, dtype=torch.float64, device=device)
    going = torch.zeros(len(rows), width, dtype=torch.bool, device=device)
    drafts: list[list[int]] = [[] for _ in rows]
    adjusted = any(needs_prefix(row.params, row.prefix()) for row in rows)
    told = adjusted and any(reads_tokens(row.params, row.prefix()) for row in rows)
    feeding: dict[int, Feed] = dict(feeds)
    active = [index for index in feeds if wanted[index] > 0]
    for step in range(width):
        active = [index for index in active if wanted[index] > step]
        if not active:
            break
        logits = _fit(score({index: feeding[index] for index in active}), vocab_size).to(device)
        prefixes = [rows[index].prefix() for index in active] if adjusted else None
        for prefix, index in zip(prefixes or [], active, strict=False):
            prefix.token_ids = [*prefix.token_ids, *drafts[index]]
            prefix.unread = None if told else token_ids[index, :step]
        params = [rows[index].params for index in active]
        law = token_law(logits[:, None], params, prefixes, explain=False)[:, 0]
        # a processor may ask for an id that the draft does not have, and the draft could not read it back
        unreadable = ((law > 0) & logits.isneginf()).any(-1, keepdim=True)
        law = law.masked_fill(unreadable | ~sound(logits)[:, None], 0.0)
        # no mass: nothing is allowed here
        sure = (law > 0).any(-1) & (law.amax(-1) >= confidence)
        keys = [rows[index].key for index in active]
        places = [rows[index].num_generated + step for index in active]
        drawn = context.draw(law, keys, places, context.noise).where(sure, 0)
        at = torch.tensor(active).to(device, non_blocking=True)
        token_ids[at, step], probs[at, step], going[at, step] = drawn, law, sure
        read = drawn if to_draft is None else to_draft[drawn]
        feeding.update(zip(active, read.split(1), strict=True))
        if told:
            for index, token_id in zip(active, drawn.tolist(), strict=True):
                drafts[index].append(token_id)
        if told or (confidence > 0 and reading_is_free(sure)):
            active = [index for index, goes_on in zip(active, sure.tolist(), strict=True) if goes_on]
    return Proposal(token_ids=token_ids, num_tokens=going.cumprod(-1).sum(-1), probs=probs)


def _fit(logits: Tensor, vocab_size: int) -> Tensor:
    """Ids that only one of the models has (vocabulary padding) are never proposed."""
    if logits.shape[-1] >= vocab_size:
        return logits[..., :vocab_size]
    return torch.nn.functional.pad(logits, (0, vocab_size - logits.shape[-1]), value=-torch.inf)


def sound(logits: Tensor) -> Tensor:
    """Return which rows of (rows, V) can be a law, shape (rows,); minus infinity can, for an id that is never drafted."""
    return (logits < torch.inf).all(-1)


def last_logits(logits: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (rows, V) from (rows, T, V): those after each row's last token."""
    last = torch.tensor([length - 1 for length in lengths]).to(logits.device, non_blocking=True)
    return logits[torch.arange(len(lengths), device=logits.device), last]
