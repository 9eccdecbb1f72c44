"""One running request: its tokens, its slot and its record. Knows nothing about models."""

from collections.abc import Sequence
from dataclasses import dataclass, field

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

    def report_logprobs(self, logits: Tensor, law: Tensor) -> None:
        """
        Record the log-probabilities of the tokens that were just committed.

        Parameters
        ----------
        logits, law : Tensor, shape (T, V)
            What the last T tokens were chosen from.
        """
        emitted = len(logits)
        values = logits.to(torch.float64).log_softmax(-1) if self.params.logprobs_mode == "raw" else law.log()
        chosen = torch.tensor(self.token_ids[-emitted:], device=values.device)
        self.logprobs.extend(values.gather(-1, chosen[:, None])[:, 0].tolist())
        best = values.topk(min(self.params.logprobs or 0, values.shape[-1]), dim=-1)
        self.top_logprobs.extend(
            dict(zip(ids, numbers, strict=True))
            for ids, numbers in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )
