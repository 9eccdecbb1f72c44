"""
The accept rule: which drafted tokens stay, and which token comes next.

Exact: whatever the draft, each token that leaves here has the target's law. Knows nothing about models or caches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftproof.sampling.draw import draw
from draftproof.sampling.noise import Noise, Purpose
from draftproof.sampling.upload import upload

Keys = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """
    Drafted tokens and the distributions they were drawn from.

    Attributes
    ----------
    token_ids : Tensor, shape (B, K), int64
        Row b holds ``num_tokens[b]`` tokens; what follows is padding.
    num_tokens : Tensor, shape (B,), int64
    probs : Tensor, shape (B, K, V), float64, or None
        The distribution each token was *drawn from* - the very tensor, not one like it. None: the tokens are a
        function of the context (a point mass each).
    """

    token_ids: Tensor
    num_tokens: Tensor
    probs: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a round decided: ``num_accepted`` and ``next_token_ids``, each shape (B,), int64."""

    num_accepted: Tensor
    next_token_ids: Tensor


class AcceptRule(Protocol):
    """Decide a round."""

    def __call__(
        self, target_probs: Tensor, proposal: Proposal, keys: Keys, positions: Sequence[int], noise: Noise
    ) -> Decision:
        """
        Decide how many drafted tokens are accepted and draw the next one.

        Parameters
        ----------
        target_probs : Tensor, shape (B, K+1, V), float64
            The target's law after each prefix of the draft.
        proposal : Proposal
        keys : sequence of (seed, sample index)
        positions : sequence of int
            Index of each row's first undecided token.
        noise : Noise
        """
        ...


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """
    Return the distribution to draw from after a draft token was rejected: ``max(target - draft, 0)``, normalised.

    Parameters
    ----------
    target_probs, draft_probs : Tensor, shape (B, V), float64
        Rows sum to 1. ``draft_probs`` is what the rejected token was drawn from.

    Returns
    -------
    Tensor, shape (B, V), float64
        Rows sum to 1. A row whose two distributions are equal (no mass left) is the target's.

    Notes
    -----
    Source: [1]_, section 2.3; there ``p`` is the target and ``q`` the draft.
    Held by: tests/exactness/test_law_of_a_round.py (equality on rationals).

    References
    ----------
    .. [1] Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", arXiv:2211.17192.
    """
    left = (target_probs - draft_probs).clamp(min=0.0)
    mass = left.sum(-1, keepdim=True)
    return torch.where(mass > 0, left / mass.where(mass > 0, torch.ones_like(mass)), target_probs)


def rejection(target_probs: Tensor, proposal: Proposal, keys: Keys, positions: Sequence[int], noise: Noise) -> Decision:
    """
    Accept each drafted token with probability min(1, target / draft), in order, up to the first rejection.

    Then draw the next token: from the residual after a rejection, else from the target (the bonus token, or the plain
    next token where nothing was drafted). See `AcceptRule.__call__` for the arguments.

    Notes
    -----
    Source: Leviathan et al., arXiv:2211.17192, algorithm 1. ``u * draft < target`` is the same event as ``u < target / draft`` and
    needs no division; a token of target probability 0 is never accepted, not even at u = 0.
    """
    batch, width = proposal.token_ids.shape
    device = target_probs.device
    if width == 0:
        uniform = noise.uniform(keys, positions, Purpose.TARGET, 1)[:, 0]
        none = torch.zeros(batch, dtype=torch.int64, device=device)
        return Decision(num_accepted=none, next_token_ids=draw(target_probs[:, 0], uniform))
    chosen = proposal.token_ids[..., None]
    target_chosen = target_probs[:, :width].gather(-1, chosen)[..., 0]
    draft_chosen = torch.ones_like(target_chosen)
    if proposal.probs is not None:
        draft_chosen = proposal.probs.gather(-1, chosen)[..., 0]
    coins = upload(noise.uniform(keys, positions, Purpose.ACCEPT, width), device)
    proposed = torch.arange(width, device=device) < proposal.num_tokens[:, None]
    accepted = (coins * draft_chosen < target_chosen) & proposed
    num_accepted = accepted.cumprod(-1).sum(-1)

    rows = torch.arange(batch, device=device)
    rejected = num_accepted < proposal.num_tokens
    at = num_accepted.clamp(max=width - 1)
    if proposal.probs is None:
        draft_probs = torch.zeros_like(target_probs[:, 0]).scatter_(-1, proposal.token_ids[rows, at][:, None], 1.0)
    else:
        draft_probs = proposal.probs[rows, at]
    next_probs = target_probs[rows, num_accepted]
    corrected = residual(next_probs, draft_probs)
    on_target = upload(noise.uniform(keys, positions, Purpose.TARGET, width + 1), device)[rows, num_accepted]
    on_residual = upload(noise.uniform(keys, positions, Purpose.CORRECTION, width), device)[rows, at]
    next_token_ids = torch.where(rejected, draw(corrected, on_residual), draw(next_probs, on_target))
    return Decision(num_accepted=num_accepted, next_token_ids=next_token_ids)
