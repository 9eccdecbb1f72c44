"""One request as `generate` shows it from outside: its tokens, its end, its times, and what each round drafted and kept."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from draftproof.decoding.stopping import StopRule
from draftproof.errors import NumericsError
from draftproof.records import Chunk, SpeculationMetrics, summarise_counts
from draftproof.request import FinishReason


class Watched(StoppingCriteria):
    """
    The tokens of one request, and its rounds.

    Attributes
    ----------
    token_ids : list of int
    chunks : list of Chunk
    finish_reason : {"stop", "length", "error"} or None
    widths : list of int
        Positions of each of the target's passes; the first one reads all of the prompt but for its last token besides.

    Notes
    -----
    generate asks it after every round of either arm, with the whole sequence, whether to stop. So the output, its end and its times
    come from one list; a streamer would see tokens beyond a stop string.

    Only what ends at a stop string is cut: generate is not told of those. It is told of the maximum and of end tokens, so what it adds
    beyond them stays, for the comparison of the arms to find.
    """

    def __init__(self, num_prompt: int, stop: StopRule, age_ms: Callable[[], float]) -> None:
        self.num_prompt, self.stop, self.age_ms = num_prompt, stop, age_ms
        self.token_ids: list[int] = []
        self.chunks: list[Chunk] = []
        self.finish_reason: FinishReason | None = None
        self.widths: list[int] = []
        self._drafted: list[int] = []
        # drafted and accepted, of each round that drafted
        self._counts: list[tuple[int, int]] = []

    def see_pass(self, input_ids: Tensor, logits: Tensor) -> None:
        """
        Take in a pass of the target.

        Parameters
        ----------
        input_ids : Tensor, shape (1, T), int64
            What it read.
        logits : Tensor, shape (1, T, V)

        Raises
        ------
        NumericsError
            They are not finite: argmax would take one of them, and multinomial breaks the device.
        """
        if not logits.isfinite().all():
            raise NumericsError("the target's logits are not finite")
        width = input_ids.shape[1] - (0 if self.widths else self.num_prompt - 1)
        self.widths.append(width)
        self._drafted = input_ids[0, input_ids.shape[1] - width + 1 :].tolist()

    def __call__(self, input_ids: Tensor, scores: object, **_: Any) -> Tensor:
        """Take in a round's tokens, and say whether the request is over: shape (1,)."""
        if self.finish_reason is None:
            new = input_ids[0, self.num_prompt + len(self.token_ids) :].tolist()
            at_ms = self.age_ms()
            kept, self.finish_reason = self.stop.cut(self.token_ids, new)
            if self.finish_reason == "length" or kept[-1] in self.stop.end_token_ids:
                kept = new
            if self._drafted:
                self._counts.append((len(self._drafted), _shared(self._drafted, new)))
            self.token_ids += kept
            self.chunks.append(Chunk(num_tokens=len(kept), at_ms=at_ms))
        return torch.full((1,), self.finish_reason is not None, device=input_ids.device)

    def speculation(self, num_speculative_tokens: int) -> SpeculationMetrics:
        """Add up the rounds that drafted."""
        accepted = [count for _, count in self._counts]
        return summarise_counts(
            num_spec_steps=len(self._counts),
            num_draft_tokens=sum(count for count, _ in self._counts),
            num_accepted_draft_tokens=sum(accepted),
            acceptance_histogram=tuple(
                accepted.count(size) for size in range(max(num_speculative_tokens, *accepted, 0) + 1)
            ),
            num_spec_tokens=num_speculative_tokens,
        )


def _shared(drafted: list[int], new: list[int]) -> int:
    """Return how many drafted tokens the new ones begin with; the one after a rejected token is another than it."""
    return next(
        (at for at, (one, other) in enumerate(zip(drafted, new, strict=False)) if one != other),
        min(len(drafted), len(new)),
    )
