"""
The coupled accept rule: the target draws as if alone, and a drafted token stays where it is what the target drew.

The numbers belong to (seed, sample index, position), so the output for a seed is the same tokens whatever was drafted.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof.sampling.accept import Decision, Keys, Proposal
from draftproof.sampling.draw import race
from draftproof.sampling.noise import Noise


def coupled(target_probs: Tensor, proposal: Proposal, keys: Keys, positions: Sequence[int], noise: Noise) -> Decision:
    """
    Accept the leading drafted tokens that equal the target's own; the next token is the target's own too.

    See `AcceptRule.__call__` for the arguments; ``proposal.probs`` is not read.

    Notes
    -----
    Each token is exactly the target's, so the law needs no proof beyond the noise. Acceptance is largest when the draft
    draws with the same numbers (`draw_shared`); for a draft that is a function of the context it is the target's
    probability of the token, as under the rejection rule. Held by: tests/exactness/test_coupled.py.
    """
    batch, width = proposal.token_ids.shape
    size, device = target_probs.shape[-1], target_probs.device
    own = race(target_probs, noise.exponential(keys, positions, width + 1, size, device))
    proposed = torch.arange(width, device=device) < proposal.num_tokens[:, None]
    # where nothing is allowed the race has no winner, and no drafted token may stand for one
    allowed = target_probs[:, :width].any(-1)
    matches = (own[:, :width] == proposal.token_ids) & allowed & proposed
    num_accepted = matches.cumprod(-1).sum(-1)
    return Decision(num_accepted=num_accepted, next_token_ids=own[torch.arange(batch, device=device), num_accepted])
