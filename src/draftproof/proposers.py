"""The public door to the proposers."""

from draftproof.decoding.proposers.base import Proposal, Proposer, ProposerContext, point_masses
from draftproof.decoding.proposers.cross_tokenizer import CrossTokenizer
from draftproof.decoding.proposers.draft_model import DraftModel
from draftproof.decoding.proposers.early_exit import EarlyExit
from draftproof.decoding.proposers.first_of import FirstOf
from draftproof.decoding.proposers.prompt_lookup import PromptLookup

__all__ = [
    "CrossTokenizer",
    "DraftModel",
    "EarlyExit",
    "FirstOf",
    "PromptLookup",
    "Proposal",
    "Proposer",
    "ProposerContext",
    "point_masses",
]
