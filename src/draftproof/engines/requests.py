"""Requests in, completions out, around a `Decoder`. Knows neither where the target's logits come from nor who asks."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.decoding.batch import Row
from draftproof.decoding.loop import Decoder
from draftproof.decoding.proposers.base import Proposer, ProposerContext, require_proposer
from draftproof.decoding.target import Target
from draftproof.engines.base import OnCompletion
from draftproof.engines.constraint import Constraints
from draftproof.engines.prompts import encode_prompt, pair_with_params, require_params, stop_rule
from draftproof.engines.replay import replay
from draftproof.errors import InputError
from draftproof.records import Completion, summarise_rounds
from draftproof.request import Prompt, SamplingParams
from draftproof.sampling.draw import Drawing, draw_alone
from draftproof.sampling.noise import KeyedNoise, Noise

MAX_SPECULATIVE_TOKENS = 15


def require_sizes(num_speculative_tokens: int, max_batch: int, max_len: int) -> None:
    """
    See that an engine's sizes are whole numbers in their ranges, before anything is allocated.

    Raises
    ------
    InputError
        One is not; the message names it.
    """
    sizes = {"num_speculative_tokens": num_speculative_tokens, "max_batch": max_batch, "max_len": max_len}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer):
            raise InputError(f"{name} = {size!r}: allowed are whole numbers")
    if not 1 <= num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
        raise InputError(
            f"num_speculative_tokens = {num_speculative_tokens}: allowed 1 to {MAX_SPECULATIVE_TOKENS}; choose one of them"
        )
    if max_batch < 1:
        raise InputError(f"max_batch = {max_batch}: allowed 1 or more")
    if max_len < 2:
        raise InputError(f"max_len = {max_len}: allowed 2 or more")


class DecoderEngine:
    """
    The part of an engine that is the same for every target.

    Parameters
    ----------
    target : Target
    proposer : Proposer or None
        Is bound here.
    num_speculative_tokens : int
        K.
    tokenizer : PreTrainedTokenizerBase, or anything that encodes, decodes and applies a chat template like one
    vocab_size : int
        Ids that the target has.
    max_len : int
        Longest sequence in tokens, prompt included.
    eos : frozenset of int
    noise : Noise or None
    draw : Drawing
        How the proposer draws.
    **parts
        As for `Decoder`.
    """

    def __init__(
        self,
        target: Target,
        proposer: Proposer | None,
        num_speculative_tokens: int,
        tokenizer: Any,
        *,
        vocab_size: int,
        max_len: int,
        eos: frozenset[int],
        noise: Noise | None = None,
        draw: Drawing = draw_alone,
        **parts: Any,
    ) -> None:
        noise = noise or KeyedNoise()
        if proposer is not None:
            require_proposer(proposer)
            proposer.bind(
                ProposerContext(
                    num_slots=target.num_slots,
                    max_len=max_len,
                    num_speculative_tokens=num_speculative_tokens,
                    vocab_size=vocab_size,
                    device=target.device,
                    noise=noise,
                    draw=draw,
                    target=target,
                    tokenizer=tokenizer,
                )
            )
        self._decoder = Decoder(target, proposer, num_speculative_tokens, noise=noise, **parts)
        self.proposer, self.num_speculative_tokens = proposer, num_speculative_tokens
        self.tokenizer, self._eos = tokenizer, eos
        self._constraints = Constraints(tokenizer, vocab_size, eos)
        self.vocab_size, self.max_len = vocab_size, max_len
        self._next_id = 0
        self._submitted: dict[int, Row] = {}

    def now_ms(self) -> float:
        """See `EngineProtocol.now_ms`."""
        return self._decoder.now_ms()

    def encode(self, prompt: Prompt) -> list[int]:
        """See `EngineProtocol.encode`."""
        return encode_prompt(self.tokenizer, prompt, self.vocab_size, self.max_len)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        speculate: bool = True,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """
        Run the prompts, up to ``max_batch`` at a time, and return ``n`` completions each, in order.

        Parameters
        ----------
        prompts : sequence of str, chat messages or token ids
        params : SamplingParams, or one for each prompt
        speculate : bool
            False is the target-only arm: the same engine, nothing proposed.
        on_completion : callable
            Gets (index, completion) as each request ends.

        Raises
        ------
        PromptError, InputError
            A prompt or a parameter cannot be used; nothing has run then.
        """
        pairs = pair_with_params(prompts, params, self.vocab_size)
        rows = [self._row(prompt, item, index, speculate) for prompt, item in pairs for index in range(item.n)]
        done: dict[int, Completion] = {}
        for row in rows:
            self._decoder.submit(row)
        try:
            while len(done) < len(rows):
                self._decoder.step()
                for index, row in enumerate(rows):
                    if row.finish_reason is not None and index not in done:
                        done[index] = self._completion(row)
                        if on_completion:
                            on_completion(index, done[index])
        except BaseException:
            for row in rows:
                self._decoder.cancel(row.request_id)
            raise
        return [done[index] for index in range(len(rows))]

    def score_passes(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], passes: Sequence[tuple[int, int]]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """
        See `EngineProtocol.score_passes`.

        Raises
        ------
        InputError
            Requests are running.
        """
        if self._decoder.rows:
            raise InputError(f"{len(self._decoder.rows)} requests are running; score passes once they have ended")
        for logits in replay(self._decoder.target, self._decoder.take_back, prompt_token_ids, token_ids, passes):
            yield logits.float().cpu().numpy()

    def submit(
        self, prompt: Prompt, params: SamplingParams, *, speculate: bool = True, arrived_ms: float | None = None
    ) -> int:
        """
        Queue a request (``n`` must be 1); it joins at the next `step` in which a place is free.

        Parameters
        ----------
        arrived_ms : float or None
            When it arrived, on the clock of `now_ms`; its times count from there. None: now.

        Returns
        -------
        int
            The request's id.

        Raises
        ------
        PromptError, InputError
            The prompt or a parameter cannot be used.
        """
        _require_one(params, "submit")
        ((prompt, params),) = pair_with_params([prompt], params, self.vocab_size)
        row = self._row(prompt, params, 0, speculate)
        if arrived_ms is not None:
            row.submitted_ms = arrived_ms
        self._decoder.submit(row)
        self._submitted[row.request_id] = row
        return row.request_id

    def wait(self, ms: float) -> None:
        """Let time pass while nothing runs."""
        time.sleep(ms / 1e3)

    def step(self) -> list[tuple[int, Completion]]:
        """Run one round for everything that is queued or running; return (id, completion) of what ended."""
        self._decoder.step()
        ended = [row for row in self._submitted.values() if row.finish_reason is not None]
        for row in ended:
            del self._submitted[row.request_id]
        return [(row.request_id, self._completion(row)) for row in ended]

    def cancel(self, request_id: int) -> None:
        """
        Drop a request, queued or running; an id that is not there is ignored.

        Its place is free at once, or at the end of the round that asks for it.
        """
        self._decoder.cancel(request_id)
        self._submitted.pop(request_id, None)

    @property
    def num_unfinished(self) -> int:
        """Submitted requests whose end `step` has not told yet."""
        return len(self._submitted)

    def stream(self, prompt: Prompt, params: SamplingParams, *, speculate: bool = True) -> Iterator[Completion]:
        """
        Yield the completion so far after each round; the last one has its final text and finish reason.

        Raises
        ------
        PromptError, InputError
            The prompt or a parameter cannot be used (``n`` must be 1).
        """
        _require_one(params, "stream")
        ((prompt, params),) = pair_with_params([prompt], params, self.vocab_size)
        row = self._row(prompt, params, 0, speculate)
        self._decoder.submit(row)
        seen = 0
        try:
            while True:
                # another call may have run this request's rounds, or ended it
                if row.finish_reason is None and row.num_generated == seen:
                    self._decoder.step()
                if row.finish_reason is not None or row.num_generated > seen:
                    seen = row.num_generated
                    ended = row.finish_reason is not None
                    yield self._completion(row)
                    if ended:
                        return
        finally:
            self._decoder.cancel(row.request_id)

    def _row(self, prompt: Prompt, params: SamplingParams, sample: int, speculate: bool) -> Row:
        token_ids = self.encode(prompt)
        self._next_id += 1
        stop = stop_rule(self.tokenizer, params, eos=self._eos, room=self.max_len - len(token_ids))
        constraint = self._constraints.of(params, len(token_ids), stop.end_token_ids)
        return Row(
            request_id=self._next_id,
            token_ids=token_ids,
            num_prompt=len(token_ids),
            params=params,
            stop=stop,
            key=(params.seed, sample),
            # last: nothing that a user's processor does can let through what may not follow
            processors=(*params.logits_processors, *constraint),
            speculate=speculate and self.proposer is not None,
            submitted_ms=self.now_ms(),
        )

    def _completion(self, row: Row) -> Completion:
        speculates = row.speculate or any(item.num_proposed for item in row.rounds)
        return Completion(
            token_ids=tuple(row.generated),
            text=row.stop.text(row.generated, ended=row.finish_reason is not None),
            finish_reason=row.finish_reason,
            logprobs=None if row.params.logprobs is None else tuple(row.logprobs),
            rounds=tuple(row.rounds),
            speculation=summarise_rounds(row.rounds, self.num_speculative_tokens) if speculates else None,
            chunks=tuple(row.chunks),
            num_prompt_tokens=row.num_prompt,
            error=row.error,
            top_logprobs=None if row.params.logprobs is None else tuple(row.top_logprobs),
        )


def _require_one(params: SamplingParams, call: str) -> None:
    require_params(params)
    if params.n != 1:
        raise InputError(f"n = {params.n}: {call} takes one completion at a time; {call} {params.n} requests")
