"""What the draft said, heard at the accept rule: which law each drafted token was drawn from."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from draftproof.sampling.accept import AcceptRule, Decision, Keys, Proposal
from draftproof.sampling.noise import Noise
from draftproof.verify.log import Array


class DraftLaws:
    """
    An accept rule that decides as the one given and keeps what the draft reported.

    Parameters
    ----------
    accept : AcceptRule
    columns : sequence of int or None
        The token ids of interest; None keeps all.
    """

    def __init__(self, accept: AcceptRule, columns: Sequence[int] | None = None) -> None:
        self._accept = accept
        self._columns = None if columns is None else torch.tensor(columns)
        self._laws: dict[tuple[tuple[int, int], int], Array] = {}

    def __call__(
        self, target_probs: torch.Tensor, proposal: Proposal, keys: Keys, positions: Sequence[int], noise: Noise
    ) -> Decision:
        """See `AcceptRule.__call__`."""
        self._keep(target_probs, proposal, keys, positions)
        return self._accept(target_probs, proposal, keys, positions, noise)

    def _keep(self, target_probs: torch.Tensor, proposal: Proposal, keys: Keys, positions: Sequence[int]) -> None:
        width = proposal.token_ids.shape[1]
        if width == 0:
            return
        laws = proposal.probs
        if laws is None:
            laws = torch.zeros_like(target_probs[:, :width])
            laws.scatter_(-1, proposal.token_ids[..., None], 1.0)
        if self._columns is not None:
            laws = laws[..., self._columns.to(laws.device)]
        rows = laws.detach().to("cpu", torch.float64).numpy()
        for row, (key, first, count) in enumerate(zip(keys, positions, proposal.num_tokens.tolist(), strict=True)):
            for place in range(count):
                # a later report of the same place is the one that counts: the earlier one was taken back
                self._laws[key, first + place] = rows[row, place]

    def of(self, key: tuple[int, int], drafted: Sequence[bool], num_cells: int) -> npt.NDArray[np.float64]:
        """Return the laws of one request's tokens, shape (T, num_cells), with NaN where nothing was drafted."""
        unknown = np.full(num_cells, np.nan)
        return np.stack(
            [self._laws.get((key, at), unknown) if is_drafted else unknown for at, is_drafted in enumerate(drafted)]
        )

    def forget(self) -> None:
        """Drop what was kept."""
        self._laws.clear()
