"""
Toy models in fractions, and the law of a round measured by counting cells.

Every probability, acceptance and residual of a toy is a multiple of 1/4. So a rule that is right changes its mind only at
multiples of 1/4 of each uniform number: all combinations of cells, each with weight 1/4 per number, give its law exactly.
"""

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
import torch
from torch import Tensor

from draftproof.decoding.proposers.base import Proposal
from draftproof.decoding.proposers.prompt_lookup import PromptLookup
from draftproof.sampling.noise import Purpose

CELLS, K = 4, 2
NEAR = 2.0**-30
# where in its cell a number stands; a decision that is monotone in it and the same at both is the same in between
AT_THE_EDGES = (0.0, 1 - NEAR)
INSIDE = (NEAR, 1 - NEAR)

Law = tuple[Fraction, ...]
Tokens = tuple[int, ...]


def rational_residual(p: Law, q: Law) -> Law:
    left = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    return tuple(x / sum(left) for x in left) if sum(left) else p


def acceptance(p: Fraction, q: Fraction) -> Fraction:
    return min(Fraction(1), p / q) if q else Fraction(0)


@functools.cache
def on_grid(p: Law, q: Law) -> bool:
    """Whether counting cells is exact for this target and draft."""
    numbers = [*q, *rational_residual(p, q), *(acceptance(a, b) for a, b in zip(p, q, strict=True))]
    return all((number * CELLS).denominator == 1 for number in numbers)


@functools.cache
def laws(size: int) -> list[Law]:
    weights = product(range(CELLS + 1), repeat=size)
    return [tuple(Fraction(w, CELLS) for w in law) for law in weights if sum(law) == CELLS]


def only(law: Law, kept: Sequence[int]) -> Law | None:
    """A law on some of the ids, or None if they have no mass."""
    mass = sum(law[token] for token in kept)
    return tuple(x / mass if token in kept else Fraction(0) for token, x in enumerate(law)) if mass else None


def point(token: int, size: int) -> Law:
    return tuple(Fraction(int(token == other)) for other in range(size))


@dataclass(frozen=True)
class Toy:
    """Models with a history: laws by the tokens generated so far. ``near`` is a draft that is often the target itself."""

    size: int
    prompts: list[list[int]]
    limits: list[int]
    shared: tuple[int, ...]
    target: dict[Tokens, Law]
    draft: dict[Tokens, Law]
    near: dict[Tokens, Law]


def make_toy(seed: int, size: int = 3) -> Toy:
    rng = random.Random(seed)
    prompts = [[rng.randrange(size) for _ in range(6)] for _ in range(2)]
    shared = tuple(sorted(rng.sample(range(size), size - 1)))
    # the tables must be on the grid with what prompt lookup proposes too, and that is known by the prompt
    lookups = product(prompts, (1, 2), range(1, K + 1))
    found = [PromptLookup(shortest, 2).lookup(prompt, limit) for prompt, shortest, limit in lookups]
    target, draft, near = {}, {}, {}
    for prefix in (prefix for length in range(K + 1) for prefix in product(range(size), repeat=length)):
        points = {d[len(prefix)] for d in found if len(d) > len(prefix) and tuple(d[: len(prefix)]) == prefix}
        while True:
            p, q, other = (rng.choice(laws(size)) for _ in range(3))
            drafts = [q, only(q, shared), other, *(point(token, size) for token in points)]
            if all(law is None or on_grid(p, law) for law in drafts):
                break
        target[prefix], draft[prefix], near[prefix] = p, q, rng.choice([p, other])
    limits = [K, rng.choice([1, K])]
    return Toy(size=size, prompts=prompts, limits=limits, shared=shared, target=target, draft=draft, near=near)


@functools.cache
def toys(count: int = 300, size: int = 3) -> list[Toy]:
    return [make_toy(seed, size) for seed in range(count)]


def law_of_target(target: dict[Tokens, Law], size: int) -> dict[Tokens, Fraction]:
    """The law of K + 1 tokens, by multiplication along each path."""
    law = {(): Fraction(1)}
    for _ in range(K + 1):
        law = {(*done, token): weight * target[done][token] for done, weight in law.items() for token in range(size)}
    return law


def every_draft(toy: Toy) -> tuple[Proposal, list[Fraction]]:
    """All drafts of K tokens that the toy's draft can draw, and how likely each is."""
    drafts = list(product(range(toy.size), repeat=K))
    laws = [[toy.draft[draft[:place]] for place in range(K)] for draft in drafts]
    weights = [law[0][draft[0]] * law[1][draft[1]] for draft, law in zip(drafts, laws, strict=True)]
    likely = [row for row, weight in enumerate(weights) if weight]
    proposal = Proposal(
        token_ids=torch.tensor([drafts[row] for row in likely]),
        num_tokens=torch.full((len(likely),), K),
        probs=torch.stack([torch.stack([as_tensor(law) for law in laws[row]]) for row in likely]),
    )
    return proposal, [weights[row] for row in likely]


class CellNoise:
    """Uniform numbers from tables: ``numbers[purpose]`` has a row for each seed and a column for each position."""

    def __init__(self, **numbers: Tensor) -> None:
        self.numbers = {Purpose[name]: table for name, table in numbers.items()}

    def uniform(self, keys, positions, purpose, count) -> Tensor:
        rows = torch.from_numpy(np.fromiter((seed for seed, _ in keys), dtype=np.int64))[:, None]
        return self.numbers[purpose][rows, torch.tensor(positions)[:, None] + torch.arange(count)]

    def exponential(self, keys, positions, count, size, device) -> Tensor:
        """For two tokens: u / p[0] < (1 - u) / p[1] is u < p[0], so a race over cells is exact too."""
        uniform = self.uniform(keys, positions, Purpose.SHARED, count)
        assert size == 2
        return torch.stack([uniform, 1 - uniform], dim=-1)


def cells(numbers: int, at: float) -> Tensor:
    """All combinations of cells, shape (CELLS ** numbers, numbers); ``at`` says where in its cell each number stands."""
    one = (torch.arange(CELLS, dtype=torch.float64) + at) / CELLS
    return torch.cartesian_prod(*[one] * numbers).reshape(-1, numbers)


def as_tensor(law: Law) -> Tensor:
    return torch.tensor([float(x) for x in law], dtype=torch.float64)


def measured_law(
    rule: Callable,
    target: dict[Tokens, Law],
    proposal: Proposal,
    weights: Sequence[Fraction],
    at: float,
    numbers: Tensor | None = None,
) -> dict[Tokens, Fraction]:
    """
    The law of a round's tokens, completed by the target to K + 1: ``rule`` is run on every combination of cells.

    Row i of the proposal has probability ``weights[i]`` and meets all combinations, or those of ``numbers[i]``.
    """
    drafts = drafts_of(proposal)
    width, size = proposal.token_ids.shape[1], len(target[()])
    target_probs = torch.zeros(len(drafts), width + 1, size, dtype=torch.float64)
    # beyond a row's own draft there is some law that must not be read
    target_probs[..., 0] = 1.0
    for row, draft in enumerate(drafts):
        for place in range(len(draft) + 1):
            target_probs[row, place] = as_tensor(target[draft[:place]])
    if numbers is None:
        numbers = cells(K + 1, at).expand(len(drafts), -1, -1)
    count = numbers.shape[1]
    grid = numbers.reshape(-1, K + 1)
    # one of the two is used in a round, so one number serves both
    last = grid[:, K:].expand(-1, K + 1)
    both = torch.arange(len(drafts)).repeat_interleave(count)
    spread = Proposal(
        token_ids=proposal.token_ids[both],
        num_tokens=proposal.num_tokens[both],
        probs=None if proposal.probs is None else proposal.probs[both],
    )
    keys = keys_up_to(len(both))
    noise = CellNoise(ACCEPT=grid[:, :K], CORRECTION=last, TARGET=last, SHARED=grid)
    decision = rule(target_probs[both], spread, keys, [0] * len(keys), noise)
    outcomes = (both * (K + 1) + decision.num_accepted) * size + decision.next_token_ids
    law = dict.fromkeys(product(range(size), repeat=K + 1), Fraction(0))
    for outcome, hits in enumerate(outcomes.bincount().tolist()):
        if hits:
            row, accepted, token = outcome // size // (K + 1), outcome // size % (K + 1), outcome % size
            weight = weights[row] * Fraction(hits, count)
            _complete(law, target, (*drafts[row][:accepted], token), weight)
    return law


def _complete(law: dict[Tokens, Fraction], target: dict[Tokens, Law], tokens: Tokens, weight: Fraction) -> None:
    if len(tokens) == K + 1:
        law[tokens] += weight
        return
    for token, probability in enumerate(target[tokens]):
        if probability:
            _complete(law, target, (*tokens, token), weight * probability)


def drafts_of(proposal: Proposal) -> list[Tokens]:
    rows = zip(proposal.token_ids.tolist(), proposal.num_tokens.tolist(), strict=True)
    return [tuple(tokens[:count]) for tokens, count in rows]


@functools.cache
def keys_up_to(count: int) -> list[tuple[int, int]]:
    return [(seed, 0) for seed in range(count)]
