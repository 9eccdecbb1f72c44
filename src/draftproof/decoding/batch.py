"""One running request: its tokens, its slot and its record. Knows nothing about models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from draftproof.decoding.stopping import StopRule
from draftproof.records import Chunk, Round
from draftproof.request import FinishReason, SamplingParams
from draftproof.sampling.adjust import Prefix, Processor


@dataclass(slots=True, kw_only=True)
class Row:
    """
    A request in the decoder.

    Attributes
    ----------
    token_ids : list of int
        The one committed list: the prompt, then everything generated. Proposers read it; only `commit` appends.
    num_prompt : int
        Length of the prompt in ``token_ids``.
    key : (int, int)
        Seed and sample index; with a position and a purpose they name a random number.
    processors : tuple of Processor
        The request's own, and what its constraints became.
    slot : int or None
        Place in the store; None while queued and after the end.
    logprobs, top_logprobs
        One entry per generated token, where the request asks for them.
    """

    request_id: int
    token_ids: list[int]
    num_prompt: int
    params: SamplingParams
    stop: StopRule
    key: tuple[int, int]
    speculate: bool
    submitted_ms: float
    processors: tuple[Processor, ...] = ()
    slot: int | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def num_generated(self) -> int:
        """Tokens after the prompt; the next token's position."""
        return len(self.token_ids) - self.num_prompt

    @property
    def generated(self) -> list[int]:
        """The tokens after the prompt."""
        return self.token_ids[self.num_prompt :]

    def prefix(self, draft: Sequence[int] = ()) -> Prefix:
        """Return what the logits of a block with this draft follow."""
        return Prefix(
            token_ids=self.token_ids,
            num_prompt=self.num_prompt,
            draft=draft,
            end_token_ids=self.stop.end_token_ids,
            processors=self.processors,
        )

    def commit(self, token_ids: list[int]) -> int:
        """
        Append a round's tokens, cut where the request ends, and return how many stayed.

        EOS, stop strings, ``max_tokens`` and the context limit are applied here and nowhere else.
        """
        kept, self.finish_reason = self.stop.cut(self.generated, token_ids)
        self.token_ids.extend(kept)
        return len(kept)


def slot_of(row: Row) -> int:
    """Return the slot of a row that runs."""
    assert row.slot is not None
    return row.slot


def report_logprobs(reports: Sequence[tuple[Row, Tensor, Tensor]]) -> None:
    """
    Record the log-probabilities of the tokens that were just committed, read once for all rows.

    Parameters
    ----------
    reports : sequence of (row, logits, law), the two of shape (T, V)
        What the row's last T tokens were chosen from.
    """
    if not reports:
        return
    chosen, numbers, token_ids = [], [], []
    for row, logits, law in reports:
        values = logits.to(torch.float64).log_softmax(-1) if row.params.logprobs_mode == "raw" else law.log()
        emitted = torch.tensor(row.token_ids[-len(values) :]).to(values.device, non_blocking=True)
        chosen.append(values.gather(-1, emitted[:, None])[:, 0])
        best = values.topk(min(row.params.logprobs or 0, values.shape[-1]), dim=-1)
        numbers.append(best.values.flatten())
        token_ids.append(best.indices.flatten())
    read = [iter(torch.cat(parts).tolist()) for parts in (chosen, numbers, token_ids)]
    for row, logits, _ in reports:
        count = min(row.params.logprobs or 0, logits.shape[-1])
        row.logprobs.extend(islice(read[0], len(logits)))
        for _ in range(len(logits)):
            row.top_logprobs.append(dict(zip(islice(read[2], count), islice(read[1], count), strict=True)))
