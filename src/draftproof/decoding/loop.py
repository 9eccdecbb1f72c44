"""
The round. Read this first.

Speculative decoding repeats four steps until every request has ended::

    propose   a cheap proposer guesses up to K next tokens                      t+1 .. t+K
    score     the target reads the last token and the guesses in ONE pass       law after t, t+1, .. t+K
    decide    keep the leading guesses that the accept rule allows, and
              draw one token more from the target (or from what rejection left)
    commit    append them, cut at the request's end, and take back from the
              cache what was not kept

One pass yields between 1 and K+1 tokens, each with exactly the target's law. A target-only step is the same round with
nothing proposed. Token ids in, token ids out: text, models' names and verdicts are other files' business.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from draftproof.decoding.batch import Row, report_logprobs, slot_of
from draftproof.decoding.lap import mark
from draftproof.decoding.proposers.base import Proposal, Proposer, point_masses
from draftproof.decoding.proposers.check import ask
from draftproof.decoding.target import Target
from draftproof.errors import InputError
from draftproof.records import Chunk, NextToken, Round
from draftproof.sampling.accept import AcceptRule, rejection
from draftproof.sampling.law import token_law
from draftproof.sampling.noise import KeyedNoise, Noise

MAX_DRAFT_FAILURES = 16
BROKEN_BLOCK = "the target's logits were not finite with this draft; the request goes on target-only"
RollBack = Callable[[Target, int, int], None]


def roll_back(target: Target, slot: int, num_tokens: int) -> None:
    """Take ``num_tokens`` scored tokens of a slot back."""
    target.roll_back(slot, num_tokens)


class Decoder:
    """
    Runs requests in rounds; they join and leave between rounds.

    Parameters
    ----------
    target : Target
    proposer : Proposer or None
        None decodes target-only.
    num_speculative_tokens : int
        K.
    accept, noise, take_back
        The accept rule, the random numbers and the roll-back; each can be replaced alone, which is how the verifier
        plants one defect at a time.
    clock : callable
        Seconds, monotonic.

    Attributes
    ----------
    draft_stopped : str or None
        Why nothing is drafted any more: the proposer failed too often.
    """

    def __init__(
        self,
        target: Target,
        proposer: Proposer | None,
        num_speculative_tokens: int,
        *,
        accept: AcceptRule = rejection,
        noise: Noise | None = None,
        take_back: RollBack = roll_back,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target, self.proposer, self.num_speculative_tokens = target, proposer, num_speculative_tokens
        self.accept, self.noise, self.take_back = accept, noise or KeyedNoise(), take_back
        self._clock = clock
        self._queue: deque[Row] = deque()
        self._free = list(range(target.num_slots))[::-1]
        self.rows: list[Row] = []
        self._in_round = False
        self._dropped: list[int] = []  # cancelled while a round ran
        self._draft_failures = 0
        self._draft_errors: dict[int, str] = {}  # of this round, by request
        self.draft_stopped: str | None = None

    def submit(self, row: Row) -> None:
        """Queue a request; it joins at the next round in which a slot is free."""
        self._queue.append(row)

    def cancel(self, request_id: int) -> None:
        """Drop a request wherever it is; its slot is free at once, or at the end of the round that asks for it."""
        self._queue = deque(row for row in self._queue if row.request_id != request_id)
        if self._in_round:
            self._dropped.append(request_id)
            return
        for row in [row for row in self.rows if row.request_id == request_id]:
            self._leave(row)

    def run(self) -> None:
        """Run rounds until no request is left."""
        while self._queue or self.rows:
            self.step()

    def step(self) -> list[Row]:
        """
        Run one round for everything that runs, and return the requests that got tokens (or an error).

        Raises
        ------
        InputError
            A round is running, and another thread, or something in it such as a request's processor, asked for another one.
        """
        if self._in_round:
            raise InputError(
                "a round is running: an engine serves one thread at a time, and what runs in its round cannot ask it for another; "
                "wait until it is over, or use another engine"
            )
        try:
            self._in_round = True
            return self._round()
        except BaseException as error:
            # a row may stand between its cache and its tokens: free the slots, so that the next requests find them sound
            for row in list(self.rows):
                if row.finish_reason is None:
                    row.finish_reason, row.error = "error", f"the round failed: {type(error).__name__}: {error}"
                self._leave(row)
            raise
        finally:
            self._in_round = False
            while self._dropped:
                self.cancel(self._dropped.pop())

    def now_ms(self) -> float:
        """Monotonic time in ms, after the device has caught up."""
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return self._clock() * 1e3

    def _round(self) -> list[Row]:
        """Admit, propose, score, decide, commit; then write down what happened, and let those leave that have ended."""
        began, joining = self._clock() * 1e3, bool(self._queue and self._free)
        self._admit()
        rows = self.rows
        if not rows:
            return []
        start = self.now_ms()
        proposal, drafts = self._propose(rows)
        proposed = self.now_ms()
        logits = self.target.score(
            {slot_of(row): [row.token_ids[-1], *draft] for row, draft in zip(rows, drafts, strict=True)}
        )
        since_pass = mark(self.target.device, self._clock)
        outcomes = self._decide(rows, drafts, proposal, logits)
        # what was decided is on the host, so the device has caught up
        sample_ms, scored = since_pass(), self.now_ms()
        emitted = [self._commit(*of_row) for of_row in zip(rows, drafts, outcomes, strict=True)]
        timed_round = partial(
            Round,
            propose_ms=proposed - start,
            score_ms=scored - proposed,
            sample_ms=sample_ms,
            prefill_ms=start - began if joining else 0.0,
            num_rows=len(rows),
        )
        self._record(rows, drafts, outcomes, emitted, timed_round, scored)
        for row in [row for row in rows if row.finish_reason is not None]:
            self._leave(row)
        return rows

    def _propose(self, rows: Sequence[Row]) -> tuple[Proposal, list[list[int]]]:
        """Return the proposal, without what is wrong in it, and its tokens as lists."""
        limits = [self._limit(row) for row in rows]
        self._draft_errors = {}
        if stopped := self.draft_stopped:
            self._draft_errors = {row.request_id: stopped for row, limit in zip(rows, limits, strict=True) if limit}
        if self.proposer is None or stopped or not any(limits):
            return point_masses([[] for _ in rows], self.target.device), [[] for _ in rows]
        checked = ask(self.proposer, rows, limits, self.target.vocab_size, self.target.device)
        for index, reason in checked.problems.items():
            self._draft_errors[rows[index].request_id] = reason
            self._draft_failed(reason)
        return checked.proposal, checked.drafts

    def _decide(
        self, rows: Sequence[Row], drafts: Sequence[list[int]], proposal: Proposal, logits: Tensor
    ) -> list["_Outcome"]:
        """Apply the accept rule to the target's law at every position, and read what it says, once for all rows."""
        prefixes = [row.prefix(draft) for row, draft in zip(rows, drafts, strict=True)]
        law = token_law(logits[:, : proposal.token_ids.shape[1] + 1], [row.params for row in rows], prefixes)
        keys, positions = [row.key for row in rows], [row.num_generated for row in rows]
        decision = self.accept(law, proposal, keys, positions, self.noise)
        accepted, next_token_ids = decision.num_accepted.tolist(), decision.next_token_ids.tolist()
        finite, has_law = logits.isfinite().all(-1).tolist(), law.any(-1).tolist()
        return [
            _Outcome(
                num_accepted=accepted[index],
                next_token_id=next_token_ids[index],
                has_next=has_law[index][accepted[index]],
                all_finite=all(finite[index][: len(drafts[index]) + 1]),
                read_finite=all(finite[index][: accepted[index] + 1]),
                logits=logits[index],
                law=law[index],
                problem=prefixes[index].problem,
            )
            for index in range(len(rows))
        ]

    def _commit(self, row: Row, draft: list[int], outcome: "_Outcome") -> int | None:
        """Append what was decided and take the rest back; return how many tokens stayed, None if the round gave none."""
        count = outcome.num_accepted
        self.take_back(self.target, slot_of(row), len(draft) - count)
        if not outcome.all_finite:
            self.target.scrub_tail(slot_of(row))
        if not outcome.read_finite:
            return self._not_finite(row, draft, count)
        tokens = [*draft[:count], outcome.next_token_id]
        if not outcome.has_next:
            # nothing may follow: what was accepted stays, and the next round finds the dead end at its start
            tokens.pop()
            self.target.roll_back(slot_of(row), 1)
            if not tokens:
                row.finish_reason, row.error = "error", outcome.problem
                return None
        return row.commit(tokens)

    def _record(
        self,
        rows: Sequence[Row],
        drafts: Sequence[list[int]],
        outcomes: Sequence["_Outcome"],
        emitted: Sequence[int | None],
        timed_round: Callable[..., Round],
        now_ms: float,
    ) -> None:
        """Write down for each row what the round did, and when its tokens became visible."""
        reports: list[tuple[Row, Tensor, Tensor]] = []
        for row, draft, outcome, count in zip(rows, drafts, outcomes, emitted, strict=True):
            if count is None:
                continue
            row.rounds.append(
                timed_round(
                    num_proposed=len(draft),
                    num_accepted=outcome.num_accepted if count else 0,
                    next_token=outcome.source(len(draft)) if count == outcome.num_accepted + 1 else None,
                    emitted=count,
                    draft_error=self._draft_errors.get(row.request_id),
                )
            )
            if not count:
                continue
            row.chunks.append(Chunk(num_tokens=count, at_ms=now_ms - row.submitted_ms))
            if row.params.logprobs is not None:
                reports.append((row, outcome.logits[:count], outcome.law[:count]))
        report_logprobs(reports)

    def _limit(self, row: Row) -> int:
        """
        Return how many tokens may be drafted: never past the request's end, nor past the edge of the key view.

        A block inside one key view reads the same columns as the target-only passes it stands for.
        """
        if not row.speculate:
            return 0
        length = self.target.row_len[slot_of(row)] + 1
        room = min(self.target.key_len(length) - length, row.stop.max_tokens - row.num_generated - 1)
        return max(0, min(self.num_speculative_tokens, room))

    def _not_finite(self, row: Row, draft: list[int], count: int) -> int | None:
        """
        End a request whose logits are not finite, unless a drafted token may be the cause.

        A key that is not finite reaches every position of its own pass, through the mask. So the block is taken back
        whole and the request goes on target-only.
        """
        if not draft:
            row.finish_reason, row.error = "error", "the target's logits are not finite"
            return None
        self.target.roll_back(slot_of(row), count + 1)
        self.target.scrub_tail(slot_of(row))
        row.speculate = False
        self._draft_errors[row.request_id] = BROKEN_BLOCK
        return 0

    def _draft_failed(self, reason: str) -> None:
        self._draft_failures += 1
        if self._draft_failures >= MAX_DRAFT_FAILURES:
            self.draft_stopped = f"drafting stopped after {MAX_DRAFT_FAILURES} failures; the last: {reason}"

    def _admit(self) -> None:
        """Give waiting requests the free slots, and read their prompts."""
        while self._queue and self._free:
            row = self._queue.popleft()
            row.slot = self._free.pop()
            # one token short: the last prompt token enters through an ordinary round
            prefix = row.token_ids[:-1]
            # the very same prompt: keys that decoding passes wrote may differ from prefilled ones in their last bits
            twin = next((other for other in self.rows if other.token_ids[: other.num_prompt] == row.token_ids), None)
            self.rows = [*self.rows, row]
            if twin is None:
                self.target.prefill(row.slot, prefix)
            else:
                self.target.fork(slot_of(twin), row.slot, len(prefix))

    def _leave(self, row: Row) -> None:
        """Free a request's slot."""
        slot = slot_of(row)
        self.target.release(slot)
        self._free.append(slot)
        row.slot = None
        self.rows = [other for other in self.rows if other is not row]
        if self.proposer is not None:
            try:
                self.proposer.release(slot)
            except Exception as error:  # a proposer is anybody's code, and a stale guess is only a guess
                self._draft_failed(f"release: {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """
    What a round decided for one row, which was scored at T positions: its last token and its draft, then padding.

    Attributes
    ----------
    num_accepted : int
        Leading drafted tokens that stay.
    next_token_id : int
        The token that follows them.
    has_next : bool
        Whether any token may: a request can forbid them all.
    all_finite, read_finite : bool
        Whether the logits are finite, at all positions of the block and at those that the decision rests on.
    logits, law : Tensor, shape (T, V)
        What the target said, and what is sampled under the request's parameters.
    problem : str or None
        Why no token may follow, where none may.
    """

    num_accepted: int
    next_token_id: int
    has_next: bool
    all_finite: bool
    read_finite: bool
    logits: Tensor
    law: Tensor
    problem: str | None

    def source(self, num_proposed: int) -> NextToken:
        """Say where the next token came from."""
        if self.num_accepted < num_proposed:
            return "correction"
        return "bonus" if num_proposed else "target"
