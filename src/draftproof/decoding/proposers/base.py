"""What a proposer is. Any class with these three methods can propose tokens."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from draftproof.decoding.batch import Row
from draftproof.decoding.target import Target
from draftproof.errors import InputError
from draftproof.sampling.accept import Proposal
from draftproof.sampling.draw import Drawing, draw_alone
from draftproof.sampling.noise import Noise
from draftproof.sampling.upload import upload

__all__ = ["Proposal", "Proposer", "ProposerContext", "point_masses", "require_proposer", "unbound_copy"]
Some = TypeVar("Some", bound="Proposer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerContext:
    """
    What a proposer is told once, before the first request.

    Attributes
    ----------
    num_slots : int
        Requests that may run at once; ``row.slot`` is below it.
    max_len : int
        Longest sequence in tokens.
    num_speculative_tokens : int
        K, the most tokens a round may propose.
    vocab_size : int
        Rows of the target's logits; a proposed id must be below it.
    device : torch.device
    noise : Noise
        Where a proposer that draws takes its random numbers.
    draw : Drawing
        How a proposer draws: from a law, the row's key and the token's position (``row.num_generated`` + place).
    target : Target or None
        The target's passes, for a proposer that shares them.
    tokenizer : PreTrainedTokenizerBase or None
        The target's, for a proposer that reads text.
    """

    num_slots: int
    max_len: int
    num_speculative_tokens: int
    vocab_size: int
    device: torch.device
    noise: Noise
    draw: Drawing = draw_alone
    target: Target | None = None
    tokenizer: Any = None


@runtime_checkable
class Proposer(Protocol):
    """
    Proposes tokens for a batch of requests.

    The output is exact for any proposer that reports honestly: ``Proposal.probs`` is what the tokens were drawn from, or
    None if they are a function of the rows. Whether a token is proposed may depend on the past and on the draft's
    distribution, never on the token that was drawn.

    An engine for a verification's many short requests binds a deep copy; a proposer with weights defines ``__deepcopy__`` to share
    them.
    """

    def bind(self, context: ProposerContext) -> None:
        """Prepare for an engine; called once."""
        ...

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """
        Propose up to ``limits[i]`` (0..K) tokens to follow ``rows[i].token_ids``.

        Rows only ever grow by appended tokens; rejected proposals simply do not appear in them.
        """
        ...

    def release(self, slot: int) -> None:
        """Forget a slot; its next request has nothing to do with the last."""
        ...


def require_proposer(proposer: object) -> None:
    """
    See that something can be asked as a proposer.

    Raises
    ------
    InputError
        It cannot.
    """
    if isinstance(proposer, type) or not isinstance(proposer, Proposer):
        got = f"the class {proposer.__name__}" if isinstance(proposer, type) else f"a {type(proposer).__name__}"
        raise InputError(
            f"proposer is {got}; allowed are objects with bind, propose and release, such as PromptLookup()"
        )


def point_masses(drafts: Sequence[Sequence[int]], device: torch.device) -> Proposal:
    """Pack lists of tokens that are a function of the context into a proposal."""
    width = max((len(draft) for draft in drafts), default=0)
    token_ids = torch.zeros(len(drafts), width, dtype=torch.int64)
    for row, draft in enumerate(drafts):
        token_ids[row, : len(draft)] = torch.tensor(draft, dtype=torch.int64)
    num_tokens = torch.tensor([len(draft) for draft in drafts], dtype=torch.int64)
    return Proposal(token_ids=upload(token_ids, device), num_tokens=upload(num_tokens, device))


def unbound_copy(
    proposer: Some, memo: dict[int, object], *, shared: Sequence[str] = (), bound: Sequence[str] = ()
) -> Some:
    """
    Return a copy for another engine, of the same class: what a class derived from a proposer adds or changes is judged too.

    Parameters
    ----------
    memo : dict
        As for ``__deepcopy__``.
    shared : sequence of str
        Attributes that both have, such as weights.
    bound : sequence of str
        Attributes that `Proposer.bind` made; the copy is bound to nothing yet.
    """
    twin = object.__new__(type(proposer))
    memo[id(proposer)] = twin
    for name, value in vars(proposer).items():
        if name not in bound:
            twin.__dict__[name] = value if name in shared else copy.deepcopy(value, memo)
    return twin
