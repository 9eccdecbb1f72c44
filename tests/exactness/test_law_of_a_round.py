"""
The law of one round, by equality on rationals over every path, and then the tensor code against that.

Nothing here is sampled: no seed, no tolerance, no false alarm in the first part.
"""

import random
from fractions import Fraction
from itertools import product

import pytest
import torch

from draftproof.sampling.accept import Proposal, rejection, residual
from draftproof.sampling.noise import Purpose

SIZE, K = 3, 2


def laws(seed):
    """A history-dependent model: for each prefix a law in fractions, zeros included."""
    rng = random.Random(seed)

    def law():
        weights = [rng.choice([0, 0, 1, 2, 3, 5]) for _ in range(SIZE)]
        weights[rng.randrange(SIZE)] += 1
        return [Fraction(weight, sum(weights)) for weight in weights]

    return {prefix: law() for length in range(K + 1) for prefix in product(range(SIZE), repeat=length)}


def rational_residual(p, q):
    left = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    return [x / sum(left) for x in left] if sum(left) else list(p)


def law_of_round(target, draft, correction=rational_residual):
    """Enumerate drafts, accepts and rejections: the law of the round's tokens, completed by the target to K + 1."""
    result = dict.fromkeys(product(range(SIZE), repeat=K + 1), Fraction(0))

    def complete(tokens, weight):
        if weight == 0:
            return
        if len(tokens) == K + 1:
            result[tokens] += weight
            return
        for token in range(SIZE):
            complete((*tokens, token), weight * target[tokens][token])

    def go(tokens, weight):
        if len(tokens) == K:
            complete(tokens, weight)
            return
        p, q = target[tokens], draft[tokens]
        for x in range(SIZE):
            if q[x] == 0:
                continue
            keep = min(Fraction(1), p[x] / q[x])
            go((*tokens, x), weight * q[x] * keep)
            for y, share in enumerate(correction(p, q)):
                complete((*tokens, y), weight * q[x] * (1 - keep) * share)

    go((), Fraction(1))
    return result


def law_of_target(target):
    result = {}
    for tokens in product(range(SIZE), repeat=K + 1):
        weight = Fraction(1)
        for at in range(K + 1):
            weight *= target[tokens[:at]][tokens[at]]
        result[tokens] = weight
    return result


@pytest.mark.parametrize("seed", range(100))
def test_a_round_has_exactly_the_targets_law(seed):
    target, draft = laws(seed), laws(seed + 1000)
    assert law_of_round(target, draft) == law_of_target(target)


def test_redrawing_from_the_target_after_a_rejection_is_seen():
    wrong = sum(
        law_of_round(laws(seed), laws(seed + 1000), correction=lambda p, q: p) != law_of_target(laws(seed))
        for seed in range(100)
    )
    assert wrong > 90


class Grid:
    """Feeds chosen numbers: the accept coins in order, then the last one for every draw."""

    def __init__(self, coins, last):
        self.coins, self.last = coins, last

    def uniform(self, keys, positions, purpose, count):
        values = self.coins if purpose is Purpose.ACCEPT else [self.last] * count
        return torch.tensor([values[:count]] * len(keys), dtype=torch.float64)


def as_tensor(law):
    return torch.tensor([float(x) for x in law], dtype=torch.float64)


@pytest.mark.parametrize("seed", range(40))
def test_the_tensor_rule_is_the_rational_rule(seed):
    """Accept probabilities by bisection on the coin; the correction and bonus laws by their cumulative steps."""
    target, draft = laws(seed), laws(seed + 1000)
    for drafted in product(range(SIZE), repeat=K):
        if any(draft[drafted[:at]][drafted[at]] == 0 for at in range(K)):
            continue
        target_probs = torch.stack([as_tensor(target[drafted[:at]]) for at in range(K + 1)])[None]
        draft_probs = torch.stack([as_tensor(draft[drafted[:at]]) for at in range(K)])[None]
        proposal = Proposal(token_ids=torch.tensor([drafted]), num_tokens=torch.tensor([K]), probs=draft_probs)
        ratios = [
            min(Fraction(1), target[drafted[:at]][drafted[at]] / draft[drafted[:at]][drafted[at]]) for at in range(K)
        ]
        for reject_at in range(K + 1):
            if (reject_at < K and ratios[reject_at] == 1) or any(ratio == 0 for ratio in ratios[:reject_at]):
                continue
            p = target[drafted[:reject_at]]
            law = rational_residual(p, draft[drafted[:reject_at]]) if reject_at < K else p
            below = [max(0.0, float(ratio) - 1e-9) for ratio in ratios]
            above = [min(1 - 2**-53, float(ratio) + 1e-9) for ratio in ratios]
            coins = [above[at] if at == reject_at else below[at] for at in range(K)]
            edge = 0.0
            for token in range(SIZE):
                if law[token] == 0:
                    continue
                for u in (edge + 1e-9, edge + float(law[token]) - 1e-9):
                    decision = rejection(target_probs, proposal, [(0, 0)], [0], Grid(coins, u))
                    assert decision.num_accepted.tolist() == [reject_at]
                    assert decision.next_token_ids.tolist() == [token]
                edge += float(law[token])


def test_a_token_without_target_mass_is_rejected_even_by_a_coin_of_zero():
    target_probs = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]], dtype=torch.float64)
    proposal = Proposal(
        token_ids=torch.tensor([[0]]), num_tokens=torch.tensor([1]), probs=torch.tensor([[[1.0, 0.0]]]).double()
    )
    decision = rejection(target_probs, proposal, [(0, 0)], [0], Grid([0.0], 0.0))
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
        decision = rejection(target_probs, proposal, [(0, 0)], [0], Grid([coin], u))
        assert (decision.num_accepted.item(), decision.next_token_ids.item()) == expected
