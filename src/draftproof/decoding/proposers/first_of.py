"""Ask several proposers in turn: for each row the first that has something to say."""

from collections.abc import Sequence
from contextlib import ExitStack

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import (
    Proposal,
    Proposer,
    ProposerContext,
    point_masses,
    require_proposer,
    unbound_copy,
)
from draftproof.decoding.proposers.check import stack
from draftproof.errors import InputError


class FirstOf:
    """
    The first proposer that proposes anything for a row, such as prompt lookup and else a draft model.

    Parameters
    ----------
    *proposers : Proposer
        Two or more, the cheapest first.

    Notes
    -----
    Which one is asked depends on whether the earlier ones were silent, never on a token that was drawn: each of them must
    be silent for reasons that it knows before it draws.
    """

    def __init__(self, *proposers: Proposer) -> None:
        if len(proposers) < 2:
            raise InputError(f"FirstOf got {len(proposers)} proposer(s): allowed two or more")
        for proposer in proposers:
            require_proposer(proposer)
        self.proposers = proposers

    def __deepcopy__(self, memo: dict[int, object]) -> "FirstOf":
        return unbound_copy(self, memo, bound=("_device", "_vocab_size"))

    def bind(self, context: ProposerContext) -> None:
        """Bind each."""
        self._device, self._vocab_size = context.device, context.vocab_size
        for proposer in self.proposers:
            proposer.bind(context)

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        found = {index: point_masses([[]], self._device) for index in range(len(rows))}
        silent = [index for index, limit in enumerate(limits) if limit]
        for proposer in self.proposers:
            if not silent:
                break
            answer = proposer.propose([rows[index] for index in silent], [limits[index] for index in silent])
            counts = answer.num_tokens.tolist()
            for place, index in enumerate(silent):
                if counts[place]:
                    found[index] = Proposal(
                        token_ids=answer.token_ids[place : place + 1, : counts[place]],
                        num_tokens=answer.num_tokens[place : place + 1],
                        probs=None if answer.probs is None else answer.probs[place : place + 1, : counts[place]],
                    )
            silent = [index for place, index in enumerate(silent) if not counts[place]]
        return stack(list(found.values()), self._vocab_size)

    def release(self, slot: int) -> None:
        """Release it in each, also where another one fails to."""
        with ExitStack() as releases:
            for proposer in self.proposers:
                releases.callback(proposer.release, slot)
