"""The engine protocol: what a study needs of any engine. Knows no engine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from draftproof.records import Completion
from draftproof.request import Prompt, SamplingParams
from draftproof.sampling.accept import AcceptRule

Claim = Literal["bitwise", "bitwise_same_batch", "up_to_ties", "lossy"]
ControlArm = Literal["own draft", "float32"]
OnCompletion = Callable[[int, Completion], None]
WrapRule = Callable[[AcceptRule], AcceptRule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """
    What an engine can do; asked before the first token.

    Attributes
    ----------
    name : str
    claim : str
        Strongest claim about greedy output that the engine makes for itself.
    claim_basis : str
        How the engine knows.
    max_batch : int
    max_len : int
        Longest sequence in tokens, prompt included.
    reports_rounds : bool
        Whether completions carry one record per round.
    allowed_token_ids : bool
        Whether requests may restrict the vocabulary.
    score : bool
        Whether `score` works.
    replaceable_rule : bool
        Whether `sibling` takes an accept rule, which is how defects of the speculation are planted.
    num_speculative_tokens : int or None
        K, the most tokens drafted per round. None where the engine does not say.
    details : dict
        Facts for the record (shape class, dtype, threads).
    score_passes : bool
        Whether `score_passes` works.
    control_arms : tuple of {"own draft", "float32"}
        What `control_arm` can make.
    score_top : bool
        Whether the engine is a `Reporting` one: it gives log-probabilities of the likeliest tokens.
    logprobs : bool
        Whether completions have the log-probabilities that a request asks for.
    ignore_eos : bool
        Whether a request may go on after an end of sequence.
    """

    name: str
    claim: Claim
    claim_basis: str
    max_batch: int
    max_len: int
    reports_rounds: bool
    allowed_token_ids: bool
    score: bool
    replaceable_rule: bool
    num_speculative_tokens: int | None
    details: dict[str, Any]
    score_passes: bool = False
    control_arms: tuple[ControlArm, ...] = ()
    score_top: bool = False
    logprobs: bool = True
    ignore_eos: bool = True


class EngineProtocol(Protocol):
    """An engine that can run both arms."""

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        ...

    def now_ms(self) -> float:
        """Return the engine's monotonic clock in ms, after the device has caught up."""
        ...

    def encode(self, prompt: Prompt) -> list[int]:
        """
        Return the token ids that a prompt becomes.

        Raises
        ------
        PromptError
            It is empty, holds an id that the model does not have, or leaves no room for a token.
        """
        ...

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        speculate: bool = True,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """Run the prompts together and return one completion each, in order."""
        ...

    def score(self, prompt_token_ids: Sequence[int], token_ids: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """
        Return the target's raw logits before each token of continuations of one prompt (teacher forcing).

        It is an independent pass of the plain model, without the engine's own cache.

        Parameters
        ----------
        prompt_token_ids : sequence of int
        token_ids : sequence of N sequences of equal length T

        Returns
        -------
        ndarray, shape (N, T, V), float32
        """
        ...

    def score_passes(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], passes: Sequence[tuple[int, int]]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """
        Score a continuation as the engine itself would: through its cache, in passes of given widths.

        Only where ``capabilities.score_passes``, and only while nothing runs.

        Parameters
        ----------
        prompt_token_ids : sequence of int
        token_ids : sequence of int
            As many as are kept in all passes together.
        passes : sequence of (width, kept)
            Positions of a pass, at most K + 1, and how many of its logits are wanted. What is beyond them stands for rejected
            tokens, and is taken back before the next pass.

        Yields
        ------
        ndarray, shape (kept, V), float32
            For each pass, the target's raw logits before each token.
        """
        ...

    def control_arm(self, name: ControlArm) -> "EngineProtocol":
        """
        Return this engine with one thing changed, for one request at a time.

        "own draft": the target drafts for itself. "float32": weights, caches and passes in float32. The accept rule and
        the roll-back stay. Only what ``capabilities.control_arms`` names.

        Raises
        ------
        ModelError
            There is no memory for it.
        """
        ...

    def sibling(self, *, max_batch: int, max_len: int, accept: WrapRule | None = None) -> "EngineProtocol":
        """
        Return an engine on the same models for many short requests at once, or with another accept rule.

        ``accept`` makes the other rule of the engine's own.

        Its passes may be wider, which changes rounding and not the law. An engine whose batch is fixed returns itself.

        Raises
        ------
        InputError
            A rule was given and ``capabilities.replaceable_rule`` is false.
        """
        ...

    def memory(self) -> dict[str, int | None]:
        """Return bytes by part: target_weights, target_cache, draft_weights, draft_cache."""
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...


class Reporting(EngineProtocol, Protocol):
    """What an engine has besides where ``capabilities.score_top``."""

    def score_top(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], num_top: int
    ) -> list[tuple[float, dict[int, float]]]:
        """
        Return the target's log-probabilities of a continuation, by teacher forcing.

        Parameters
        ----------
        prompt_token_ids, token_ids : sequence of int
        num_top : int, 1 or more
            Likeliest tokens at each place; servers have a limit of their own.

        Returns
        -------
        list of (float, dict of token id to float)
            For each token of the continuation, its own log-probability and those of the likeliest ones.
        """
        ...


class Queueing(Protocol):
    """What an engine has besides where requests may arrive while others run."""

    @property
    def num_unfinished(self) -> int:
        """Submitted requests whose end `step` has not told yet."""
        ...

    def now_ms(self) -> float:
        """See `EngineProtocol.now_ms`."""
        ...

    def submit(
        self, prompt: Prompt, params: SamplingParams, *, speculate: bool = True, arrived_ms: float | None = None
    ) -> int:
        """Queue a request and return its id; its times count from ``arrived_ms`` on the clock of `now_ms`."""
        ...

    def step(self) -> list[tuple[int, Completion]]:
        """Run one round and return (id, completion) of what ended."""
        ...

    def wait(self, ms: float) -> None:
        """Let time pass while nothing runs."""
        ...

    def cancel(self, request_id: int) -> None:
        """Drop a request."""
        ...
