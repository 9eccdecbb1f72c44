"""How many tokens are proposed: by the past or by the draft's law it is lossless, by the token that was drawn it is not."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, Proposer, point_masses
from draftproof.verify.controls.wrapper import Wrapper

Unsure = Callable[[Proposal, Tensor], Tensor]


def drawn_token_below(threshold: float) -> Unsure:
    """Say where the drawn token has less than this probability: the defect."""

    def unsure(proposal: Proposal, probs: Tensor) -> Tensor:
        return probs.gather(-1, proposal.token_ids[..., None])[..., 0] < threshold

    return unsure


def best_token_below(threshold: float) -> Unsure:
    """Say where the most likely token has less than this probability: the lossless one."""

    def unsure(proposal: Proposal, probs: Tensor) -> Tensor:
        return probs.amax(-1) < threshold

    return unsure


class CutWhereUnsure(Wrapper):
    """A proposer whose drafts end before the first place that ``unsure`` names; one that reports distributions."""

    def __init__(self, proposer: Proposer, unsure: Unsure) -> None:
        super().__init__(proposer)
        self._unsure = unsure

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        proposal = super().propose(rows, limits)
        if proposal.probs is None or not proposal.token_ids.shape[1]:
            return proposal
        sure = (~self._unsure(proposal, proposal.probs)).cumprod(-1).sum(-1)
        return replace(proposal, num_tokens=torch.minimum(proposal.num_tokens, sure))


class Varying(Wrapper):
    """A proposer that is asked for one token, two, and so on in turn, by how many tokens the request has."""

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        wanted = [min(limit, 1 + row.num_generated % 4) for row, limit in zip(rows, limits, strict=True)]
        return super().propose(rows, wanted)


class Nothing(Wrapper):
    """A proposer that proposes nothing: the target alone."""

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        return point_masses([[] for _ in rows], torch.device("cpu"))
