"""
The law of one round equals the target's, with ``==`` on fractions, on 300 toy models: what is run is the product's own code.

The toys' probabilities are such that every threshold the rule may have is a multiple of 1/4 (`support/rational.py`), and
float64 computes with them without rounding. So the share of the cells of the uniform numbers in which a round gives some
tokens is their probability. Each number is tried at both ends of its cell: a rule whose thresholds lie elsewhere, however
near, gives another law at one of them. Assumed is only that a decision is monotone in each number.

Nothing here is sampled: no seed of a generator, no tolerance, no false alarm.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
import torch

from draftproof.decoding.proposers.base import Proposal, Proposer, ProposerContext, point_masses
from draftproof.decoding.proposers.check import ask
from draftproof.decoding.proposers.first_of import FirstOf
from draftproof.decoding.proposers.prompt_lookup import PromptLookup
from draftproof.decoding.proposers.stepwise import draw_stepwise
from draftproof.sampling.accept import rejection, residual
from draftproof.sampling.coupled import coupled
from draftproof.sampling.draw import draw_alone, draw_shared
from draftproof.sampling.noise import Purpose
from draftproof.verify.controls import RULE_DEFECTS
from support.rational import (
    AT_THE_EDGES,
    CELLS,
    INSIDE,
    CellNoise,
    K,
    Toy,
    as_tensor,
    cells,
    drafts_of,
    every_draft,
    law_of_target,
    measured_law,
    rational_residual,
    toys,
)
from support.toy_models import make_row


class TableDraft:
    """A draft model without a model: the product's drawing, over a table of laws; ids without a law have no logits."""

    def __init__(self, table, kept=None, confidence=0.0) -> None:
        self.table, self.confidence = table, confidence
        if kept is not None:
            # not renormalised: that is the drawing's business
            self.table = {at: [x if i in kept else 0 for i, x in enumerate(law)] for at, law in table.items()}
        self.logits = {at: as_tensor(law).log() for at, law in self.table.items()}

    def bind(self, context) -> None:
        self.context = context

    def propose(self, rows, limits) -> Proposal:
        read = {index: [] for index, limit in enumerate(limits) if limit}

        def score(blocks):
            for index, block in blocks.items():
                read[index] += [int(token_id) for token_id in block]
            return torch.stack([self.logits[tuple(read[index][1:])] for index in blocks])

        feeds = {index: [rows[index].token_ids[-1]] for index in read}
        return draw_stepwise(self.context, rows, limits, feeds, score, self.confidence)

    def release(self, slot) -> None:
        pass


KINDS = {
    "draft-model": lambda toy: TableDraft(toy.draft),
    "early-exit": lambda toy: TableDraft(toy.near),
    "cross-tokenizer": lambda toy: TableDraft(toy.draft, kept=toy.shared),
    "confidence-stop": lambda toy: TableDraft(toy.draft, confidence=0.6),
    "point-mass": lambda toy: PromptLookup(1, 2),
    "first-of": lambda toy: FirstOf(PromptLookup(2, 2), TableDraft(toy.draft)),
}


def proposed(toy: Toy, proposer: Proposer, at: float, draw=draw_alone) -> Proposal:
    """What the round would be given, for every prompt of the toy times every combination of cells of its draws."""
    grid = cells(K, at)
    rows = []
    for row in (make_row(prompt, 9, temperature=1.0) for prompt in toy.prompts):
        rows += [replace(row, key=(number, 0)) for number in range(len(grid))]
    proposer.bind(
        ProposerContext(
            num_slots=len(rows),
            max_len=32,
            num_speculative_tokens=K,
            vocab_size=toy.size,
            device=torch.device("cpu"),
            noise=CellNoise(DRAFT=grid, SHARED=grid),
            draw=draw,
        )
    )
    limits = [limit for limit in toy.limits for _ in grid]
    checked = ask(proposer, rows, limits, toy.size, torch.device("cpu"))
    assert not checked.problems
    return checked.proposal


def part(proposal: Proposal, rows: list[int]) -> Proposal:
    probs = None if proposal.probs is None else proposal.probs[rows]
    return Proposal(token_ids=proposal.token_ids[rows], num_tokens=proposal.num_tokens[rows], probs=probs)


def by_draft(proposal: Proposal, first: int, end: int) -> tuple[Proposal, list[Fraction]]:
    """Rows ``first`` to ``end``, equal drafts put together, and how likely each is."""
    drafts = drafts_of(proposal)
    places = {drafts[row]: row for row in range(first, end)}
    counts = Counter(drafts[first:end])
    return part(proposal, list(places.values())), [Fraction(counts[draft], end - first) for draft in places]


def is_the_targets(toy: Toy, proposal: Proposal, rule, at: float) -> bool:
    """Whether a round has the target's law after each prompt of a toy."""
    count = CELLS**K
    laws = (
        measured_law(rule, toy.target, *by_draft(proposal, start, start + count), at)
        for start in range(0, count * len(toy.prompts), count)
    )
    return all(law == law_of_target(toy.target, toy.size) for law in laws)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_has_exactly_the_targets_law(kind: str) -> None:
    lengths = Counter()
    for (seed, toy), at in product(enumerate(toys()), INSIDE):
        proposal = proposed(toy, KINDS[kind](toy), at)
        assert is_the_targets(toy, proposal, rejection, at), f"toy {seed}"
        lengths.update(set(proposal.num_tokens.tolist()))
    assert lengths[1] > 50 and lengths[K] > 50
    assert (lengths[0] > 20) == (kind in ("cross-tokenizer", "confidence-stop", "point-mass"))


def every_lookup(toy: Toy) -> list[tuple[Proposal, list[Fraction]]]:
    """What prompt lookup proposes for each prompt, which may be nothing."""
    drafts = [PromptLookup(1, 2).lookup(prompt, K) for prompt in toy.prompts]
    return [(point_masses([draft], torch.device("cpu")), [Fraction(1)]) for draft in drafts]


@pytest.mark.parametrize("drafts", [lambda toy: [every_draft(toy)], every_lookup], ids=["drawn", "point-mass"])
def test_the_rule_holds_at_the_very_edge_of_each_cell(drafts) -> None:
    """There a coin equals the acceptance and a draw a step of the cumulative law, exactly: ``<`` is not ``<=``."""
    for seed, toy in enumerate(toys()):
        expected = law_of_target(toy.target, toy.size)
        for at, (proposal, weights) in product(AT_THE_EDGES, drafts(toy)):
            assert measured_law(rejection, toy.target, proposal, weights, at) == expected, f"toy {seed}"


@pytest.mark.parametrize("defect", RULE_DEFECTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_defect_has_another_law(kind: str, defect: str) -> None:
    right = [
        is_the_targets(toy, proposed(toy, KINDS[kind](toy), INSIDE[0]), RULE_DEFECTS[defect], INSIDE[0])
        for toy in toys()[:30]
    ]
    assert sum(right) < 25


def test_withholding_a_token_because_of_what_was_drawn_has_another_law() -> None:
    """The one dishonesty that no single answer shows."""
    wrong = 0
    for toy in toys()[:30]:
        proposal, weights = every_draft(toy)
        withheld = replace(proposal, num_tokens=(proposal.token_ids != 0).cumprod(-1).sum(-1))
        law = measured_law(rejection, toy.target, withheld, weights, INSIDE[0])
        wrong += law != law_of_target(toy.target, toy.size)
    assert wrong > 5


def test_the_residual_is_the_rational_one_digit_for_digit() -> None:
    for toy in toys():
        for at, p in toy.target.items():
            for q in (toy.draft[at], toy.near[at]):
                got = residual(as_tensor(p)[None], as_tensor(q)[None])[0].tolist()
                assert tuple(Fraction(x) for x in got) == rational_residual(p, q)


@pytest.mark.parametrize("draw", [draw_alone, draw_shared], ids=["alone", "shared"])
def test_a_coupled_round_has_exactly_the_targets_law(draw) -> None:
    """Two tokens, for which a race over cells is exact. A draft that shares the numbers meets the ones it was drawn with."""
    for seed, toy in enumerate(toys(size=2)):
        expected = law_of_target(toy.target, toy.size)
        for at in INSIDE:
            proposal, end = proposed(toy, TableDraft(toy.draft), at, draw), CELLS**K
            if draw is draw_alone:
                law = measured_law(coupled, toy.target, *by_draft(proposal, 0, end), at)
            else:
                numbers = cells(K + 1, at).view(end, CELLS, K + 1)
                weights = [Fraction(1, end)] * end
                law = measured_law(coupled, toy.target, part(proposal, list(range(end))), weights, at, numbers)
            assert law == expected, f"toy {seed}"


class Fixed:
    """Chosen numbers: the accept coins in order, and one for every draw."""

    def __init__(self, coins, last) -> None:
        self.coins, self.last = coins, last

    def uniform(self, keys, positions, purpose, count):
        values = self.coins if purpose is Purpose.ACCEPT else [self.last] * count
        return torch.tensor([values[:count]] * len(keys), dtype=torch.float64)


def test_a_token_without_target_mass_is_rejected_even_by_a_coin_of_zero():
    target_probs = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]], dtype=torch.float64)
    proposal = Proposal(
        token_ids=torch.tensor([[0]]), num_tokens=torch.tensor([1]), probs=torch.tensor([[[1.0, 0.0]]]).double()
    )
    decision = rejection(target_probs, proposal, [(0, 0)], [0], Fixed([0.0], 0.0))
    assert (decision.num_accepted.tolist(), decision.next_token_ids.tolist()) == ([0], [1])


@pytest.mark.parametrize("shift", [0.0, 1e-8, 1e-17])
def test_a_residual_without_mass_is_the_target(shift):
    law = torch.tensor([[0.5, 0.3, 0.2, 0.0]], dtype=torch.float64)
    other = law + shift * torch.tensor([[1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    assert torch.equal(residual(law, other), law)


def test_a_deterministic_draft_is_a_point_mass():
    """Accept with p(x), else p without x, renormalised (the exact, slower variant)."""
    target_probs = torch.tensor([[[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    proposal = Proposal(token_ids=torch.tensor([[1]]), num_tokens=torch.tensor([1]))
    for coin, u, expected in [(0.29, 0.0, (1, 0)), (0.31, 0.7, (0, 0)), (0.31, 0.72, (0, 2))]:
        decision = rejection(target_probs, proposal, [(0, 0)], [0], Fixed([coin], u))
        assert (decision.num_accepted.item(), decision.next_token_ids.item()) == expected
