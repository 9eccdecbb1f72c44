"""
What every proposer owes the round, as checks that a proposer of your own can be run through.

::

    from draftproof.testing import check_proposer

    def test_my_proposer() -> None:
        check_proposer(lambda: MyProposer(table))

Needs no test runner and no model: a tiny random one stands in for the target.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from draftproof.decoding.batch import Row, slot_of
from draftproof.decoding.model import CachedModel
from draftproof.decoding.stopping import StopRule
from draftproof.errors import ContractError, InputError
from draftproof.proposers import Proposal, Proposer, ProposerContext
from draftproof.request import SamplingParams
from draftproof.sampling.draw import Drawing, draw_alone, draw_shared
from draftproof.sampling.noise import KeyedNoise

__all__ = ["CHECKS", "check_proposer"]

K, SLOTS, MAX_LEN = 4, 4, 96
SEEDS = 400
MASS_TOLERANCE = 1e-9
# one law computed twice, in passes of different shapes of a model in float32
LAW_TOLERANCE = 1e-5
GREEDY = SamplingParams(max_tokens=MAX_LEN, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=MAX_LEN, temperature=1.0, top_k=6, top_p=0.95)
# few different tokens, so that what looks for repetition finds some
PROMPTS = (
    [2, 9, 2, 4, 6, 2, 9, 2, 4],
    [6, 4],
    [9, 9, 4, 2, 6, 6, 4, 9, 2, 2, 4, 6, 9, 4, 2, 6, 9, 9, 4],
    [8, 2, 8, 2, 8],
)


def check_proposer(
    make_proposer: Callable[[], Proposer],
    only: str | None = None,
    *,
    vocab_size: int = 64,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """
    Run a proposer through what the round relies on.

    Parameters
    ----------
    make_proposer : callable
        Returns a new proposer that is bound to nothing; called several times.
    only : str or None
        One of `CHECKS`; None runs them all.
    vocab_size : int
        Of the target that stands in.
    prompts : sequence of four sequences of token ids
        Texts for which the proposer has something to say, at most 40 tokens each; other tokens than theirs do not occur.
    tokenizer : PreTrainedTokenizerBase or None
        The target's, for a proposer that reads text.

    Raises
    ------
    ContractError
        The proposer breaks a promise, or proposed nothing that could be checked; the message says which and how.
    InputError
        The prompts or the name do not fit.

    Notes
    -----
    Seeds are fixed, so a run is repeatable. An honest proposer is accused of other frequencies with probability below 1e-4; a first
    token whose share is off by .25 is missed with probability below 1e-3.
    """
    if only is not None and only not in CHECKS:
        raise InputError(f"check '{only}' is not known; allowed: {', '.join(CHECKS)}")
    texts = [list(prompt) for prompt in prompts]
    fits = len(texts) == SLOTS and all(0 < len(text) <= 40 for text in texts)
    if not fits or not all(0 <= token_id < vocab_size for text in texts for token_id in text):
        raise InputError(f"prompts must be {SLOTS} lists of 1 to 40 token ids below vocab_size = {vocab_size}")
    case = _Case(make_proposer, vocab_size, texts, tokenizer)
    for name in CHECKS if only is None else [only]:
        CHECKS[name](case)


@dataclass
class _Case:
    """A proposer under test and the texts it is tested on."""

    make_proposer: Callable[[], Proposer]
    vocab_size: int
    prompts: list[list[int]]
    tokenizer: PreTrainedTokenizerBase | None
    _kept: dict[Drawing, "_Seat"] = field(default_factory=dict)

    def new_seat(self, draw: Drawing = draw_alone) -> "_Seat":
        return _Seat(self, draw)

    def used_seat(self, draw: Drawing = draw_alone) -> "_Seat":
        """A seat that earlier checks have used, released; binding a model takes time."""
        if draw not in self._kept:
            self._kept[draw] = self.new_seat(draw)
        for slot in range(SLOTS):
            self._kept[draw].release(slot)
        return self._kept[draw]

    def rows(self, params: SamplingParams) -> list[Row]:
        return [self.row(slot, prompt, params, seed=slot + 5) for slot, prompt in enumerate(self.prompts)]

    def row(self, slot: int, prompt: Sequence[int], params: SamplingParams, seed: int) -> Row:
        return Row(
            request_id=slot,
            token_ids=list(prompt),
            num_prompt=len(prompt),
            params=params,
            stop=StopRule(max_tokens=MAX_LEN, decode=str),
            key=(seed, 0),
            speculate=True,
            submitted_ms=0.0,
            slot=slot,
        )

    def any_token(self, rng: random.Random) -> int:
        return rng.choice(rng.choice(self.prompts))


class _Seat:
    """A bound proposer, beside a target that holds every token of a row but the last, as in a round."""

    def __init__(self, case: _Case, draw: Drawing) -> None:
        self._case = case
        self._target = _tiny_target(case.vocab_size)
        self._held: dict[int, list[int]] = {}
        self._proposer = case.make_proposer()
        if not isinstance(self._proposer, Proposer):
            raise ContractError(f"{type(self._proposer).__name__} is no proposer: it needs bind, propose and release")
        self._proposer.bind(
            ProposerContext(
                num_slots=SLOTS,
                max_len=MAX_LEN,
                num_speculative_tokens=K,
                vocab_size=case.vocab_size,
                device=torch.device("cpu"),
                noise=KeyedNoise(),
                draw=draw,
                target=self._target,
                tokenizer=case.tokenizer,
            )
        )

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """Ask, and check what can be seen in a single answer."""
        target = self._target
        for row in rows:
            slot, wanted = slot_of(row), row.token_ids[:-1]
            if self._held.get(slot) != wanted:
                target.release(slot)
                target.prefill(slot, wanted)
                self._held[slot] = wanted
        lengths, texts, keys = list(target.row_len), [list(row.token_ids) for row in rows], [row.key for row in rows]
        proposal = self._proposer.propose(rows, limits)
        if [row.token_ids for row in rows] != texts or [row.key for row in rows] != keys:
            raise ContractError("the proposer changed a row; rows belong to the round, copy what you want to change")
        if target.row_len != lengths:
            raise ContractError("the proposer left tokens in the target's slots; roll back what it scored")
        self._check_answer(proposal, limits)
        return proposal

    def release(self, slot: int) -> None:
        self._target.release(slot)
        self._held.pop(slot, None)
        self._proposer.release(slot)

    def _check_answer(self, proposal: Proposal, limits: Sequence[int]) -> None:
        token_ids, num_tokens, probs = proposal.token_ids, proposal.num_tokens, proposal.probs
        size, batch = self._case.vocab_size, len(limits)
        if token_ids.dim() != 2 or token_ids.shape[0] != batch or num_tokens.shape != (batch,):
            raise ContractError(
                f"token_ids of shape {tuple(token_ids.shape)} and num_tokens of shape {tuple(num_tokens.shape)} for {batch} rows; "
                f"allowed: ({batch}, width) and ({batch},)"
            )
        if not token_ids.dtype == num_tokens.dtype == torch.int64:
            raise ContractError(
                f"token_ids of {token_ids.dtype}, num_tokens of {num_tokens.dtype}; allowed: torch.int64"
            )
        width = token_ids.shape[1]
        for count, limit in zip(num_tokens.tolist(), limits, strict=True):
            if not 0 <= count <= min(limit, width):
                raise ContractError(f"{count} tokens in a draft, {limit} were asked for and {width} given")
        if probs is not None and (probs.shape != (batch, width, size) or probs.dtype != torch.float64):
            raise ContractError(
                f"probs of shape {tuple(probs.shape)} and {probs.dtype}; allowed: {(batch, width, size)} in torch.float64"
            )
        for index in range(batch):
            draft, law = _of_row(proposal, index)
            if not all(0 <= token_id < size for token_id in draft):
                raise ContractError(f"token ids {draft} proposed; allowed: 0 to {size - 1}, the target's vocabulary")
            if law is None:
                continue
            if not (((law.sum(-1) - 1).abs() < MASS_TOLERANCE).all() and (law >= 0).all()):
                raise ContractError("a row of probs is no distribution: it must be non-negative and sum to 1")
            if not all(law[place, token_id] > 0 for place, token_id in enumerate(draft)):
                raise ContractError("probs give a proposed token no probability; they must be what it was drawn from")


def _check_answers(case: _Case) -> None:
    """Twelve rounds of random limits and acceptances."""
    proposed = 0
    for params in (GREEDY, SAMPLED):
        rng, seat, rows = random.Random(1), case.used_seat(), case.rows(params)
        for _ in range(12):
            limits = [rng.choice([0, 1, 2, K]) for _ in rows]
            limits[rng.randrange(len(rows))] = K
            proposal = seat.propose(rows, limits)
            proposed += int(proposal.num_tokens.sum())
            _grow(case, rows, proposal, rng)
    if not proposed:
        raise ContractError("nothing was proposed, so nothing was checked; give prompts=... that the proposer knows")


def _check_repeatability(case: _Case) -> None:
    """Two proposers with the same noise say the same."""
    for params in (GREEDY, SAMPLED):
        first, second = (seat.propose(case.rows(params), [K] * SLOTS) for seat in (case.new_seat(), case.used_seat()))
        for index in range(SLOTS):
            if not _same(_of_row(first, index), _of_row(second, index), case.vocab_size, 0.0):
                raise ContractError(
                    "two proposers answered differently to the same rows; draw with context.draw and context.noise only"
                )


def _check_independence(case: _Case) -> None:
    """A row gets the same draft alone, among others, and in another slot."""
    message = "a row's draft depends on its slot or on the rows beside it"
    for params in (GREEDY, SAMPLED):
        together = case.used_seat().propose(case.rows(params), [K, 3, K, 2])
        for index, limit in ((1, 3), (2, K)):
            alone = case.rows(params)[index]
            alone.slot = SLOTS - 1 - index
            answer = case.used_seat().propose([alone], [limit])
            _require_same(case, _of_row(answer, 0), _of_row(together, index), message)
        turned = case.rows(params)[::-1]
        for row in turned:
            row.slot = (slot_of(row) + 3) % SLOTS
        answer = case.used_seat().propose(turned, [2, K, 3, K])
        for index in range(SLOTS):
            _require_same(case, _of_row(answer, SLOTS - 1 - index), _of_row(together, index), message)


def _check_rejected(case: _Case) -> None:
    """One that has followed the rows for ten rounds and one that sees them for the first time say the same."""
    message = "a draft depends on tokens that were proposed and rejected; only the rows' token_ids count"
    for params in (GREEDY, SAMPLED):
        rng, seat, rows = random.Random(2), case.new_seat(), case.rows(params)
        for time in range(10):
            limits = [rng.choice([0, K]) for _ in rows]
            _grow(case, rows, seat.propose(rows, limits) if any(limits) else None, rng)
            if time not in (3, 9):
                continue
            followed, fresh = seat.propose(rows, [K] * SLOTS), case.used_seat().propose(rows, [K] * SLOTS)
            for index in range(SLOTS):
                _require_same(case, _of_row(followed, index), _of_row(fresh, index), message)


def _check_release(case: _Case) -> None:
    """The next request in the slot is shorter, begins like the last one, and has another seed."""
    used, fresh = case.new_seat(), case.new_seat()
    for prompt in case.prompts:
        longer = [*prompt, *prompt]
        used.propose([case.row(2, longer, SAMPLED, seed=5)], [K])
        used.release(2)
        used.release(2)
        answers = [seat.propose([case.row(2, prompt, SAMPLED, seed=9)], [K]) for seat in (used, fresh)]
        message = "a released slot was remembered: its next request got another draft than in a new proposer"
        _require_same(case, _of_row(answers[0], 0), _of_row(answers[1], 0), message)
        used.release(2)
        fresh.release(2)


def _check_law(case: _Case) -> None:
    """Over many seeds tokens are as frequent as the reported laws say, and no token is withheld because of what it is."""
    _check_law_of(case, draw_alone, case.prompts[1])
    _check_law_of(case, draw_alone, case.prompts[-1])
    _check_law_of(case, draw_shared, case.prompts[1])


def _check_law_of(case: _Case, draw: Drawing, prompt: list[int]) -> None:
    seat = case.used_seat(draw)
    params = SamplingParams(max_tokens=MAX_LEN, temperature=1.0, top_k=4)
    rows = [case.row(slot, prompt, params, seed=0) for slot in range(SLOTS)]
    drafts: list[tuple[list[int], Tensor | None]] = []
    for start in range(0, SEEDS, SLOTS):
        for row in rows:
            row.key = (start + slot_of(row), 0)
        proposal = seat.propose(rows, [2] * SLOTS)
        drafts += [_of_row(proposal, index) for index in range(SLOTS)]
    goes_on: dict[tuple[int, ...], bool] = {}
    for draft, _ in drafts:
        for place in range(min(2, len(draft) + 1)):
            more = len(draft) > place
            if goes_on.setdefault(tuple(draft[:place]), more) != more:
                raise ContractError(
                    "after the same tokens one draft goes on and another ends: whether a token is proposed may depend on the past and "
                    "on the draft's distribution, never on the token that was drawn"
                )
    if any(law is None for _, law in drafts):
        if any(draft != drafts[0][0] for draft, _ in drafts):
            raise ContractError("drafts differ between seeds and probs is None; report what the tokens were drawn from")
        return
    honest = "tokens are not as frequent as probs says; report the very distribution that each token was drawn from"
    counts, surplus, variance = torch.zeros(case.vocab_size), 0.0, 0.0
    first: Tensor | None = None
    for draft, law in drafts:
        assert law is not None
        for place, token_id in enumerate(draft):
            # how probable a token is that has this law
            mean = float(law[place].square().sum())
            surplus += float(law[place, token_id]) - mean
            variance += float(law[place].pow(3).sum()) - mean**2
        if draft:
            counts[draft[0]] += 1
            first = law[0] if first is None else first
            if not _near(law[0], first, LAW_TOLERANCE):
                raise ContractError("probs of the first token depend on the seed, not on the row alone")
    if first is None:
        return
    kept = first > 0
    if int(kept.sum()) > 1 and chisquare(counts[kept].numpy(), (counts.sum() * first[kept]).numpy()).pvalue < 1e-5:
        raise ContractError(honest)
    if abs(surplus) > 5 * max(variance, 0.0) ** 0.5 + 1:
        raise ContractError(honest)


def _grow(case: _Case, rows: Sequence[Row], proposal: Proposal | None, rng: random.Random) -> None:
    """Accept a random part of each draft, and commit one token more."""
    for index, row in enumerate(rows):
        draft = _of_row(proposal, index)[0] if proposal is not None else []
        kept = draft[: rng.randrange(len(draft) + 1)]
        row.token_ids += [*kept, case.any_token(rng)]


def _of_row(proposal: Proposal, index: int) -> tuple[list[int], Tensor | None]:
    """What a proposal says of one row, without its padding."""
    count = int(proposal.num_tokens[index])
    law = None if proposal.probs is None else proposal.probs[index, :count]
    return proposal.token_ids[index, :count].tolist(), law


def _require_same(
    case: _Case, one: tuple[list[int], Tensor | None], other: tuple[list[int], Tensor | None], message: str
) -> None:
    if not _same(one, other, case.vocab_size, LAW_TOLERANCE):
        raise ContractError(f"{message} (got {one[0]} and {other[0]})")


def _same(
    one: tuple[list[int], Tensor | None], other: tuple[list[int], Tensor | None], vocab_size: int, bound: float
) -> bool:
    """Equal tokens, and laws that are equal within a bound; no law is a point mass at each token."""
    first, second = (
        torch.nn.functional.one_hot(torch.tensor(draft, dtype=torch.int64), vocab_size).double() if law is None else law
        for draft, law in (one, other)
    )
    return one[0] == other[0] and _near(first, second, bound)


def _near(one: Tensor, other: Tensor, bound: float) -> bool:
    return one.shape == other.shape and bool(((one - other).abs() <= bound).all())


def _tiny_target(vocab_size: int) -> CachedModel:
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).double().eval()
    return CachedModel(model, num_slots=SLOTS, max_len=MAX_LEN, block=K + 1)


CHECKS: dict[str, Callable[[_Case], None]] = {
    "answers": _check_answers,
    "repeatability": _check_repeatability,
    "independence": _check_independence,
    "rejected": _check_rejected,
    "release": _check_release,
    "law": _check_law,
}
