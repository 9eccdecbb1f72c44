"""What one generation produced, as plain values. Knows nothing about models or files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from draftproof.request import FinishReason

NextToken = Literal["correction", "bonus", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """
    One draft-and-verify round of one request.

    Attributes
    ----------
    num_proposed, num_accepted : int
        Draft tokens proposed, and the leading ones that the target accepted.
    next_token : {"correction", "bonus", "target"} or None
        Where the token after the accepted ones came from: the residual after a rejection, the position
        after a fully accepted draft, or the target alone because nothing was proposed. None when the
        output was cut before it.
    emitted : int
        Tokens that entered the output (after EOS, stop and length were applied); 0 where the block was taken back whole.
    propose_ms, score_ms : float, ms, monotonic clock
        The whole batch's time in the proposer and in the target's pass, the decision included.
    draft_error : str or None
        Why this round's draft was dropped or nothing was drafted, when the proposer failed or its tokens broke the block.
    sample_ms : float or None, ms
        The part of ``score_ms`` that was the decision: laws, accept rule, reading what it gave. None where it was not timed.
    prefill_ms : float, ms
        The whole batch's time in reading the prompts of requests that joined just before this round.
    num_rows : int
        Requests in the round; each has a record of it, so that a sum over records counts a round so often.
    """

    num_proposed: int
    num_accepted: int
    next_token: NextToken | None
    emitted: int
    propose_ms: float
    score_ms: float
    draft_error: str | None = None
    sample_ms: float | None = None
    prefill_ms: float = 0.0
    num_rows: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens that became visible together, and when (ms since the request was submitted)."""

    num_tokens: int
    at_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationMetrics:
    """
    Counts over the rounds of one or many requests.

    Fields that both have are named and defined as in vLLM's per-request ``metrics.speculative_decoding``: the acceptance
    rate counts draft tokens only, the acceptance length counts the correction or bonus token too.
    ``None`` means that nothing was proposed, or that a server does not report it, never zero; a histogram that is not
    reported is empty. ``num_requests`` is how many requests that ran together these counts are the sum of.
    """

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: tuple[int, ...]
    num_spec_steps: int | None
    num_accepted_draft_tokens: int | None
    num_draft_tokens: int | None
    num_spec_tokens: int | None
    num_requests: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """
    The output of one request.

    Attributes
    ----------
    token_ids : tuple of int
        Generated tokens, the prompt excluded, an EOS that ended it included.
    text : str
        Decoded without special tokens, cut before a stop string.
    finish_reason : {"stop", "length", "error"} or None
        None in a part of a stream that goes on.
    logprobs : tuple of float, or None
        The log-probability of each generated token, in order: of the target's raw logits, or of the law that was sampled
        where the request asked for that. None where the request did not ask, or the engine does not report it.
    pass_widths : tuple of int
        Positions of the target's pass behind each chunk, where the engine sees its passes and reports no rounds.
    top_logprobs : tuple of dict (token id to log-probability), or None
        The most likely tokens at each generated one's place, the likeliest first.
    rounds : tuple of Round
        Empty where the engine does not report rounds.
    speculation : SpeculationMetrics or None
        None where the engine does not report it, or ran target-only.
    chunks : tuple of Chunk
        When tokens became visible.
    num_prompt_tokens : int
    error : str or None
        What went wrong, when ``finish_reason`` is "error".
    retries : int
        How often a server was asked again because it refused the request before its first token. The times include them.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    logprobs: tuple[float, ...] | None
    rounds: tuple[Round, ...]
    speculation: SpeculationMetrics | None
    chunks: tuple[Chunk, ...]
    num_prompt_tokens: int
    error: str | None = None
    top_logprobs: tuple[dict[int, float], ...] | None = None
    pass_widths: tuple[int, ...] = ()
    retries: int = 0

    @property
    def latency_ms(self) -> float | None:
        """Time from submission to the last token, in ms, or None when no token arrived."""
        return self.chunks[-1].at_ms if self.chunks else None


def summarise_rounds(rounds: Sequence[Round], num_spec_tokens: int) -> SpeculationMetrics:
    """
    Count proposals and acceptances over rounds in which something was proposed.

    Parameters
    ----------
    rounds : sequence of Round
    num_spec_tokens : int
        The configured number of draft tokens per round (K); the histogram has K + 1 entries.
    """
    drafted = [item for item in rounds if item.num_proposed]
    histogram = [0] * (num_spec_tokens + 1)
    for item in drafted:
        histogram[item.num_accepted] += 1
    proposed = sum(item.num_proposed for item in drafted)
    accepted = sum(item.num_accepted for item in drafted)
    return SpeculationMetrics(
        mean_acceptance_length=1 + accepted / len(drafted) if drafted else None,
        draft_acceptance_rate=accepted / proposed if proposed else None,
        acceptance_histogram=tuple(histogram),
        num_spec_steps=len(drafted),
        num_accepted_draft_tokens=accepted,
        num_draft_tokens=proposed,
        num_spec_tokens=num_spec_tokens,
    )


def summarise_counts(**counts: int | tuple[int, ...] | None) -> SpeculationMetrics:
    """
    Derive the two ratios from counts that a server reports, where it reports enough of them.

    Parameters
    ----------
    **counts
        Fields of `SpeculationMetrics`; one that is left out is not known.
    """
    known: dict[str, Any] = {
        "acceptance_histogram": (),
        "num_spec_steps": None,
        "num_accepted_draft_tokens": None,
        "num_draft_tokens": None,
        "num_spec_tokens": None,
        **counts,
    }
    accepted, steps, drafted = (
        known[name] for name in ("num_accepted_draft_tokens", "num_spec_steps", "num_draft_tokens")
    )
    return SpeculationMetrics(
        mean_acceptance_length=None if accepted is None or not steps else 1 + accepted / steps,
        draft_acceptance_rate=None if accepted is None or not drafted else accepted / drafted,
        **known,
    )
