"""A draft that sees the request otherwise than it is, and reports what it then drew from: worse drafts, the same law."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, Proposer
from draftproof.verify.controls.wrapper import Wrapper


class Seen(Wrapper):
    """A proposer that is shown changed rows."""

    def __init__(self, proposer: Proposer, change: Callable[[Row], Row]) -> None:
        super().__init__(proposer)
        self._change = change

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        return super().propose([self._change(row) for row in rows], limits)


def one_token_stale(row: Row) -> Row:
    """Leave the last token out, as a draft cache that lags behind does; positions, so random numbers, stay."""
    return replace(row, token_ids=row.token_ids[:-1], num_prompt=row.num_prompt - 1)


def at_other_settings(row: Row) -> Row:
    """Draft hotter and from the whole vocabulary, whatever the request says."""
    changes = {"temperature": row.params.temperature * 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return replace(row, params=row.params.model_copy(update=changes))
