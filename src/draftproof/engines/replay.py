"""Teacher forcing through a target's own cache, in passes of given widths: how a token was scored can be seen again."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from draftproof.decoding.loop import RollBack
from draftproof.decoding.target import Target

SLOT = 0


def replay(
    target: Target,
    take_back: RollBack,
    prompt_token_ids: Sequence[int],
    token_ids: Sequence[int],
    passes: Sequence[tuple[int, int]],
) -> Iterator[Tensor]:
    """
    Score a continuation in an idle target as the round would.

    Parameters
    ----------
    passes : sequence of (width, kept)
        Rejected tokens, width - kept of them, are not known any more: the last kept one stands for each.

    Yields
    ------
    Tensor, shape (kept, V)
        The logits before each token of a pass.
    """
    sequence, done = [*prompt_token_ids, *token_ids], len(prompt_token_ids) - 1
    try:
        # one token short, as a request enters
        target.prefill(SLOT, sequence[:done])
        for width, kept in passes:
            known = sequence[done : done + kept]
            yield target.score({SLOT: [*known, *known[-1:] * (width - kept)]})[0, :kept]
            take_back(target, SLOT, width - kept)
            done += kept
    finally:
        target.release(SLOT)
