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

import torch

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, Proposer, point_masses
from draftproof.decoding.target import Target
from draftproof.records import Chunk, NextToken, Round
from draftproof.sampling.accept import AcceptRule, rejection
from draftproof.sampling.law import token_law
from draftproof.sampling.noise import KeyedNoise, Noise

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

    def now_ms(self) -> float:
        """Monotonic time in ms, after the device has caught up."""
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return self._clock() * 1e3

    def submit(self, row: Row) -> None:
        """Queue a request; it joins at the next round in which a slot is free."""
        self._queue.append(row)

    def cancel(self, request_id: int) -> None:
        """Drop a request wherever it is; its slot is free at once."""
        self._queue = deque(row for row in self._queue if row.request_id != request_id)
        for row in [row for row in self.rows if row.request_id == request_id]:
            self._leave(row)

    def step(self) -> list[Row]:
        """Run one round for everything that runs, and return the requests that got tokens (or an error)."""
        try:
            self._admit()
            rows = self.rows
            if not rows:
                return []
            start = self.now_ms()
            proposal = self._propose(rows)
            proposed = self.now_ms()
            drafts = [
                tokens[:count]
                for tokens, count in zip(proposal.token_ids.tolist(), proposal.num_tokens.tolist(), strict=True)
            ]
            logits = self.target.score(
                {_slot(row): [row.token_ids[-1], *draft] for row, draft in zip(rows, drafts, strict=True)}
            )
            finite = logits.isfinite().all(-1).tolist()
            law = token_law(logits[:, : proposal.token_ids.shape[1] + 1], [row.params for row in rows])
            decision = self.accept(
                law, proposal, [row.key for row in rows], [row.num_generated for row in rows], self.noise
            )
            accepted, next_token_ids = decision.num_accepted.tolist(), decision.next_token_ids.tolist()
            scored = self.now_ms()
        except BaseException:
            # nobody's tokens were committed: free the slots, so that the decoder is usable for the next requests
            for row in list(self.rows):
                self._leave(row)
            raise
        for index, row in enumerate(rows):
            draft, count = drafts[index], accepted[index]
            self.take_back(self.target, _slot(row), len(draft) - count)
            if not all(finite[index][: len(draft) + 1]):
                self.target.scrub_tail(_slot(row))
            if not all(finite[index][: count + 1]):
                self._not_finite(row, draft, count)
                continue
            next_token: NextToken = "correction" if count < len(draft) else "bonus" if draft else "target"
            emitted = row.commit([*draft[:count], next_token_ids[index]])
            row.rounds.append(
                Round(
                    num_proposed=len(draft),
                    num_accepted=count,
                    next_token=next_token if emitted == count + 1 else None,
                    emitted=emitted,
                    propose_ms=proposed - start,
                    score_ms=scored - proposed,
                )
            )
            row.chunks.append(Chunk(num_tokens=emitted, at_ms=scored - row.submitted_ms))
        for row in [row for row in rows if row.finish_reason is not None]:
            self._leave(row)
        return rows

    def run(self) -> None:
        """Run rounds until no request is left."""
        while self._queue or self.rows:
            self.step()

    def _propose(self, rows: Sequence[Row]) -> Proposal:
        limits = [self._limit(row) for row in rows]
        if self.proposer is None or not any(limits):
            return point_masses([[] for _ in rows], self.target.device)
        return self.proposer.propose(rows, limits)

    def _limit(self, row: Row) -> int:
        """
        Return how many tokens may be drafted: never past the request's end, nor past the edge of the key view.

        A block inside one key view reads the same columns as the target-only passes it stands for.
        """
        if not row.speculate:
            return 0
        length = self.target.row_len[_slot(row)] + 1
        room = min(self.target.key_len(length) - length, row.stop.max_tokens - row.num_generated - 1)
        return max(0, min(self.num_speculative_tokens, room))

    def _not_finite(self, row: Row, draft: list[int], count: int) -> None:
        """
        End a request whose logits are not finite, unless a drafted token may be the cause.

        A key that is not finite reaches every position of its own pass, through the mask. So the block is taken back
        whole and the request goes on target-only.
        """
        if draft:
            self.target.roll_back(_slot(row), count + 1)
            self.target.scrub_tail(_slot(row))
            row.speculate = False
        else:
            row.finish_reason, row.error = "error", "the target's logits are not finite"

    def _admit(self) -> None:
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
                self.target.fork(_slot(twin), row.slot, len(prefix))

    def _leave(self, row: Row) -> None:
        slot = _slot(row)
        self.target.release(slot)
        if self.proposer is not None:
            self.proposer.release(slot)
        self._free.append(slot)
        row.slot = None
        self.rows = [other for other in self.rows if other is not row]


def _slot(row: Row) -> int:
    assert row.slot is not None
    return row.slot
