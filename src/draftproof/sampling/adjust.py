"""
What a request changes in the logits before temperature: bias, penalties, bans, a minimum length, a user's processors.

Each position of a block has its own prefix, the committed tokens and the draft before it, and is adjusted by that alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.request import SamplingParams
from draftproof.sampling.upload import upload, upload_ids

Processor = Callable[[Tensor, Tensor], Tensor]
"""As transformers' LogitsProcessor: (input ids (1, n), scores (1, V)) to scores (1, V), a function of the two alone."""


@dataclass(slots=True, kw_only=True)
class Prefix:
    """
    What a row's logits follow.

    Attributes
    ----------
    token_ids : sequence of int
        Prompt and committed tokens.
    num_prompt : int
    draft : sequence of int
        The logits of position j follow the first j of these too.
    unread : Tensor, shape (n,), int64, or None
        Tokens after ``token_ids`` that are still on the device; see `reads_tokens`.
    end_token_ids : frozenset of int
        Tokens that would end the request; banned below the minimum length.
    processors : sequence of Processor
    problem : str or None
        Set when the row has no law: a processor failed, or nothing is allowed.
    """

    token_ids: Sequence[int]
    num_prompt: int
    draft: Sequence[int] = ()
    unread: Tensor | None = None
    end_token_ids: frozenset[int] = frozenset()
    processors: Sequence[Processor] = ()
    problem: str | None = None


def needs_prefix(params: SamplingParams, prefix: Prefix | None) -> bool:
    """Whether anything of this request is adjusted by its tokens."""
    plain = params.repetition_penalty == 1 and params.presence_penalty == params.frequency_penalty == 0
    listed = params.logit_bias or params.bad_words_ids or params.min_tokens
    return not plain or bool(listed) or (prefix is not None and bool(prefix.processors))


def reads_tokens(params: SamplingParams, prefix: Prefix) -> bool:
    """Whether the host must know each token before the next position, so that none may be ``unread``."""
    return bool(params.bad_words_ids or prefix.processors)


def adjust(scores: Tensor, params: SamplingParams, prefix: Prefix) -> Tensor:
    """
    Return the adjusted scores of one row.

    Parameters
    ----------
    scores : Tensor, shape (T, V), float64
        Position j follows ``prefix.token_ids`` and ``prefix.draft[:j]``. Changed in place.

    Notes
    -----
    The order is that of transformers: bias, repetition penalty, bad words, minimum length, allowed ids, the user's
    processors. Presence and frequency penalties, which it does not have, follow the repetition penalty; as elsewhere they count
    generated tokens, while the repetition penalty counts the prompt too.
    """
    positions, size = scores.shape
    for token_id, bias in params.logit_bias.items():
        if token_id < size:
            scores[:, token_id] += bias
    if params.repetition_penalty != 1:
        seen = _counts(prefix.token_ids, prefix, positions, size, scores.device) > 0
        penalised = torch.where(scores < 0, scores * params.repetition_penalty, scores / params.repetition_penalty)
        scores = torch.where(seen, penalised, scores)
    if params.presence_penalty or params.frequency_penalty:
        counts = _counts(prefix.token_ids[prefix.num_prompt :], prefix, positions, size, scores.device)
        counts = counts.to(scores.dtype)
        scores = scores - params.frequency_penalty * counts - params.presence_penalty * (counts > 0).to(scores.dtype)
    sequence = [*prefix.token_ids, *prefix.draft]
    num_unread = 0 if prefix.unread is None else len(prefix.unread)
    for place in range(positions):
        before = sequence[: len(prefix.token_ids) + place]
        for *start, last in params.bad_words_ids:
            if last < size and before[len(before) - len(start) :] == start:
                scores[place, last] = -torch.inf
        if len(before) + num_unread - prefix.num_prompt < params.min_tokens:
            ends = [token_id for token_id in prefix.end_token_ids if token_id < size]
            scores[place].index_fill_(0, upload_ids(ends, scores.device), -torch.inf)
        if params.allowed_token_ids is not None:
            scores[place] = _only(scores[place], [token_id for token_id in params.allowed_token_ids if token_id < size])
        try:
            for processor in prefix.processors:
                scores[place] = _processed(processor, before, scores[place])
        except Exception:  # a processor is anybody's code
            if place == 0:
                raise
            # not reached for sure: if it is, the next round fails at its start
            scores[place:] = -torch.inf
            break
    return scores


def _counts(token_ids: Sequence[int], prefix: Prefix, positions: int, size: int, device: torch.device) -> Tensor:
    """Return how often each token occurs in these, what is unread and the draft before each position, shape (T, V)."""
    known = upload_ids([token_id for token_id in token_ids if token_id < size], device)
    committed = known if prefix.unread is None else torch.cat([known, upload(prefix.unread, device)])
    counts = torch.zeros(size, dtype=torch.int64, device=device)
    counts = counts.scatter_add_(0, committed, torch.ones_like(committed)).repeat(positions, 1)
    for place, token_id in enumerate(prefix.draft[: positions - 1], start=1):
        if token_id < size:
            counts[place:, token_id] += 1
    return counts


def _only(scores: Tensor, token_ids: Sequence[int]) -> Tensor:
    kept, at = torch.full_like(scores, -torch.inf), upload_ids(token_ids, scores.device)
    return kept.index_copy_(0, at, scores[at])


def _processed(processor: Processor, before: Sequence[int], scores: Tensor) -> Tensor:
    given = torch.tensor([before], dtype=torch.int64, device=scores.device)
    result = processor(given, scores[None].clone())
    if result.shape != (1, len(scores)):
        raise ValueError(f"it returned shape {tuple(result.shape)} for scores of shape {(1, len(scores))}")
    return result[0].to(scores.dtype)
