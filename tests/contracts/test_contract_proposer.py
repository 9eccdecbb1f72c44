"""Every proposer that is shipped keeps the contract of `draftproof.testing`, and one that breaks a promise is told which."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from draftproof.errors import ContractError, InputError
from draftproof.proposers import (
    CrossTokenizer,
    DraftModel,
    EarlyExit,
    FirstOf,
    PromptLookup,
    Proposal,
    Proposer,
    ProposerContext,
    point_masses,
)
from draftproof.testing import CHECKS, check_proposer
from support.toy_engines import numbered_words
from support.toy_models import VOCAB, tiny_llama
from support.toy_tokenizers import spelt_words

pytestmark = pytest.mark.usefixtures("short_self_test")


class Counting:
    """A user's own, deterministic: the next numbers, for rows that end in an even one; keeps something by slot."""

    def bind(self, context: ProposerContext) -> None:
        self.context, self.lengths = context, {}

    def propose(self, rows, limits) -> Proposal:
        drafts = []
        for row, limit in zip(rows, limits, strict=True):
            last = row.token_ids[-1]
            assert len(row.token_ids) >= self.lengths.get(row.slot, 0)
            self.lengths[row.slot] = len(row.token_ids)
            drafts.append([(last + step) % VOCAB for step in range(1, limit + 1)] if last % 2 == 0 else [])
        return point_masses(drafts, self.context.device)

    def release(self, slot: int) -> None:
        self.lengths.pop(slot, None)


class Bigram:
    """A user's own that draws: a law by the last token, through the context's own drawing."""

    def bind(self, context: ProposerContext) -> None:
        self.context = context
        weights = torch.rand(VOCAB, VOCAB, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        weights[weights < 0.8] = 0.0
        self.law = weights / weights.sum(-1, keepdim=True)

    def propose(self, rows, limits) -> Proposal:
        width = max(limits)
        token_ids = torch.zeros(len(rows), width, dtype=torch.int64)
        probs = torch.zeros(len(rows), width, VOCAB, dtype=torch.float64)
        for index, (row, limit) in enumerate(zip(rows, limits, strict=True)):
            last = row.token_ids[-1]
            for place in range(limit):
                probs[index, place] = self.law[last]
                position = row.num_generated + place
                drawn = self.context.draw(self.law[last][None], [row.key], [position], self.context.noise)
                last = token_ids[index, place] = int(drawn)
        return Proposal(token_ids=token_ids, num_tokens=torch.tensor(limits), probs=probs)

    def release(self, slot: int) -> None:
        pass


def short_draft() -> DraftModel:
    draft = tiny_llama(1)
    draft.config.max_position_embeddings = 30
    return DraftModel(draft)


MAKERS: dict[str, Callable[[], Proposer]] = {
    "prompt-lookup": lambda: PromptLookup(1, 3),
    "draft-model": lambda: DraftModel(tiny_llama(1)),
    "draft-model-short-context": short_draft,
    "draft-model-unsure": lambda: DraftModel(tiny_llama(1), 0.3),
    "cross-tokenizer": lambda: CrossTokenizer(tiny_llama(1, vocab=80), spelt_words(lambda number: number % 4 != 0)),
    "early-exit": lambda: EarlyExit(1),
    "first-of": lambda: FirstOf(PromptLookup(2, 3), DraftModel(tiny_llama(1))),
    "own-deterministic": Counting,
    "own-drawing": Bigram,
    "first-of-own": lambda: FirstOf(Counting(), EarlyExit(1)),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_shipped_proposer_keeps_the_contract(name: str, check: str) -> None:
    check_proposer(MAKERS[name], check, tokenizer=numbered_words())


class OtherLaw(Bigram):
    def propose(self, rows, limits) -> Proposal:
        proposal = super().propose(rows, limits)
        tilted = proposal.probs * torch.linspace(1, 4, VOCAB, dtype=torch.float64)
        return replace(proposal, probs=tilted / tilted.sum(-1, keepdim=True))


class OtherLawLater(OtherLaw):
    """Honest in the first place of a draft only."""

    def propose(self, rows, limits) -> Proposal:
        honest, other = Bigram.propose(self, rows, limits), super().propose(rows, limits)
        return replace(honest, probs=torch.cat([honest.probs[:, :1], other.probs[:, 1:]], dim=1))


class NoLaw(Bigram):
    def propose(self, rows, limits) -> Proposal:
        return replace(super().propose(rows, limits), probs=None)


class Halved(Bigram):
    def propose(self, rows, limits) -> Proposal:
        proposal = super().propose(rows, limits)
        return replace(proposal, probs=proposal.probs / 2)


class OutOfRange(Counting):
    def propose(self, rows, limits) -> Proposal:
        proposal = super().propose(rows, limits)
        return replace(proposal, token_ids=proposal.token_ids + VOCAB)


class BeyondTheLimit(Counting):
    def propose(self, rows, limits) -> Proposal:
        return super().propose(rows, [limit + 1 for limit in limits])


class Remembers(Counting):
    """Proposes what the slot's first request ended with."""

    def propose(self, rows, limits) -> Proposal:
        for row in rows:
            self.lengths.setdefault(row.slot, row.token_ids[-1] + row.key[0])
        drafts = [[self.lengths[row.slot]] * limit for row, limit in zip(rows, limits, strict=True)]
        return point_masses(drafts, torch.device("cpu"))

    def release(self, slot: int) -> None:
        pass


class RemembersRejected(Counting):
    """Goes on from what it proposed last, whether or not it was accepted."""

    def propose(self, rows, limits) -> Proposal:
        for row in rows:
            self.lengths[row.slot] = self.lengths.get(row.slot, 0) + 1
        return point_masses(
            [[self.lengths[row.slot]] * limit for row, limit in zip(rows, limits, strict=True)], torch.device("cpu")
        )


class Withholds(Bigram):
    """Drops a token that it has drawn, and what follows, if it is unlikely."""

    def propose(self, rows, limits) -> Proposal:
        proposal = super().propose(rows, limits)
        drawn = proposal.probs.gather(-1, proposal.token_ids[..., None])[..., 0]
        kept = (drawn >= 0.9 * proposal.probs.amax(-1)).cumprod(-1).sum(-1)
        return replace(proposal, num_tokens=torch.minimum(kept, proposal.num_tokens))


class Appends(Counting):
    def propose(self, rows, limits) -> Proposal:
        proposal = super().propose(rows, limits)
        for row in rows:
            row.token_ids.append(1)
        return proposal


class OwnGenerator(Bigram):
    def bind(self, context) -> None:
        generator = torch.Generator().manual_seed(id(self) % 2**31)
        super().bind(replace(context, draw=lambda law, *_: torch.multinomial(law, 1, generator=generator)[:, 0]))


class LeavesTokens(Counting):
    def propose(self, rows, limits) -> Proposal:
        self.context.target.prefill(rows[0].slot, [1])
        return super().propose(rows, limits)


class ByItsNeighbours(Counting):
    def propose(self, rows, limits) -> Proposal:
        return point_masses([[len(rows)] * limit for limit in limits], torch.device("cpu"))


class Silent(Counting):
    def propose(self, rows, limits) -> Proposal:
        return point_masses([[] for _ in rows], torch.device("cpu"))


BROKEN = {
    OtherLaw: "not as frequent as probs says",
    OtherLawLater: "not as frequent as probs says",
    NoLaw: "drafts differ between seeds and probs is None",
    Halved: "a row of probs is no distribution",
    OutOfRange: "allowed: 0 to 63, the target's vocabulary",
    BeyondTheLimit: "tokens in a draft, . were asked for",
    RemembersRejected: "tokens that were proposed and rejected",
    Withholds: "never on the token that was drawn",
    Appends: "changed a row",
    OwnGenerator: "draw with context.draw and context.noise only",
    LeavesTokens: "left tokens in the target's slots",
    ByItsNeighbours: "depends on its slot or on the rows beside it",
    Silent: "nothing was proposed, so nothing was checked",
    object: "object is no proposer: it needs bind, propose and release",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_promise_is_named(broken: type) -> None:
    with pytest.raises(ContractError, match=BROKEN[broken]):
        check_proposer(broken)


def test_a_slot_that_is_never_released_is_found_by_its_own_check() -> None:
    with pytest.raises(ContractError, match="a released slot was remembered"):
        check_proposer(Remembers, "release")


def test_a_proposer_of_another_vocabulary_brings_its_own_texts() -> None:
    texts = [[100, 101] * 4, [102] * 3, [100, 102] * 2, [101, 100, 101]]
    check_proposer(lambda: PromptLookup(1, 2), vocab_size=128, prompts=texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "speed"}, "check 'speed' is not known; allowed: answers, "),
        ({"prompts": [[1]]}, "prompts must be 4 lists"),
        ({"prompts": [[1], [2], [3], [64]]}, "below vocab_size = 64"),
    ],
)
def test_unfit_arguments_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_proposer(Counting, **options)
