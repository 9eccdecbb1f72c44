"""One running request: its tokens, its slot and its record. Knows nothing about models."""

from dataclasses import dataclass, field

from draftproof.decoding.stopping import StopRule
from draftproof.records import Chunk, Round
from draftproof.request import FinishReason, SamplingParams


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
    slot : int or None
        Place in the store; None while queued and after the end.
    """

    request_id: int
    token_ids: list[int]
    num_prompt: int
    params: SamplingParams
    stop: StopRule
    key: tuple[int, int]
    speculate: bool
    submitted_ms: float
    slot: int | None = None
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

    def commit(self, token_ids: list[int]) -> int:
        """
        Append a round's tokens, cut where the request ends, and return how many stayed.

        EOS, stop strings, ``max_tokens`` and the context limit are applied here and nowhere else.
        """
        kept, self.finish_reason = self.stop.cut(self.generated, token_ids)
        self.token_ids.extend(kept)
        return len(kept)
