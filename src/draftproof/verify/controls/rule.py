"""The rejection rule taken apart into its three choices, so that a control can change one and leave the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.sampling.accept import Decision, Keys, Proposal, rejection, residual
from draftproof.sampling.draw import draw
from draftproof.sampling.noise import Noise, Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """
    What a choice may read.

    Attributes
    ----------
    target_probs : Tensor, shape (B, K+1, V), float64
    draft_probs : Tensor, shape (B, K, V), float64
        A point mass is spelt out.
    token_ids : Tensor, shape (B, K), int64
    num_tokens : Tensor, shape (B,), int64
    coins : Tensor, shape (B, K), float64
        The uniform numbers of the acceptance.
    """

    target_probs: Tensor
    draft_probs: Tensor
    token_ids: Tensor
    num_tokens: Tensor
    coins: Tensor

    def chosen(self, probs: Tensor) -> Tensor:
        """Return the probabilities, shape (B, K), that laws of shape (B, K or more, V) give the drafted tokens."""
        return probs[:, : self.token_ids.shape[1]].gather(-1, self.token_ids[..., None])[..., 0]

    def after_draft(self, probs: Tensor) -> Tensor:
        """Return each row's law after its whole draft, shape (B, V), from laws of shape (B, K+1, V)."""
        return probs[torch.arange(len(probs)), self.num_tokens]


def within_ratio(block: Block) -> Tensor:
    """Say which drafted tokens may stay, shape (B, K): with probability min(1, target / draft)."""
    return block.coins * block.chosen(block.draft_probs) < block.chosen(block.target_probs)


def target_after_draft(block: Block) -> Tensor:
    """Return the law of the token after a whole draft, shape (B, V)."""
    return block.after_draft(block.target_probs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    An accept rule made of three choices; with all defaults it decides as `rejection` does.

    Attributes
    ----------
    accepts : callable, `Block` to bool Tensor of shape (B, K)
        Which drafted tokens may stay if all before them do.
    correction : callable, (target, draft) of shape (B, V) to Tensor of shape (B, V)
        The law after a rejection; rows need not sum to 1.
    bonus : callable, `Block` to Tensor of shape (B, V)
        The law after a whole draft; rows need not sum to 1.
    """

    accepts: Callable[[Block], Tensor] = within_ratio
    correction: Callable[[Tensor, Tensor], Tensor] = residual
    bonus: Callable[[Block], Tensor] = target_after_draft

    def __call__(
        self, target_probs: Tensor, proposal: Proposal, keys: Keys, positions: Sequence[int], noise: Noise
    ) -> Decision:
        """See `AcceptRule.__call__`."""
        width, device = proposal.token_ids.shape[1], target_probs.device
        if width == 0:
            return rejection(target_probs, proposal, keys, positions, noise)
        draft_probs = proposal.probs
        if draft_probs is None:
            points = torch.zeros_like(target_probs[:, :width])
            draft_probs = points.scatter_(-1, proposal.token_ids[..., None], 1.0)
        block = Block(
            target_probs=target_probs,
            draft_probs=draft_probs,
            token_ids=proposal.token_ids,
            num_tokens=proposal.num_tokens,
            coins=noise.uniform(keys, positions, Purpose.ACCEPT, width).to(device),
        )
        proposed = torch.arange(width, device=device) < proposal.num_tokens[:, None]
        num_accepted = (self.accepts(block) & proposed).cumprod(-1).sum(-1)
        rows, at = torch.arange(len(keys), device=device), num_accepted.clamp(max=width - 1)
        on_target = noise.uniform(keys, positions, Purpose.TARGET, width + 1).to(device)[rows, num_accepted]
        on_residual = noise.uniform(keys, positions, Purpose.CORRECTION, width).to(device)[rows, at]
        corrected = draw(self.correction(target_probs[rows, num_accepted], draft_probs[rows, at]), on_residual)
        next_token_ids = torch.where(num_accepted < proposal.num_tokens, corrected, draw(self.bonus(block), on_target))
        return Decision(num_accepted=num_accepted, next_token_ids=next_token_ids)
