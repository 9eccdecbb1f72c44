"""Planted defects: an accept rule or a request with one mistake each. Shipped, so that anyone can see them fail."""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof.request import SamplingParams
from draftproof.sampling.accept import Decision, Keys, Proposal, rejection
from draftproof.sampling.draw import draw
from draftproof.sampling.noise import Noise, Purpose


def always_accept(
    target_probs: Tensor, proposal: Proposal, keys: Keys, positions: Sequence[int], noise: Noise
) -> Decision:
    """Accept every drafted token (as reported of vllm-ascend, PR 13766: the coin was the constant 0)."""
    decision = rejection(target_probs, proposal, keys, positions, noise)
    bonus = _from_target(target_probs, proposal.num_tokens, keys, positions, noise)
    next_token_ids = torch.where(decision.num_accepted < proposal.num_tokens, bonus, decision.next_token_ids)
    return Decision(num_accepted=proposal.num_tokens, next_token_ids=next_token_ids)


def redraw_from_target(
    target_probs: Tensor, proposal: Proposal, keys: Keys, positions: Sequence[int], noise: Noise
) -> Decision:
    """After a rejection draw from the target instead of from the residual: drafted tokens come too often."""
    decision = rejection(target_probs, proposal, keys, positions, noise)
    token_ids = _from_target(target_probs, decision.num_accepted, keys, positions, noise)
    return Decision(num_accepted=decision.num_accepted, next_token_ids=token_ids)


def _from_target(target_probs: Tensor, at: Tensor, keys: Keys, positions: Sequence[int], noise: Noise) -> Tensor:
    rows = torch.arange(len(keys), device=target_probs.device)
    uniform = noise.uniform(keys, positions, Purpose.TARGET, target_probs.shape[1]).to(target_probs.device)
    return draw(target_probs[rows, at], uniform[rows, at])


def hotter(params: SamplingParams) -> SamplingParams:
    """Ask for half as much temperature again as is judged: the defect that any engine can be made to have."""
    return params.model_copy(update={"temperature": params.temperature * 1.5})


RULE_DEFECTS = {"always accept": always_accept, "redraw from the target": redraw_from_target}
REQUEST_DEFECTS = {"another temperature": hotter}
