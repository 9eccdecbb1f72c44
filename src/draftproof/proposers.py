"""The public door to the proposers and to the protocol of a user's own."""

from draftproof.decoding.proposers.base import Proposal, Proposer, ProposerContext, point_masses
from draftproof.decoding.proposers.draft_model import DraftModel
from draftproof.decoding.proposers.prompt_lookup import PromptLookup

__all__ = ["DraftModel", "PromptLookup", "Proposal", "Proposer", "ProposerContext", "point_masses"]
