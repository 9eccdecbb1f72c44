"""Run the toy plan: the engine's decoder over tabulated laws, and for each token what the check may want to know of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from draftproof.decoding.batch import Row
from draftproof.decoding.loop import Decoder
from draftproof.decoding.proposers.base import ProposerContext
from draftproof.decoding.stopping import StopRule
from draftproof.request import SamplingParams
from draftproof.verify.controls.control import Parts
from draftproof.verify.draft_laws import DraftLaws
from draftproof.verify.toy.laws import Array, Nearness, draft_logits, exact_law, kept, target_logits
from draftproof.verify.toy.models import TabulatedDraft, TabulatedTarget

Outcome = Literal["start", "rejected", "accepted", "plain"]
SLOTS = 512
PROMPTS = ((1, 2), (3, 4, 5), (0, 7, 6, 2), (5, 1, 3, 6, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyPlan:
    """
    One configuration.

    Attributes
    ----------
    vocab_size : {8, 16, 64}
    draft : {"near", "mid", "far"}
        Acceptance of about 0.92, 0.68 and 0.3.
    num_speculative_tokens : int, 1 to 15
    sequences : int
    seed : int
        Of every random number of the run; the laws do not depend on it.
    """

    vocab_size: int = 16
    draft: Nearness = "mid"
    num_speculative_tokens: int = 4
    sequences: int = 4000
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of a sequence: enough for a whole draft and the round after it."""
        return max(8, 2 * (self.num_speculative_tokens + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyLog:
    """
    One entry per generated token, sequence by sequence.

    Attributes
    ----------
    token_ids, sequences, positions, contexts : ndarray, shape (N,), int64
        ``positions`` count from 0 in each sequence. ``contexts`` names the last two tokens, which are all that the law depends on.
    laws : ndarray, shape (N, V)
        The target's exact law after the token's own prefix, from the table.
    draft_laws : ndarray, shape (N, V)
        What the draft reported at the token's place; NaN where nothing was drafted.
    offsets, num_proposed : ndarray, shape (N,), int64
        The token's place in its round, from 0, and how many tokens the round proposed.
    outcomes : list of str
        How the round before ended: "start" (there was none), "rejected", "accepted" (the whole draft) or "plain" (none drafted).
    num_speculative_tokens : int
        K.
    """

    token_ids: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    contexts: npt.NDArray[np.int64]
    laws: Array
    draft_laws: Array
    offsets: npt.NDArray[np.int64]
    num_proposed: npt.NDArray[np.int64]
    outcomes: list[Outcome]
    num_speculative_tokens: int


def run_toy(plan: ToyPlan, plant: Callable[[Parts], Parts] = lambda parts: parts) -> ToyLog:
    """
    Generate the plan's sequences, `SLOTS` at a time, from prompts of different lengths.

    Parameters
    ----------
    plan : ToyPlan
    plant : callable
        Replaces parts, such as `Control.plant`.
    """
    size, k = plan.vocab_size, plan.num_speculative_tokens
    parts = plant(Parts(proposer=TabulatedDraft(draft_logits(size, plan.draft))))
    # a decoder whose roll-back is broken may keep every column of every round
    max_len = max(map(len, PROMPTS)) + plan.tokens * (k + 2)
    target = TabulatedTarget(target_logits(size), num_slots=min(SLOTS, plan.sequences), max_len=max_len)
    if parts.proposer is not None:
        parts.proposer.bind(
            ProposerContext(
                num_slots=target.num_slots,
                max_len=max_len,
                num_speculative_tokens=k,
                vocab_size=size,
                device=target.device,
                noise=parts.noise,
                target=target,
            )
        )
    drafts = DraftLaws(parts.accept)
    decoder = Decoder(
        target, parts.proposer, k, accept=drafts, noise=parts.noise, take_back=parts.take_back, clock=lambda: 0.0
    )
    params = SamplingParams(max_tokens=plan.tokens, top_k=kept(size))
    rows = [_row(plan, params, index) for index in range(plan.sequences)]
    for row in rows:
        decoder.submit(row)
    decoder.run()
    return _log(plan, rows, drafts)


def _row(plan: ToyPlan, params: SamplingParams, index: int) -> Row:
    prompt = PROMPTS[index % len(PROMPTS)]
    return Row(
        request_id=index,
        token_ids=list(prompt),
        num_prompt=len(prompt),
        params=params,
        stop=StopRule(max_tokens=plan.tokens, decode=lambda token_ids: ""),
        key=(plan.seed, index),
        speculate=True,
        submitted_ms=0.0,
    )


def _log(plan: ToyPlan, rows: Sequence[Row], drafts: DraftLaws) -> ToyLog:
    size, tokens = plan.vocab_size, plan.tokens
    generated = np.array([row.generated for row in rows])
    before = np.array([row.token_ids[row.num_prompt - 2 : -2] for row in rows])
    last = np.array([row.token_ids[row.num_prompt - 1 : -1] for row in rows])
    contexts = (before * size + last).ravel()
    offsets, proposed, outcomes = list[int](), list[int](), list[Outcome]()
    for row in rows:
        outcome: Outcome = "start"
        for item in row.rounds:
            offsets.extend(range(item.emitted))
            proposed.extend([item.num_proposed] * item.emitted)
            outcomes.extend([outcome] * item.emitted)
            whole: Outcome = "accepted" if item.num_proposed else "plain"
            outcome = "rejected" if item.num_accepted < item.num_proposed else whole
    drafted = np.array(offsets).reshape(len(rows), tokens) < np.array(proposed).reshape(len(rows), tokens)
    draft_laws = [drafts.of(row.key, drafted[index].tolist(), size) for index, row in enumerate(rows)]
    return ToyLog(
        token_ids=generated.ravel(),
        sequences=np.repeat(np.arange(len(rows)), tokens),
        positions=np.tile(np.arange(tokens), len(rows)),
        contexts=contexts,
        laws=exact_law(target_logits(size), kept(size)).reshape(-1, size)[contexts],
        draft_laws=np.concatenate(draft_laws),
        offsets=np.array(offsets),
        num_proposed=np.array(proposed),
        outcomes=outcomes,
        num_speculative_tokens=plan.num_speculative_tokens,
    )
