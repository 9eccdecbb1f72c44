"""
The accept rule's law without sampling: its random numbers are put in, on a grid, and what comes out is counted.

Sees a wrong rule whatever its size, and nothing of the engine around it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftproof.evidence import RuleIdentity
from draftproof.sampling.accept import AcceptRule, Keys, Proposal
from draftproof.sampling.noise import Purpose

K = 3
SIZES = (3, 6)
POINTS, STEP = 10_946, 6_765  # neighbours in Fibonacci's sequence
TOLERANCE = 0.01
"""A rule's law may differ from the target's by this total variation: above what the grid leaves open (see `rule_identity`)."""
LOWEST, HIGHEST = 0.0, 1.0 - 2.0**-24
SEED = 1


class NotIntegrable(Exception):
    """The rule's law is not a function of the numbers that are put in, so that nothing can be said without a sample."""


class Given:
    """
    Noise that was written down.

    Parameters
    ----------
    **numbers : Tensor, shape (rows, places), float64
        By purpose. A row's key is (row, 0), and its first place is position 0.
    """

    def __init__(self, **numbers: Tensor) -> None:
        self._numbers = numbers

    def uniform(self, keys: Keys, positions: Sequence[int], purpose: Purpose, count: int) -> Tensor:
        """
        See `Noise.uniform`; each number is that of its row and place, however few are asked for at a time.

        Raises
        ------
        NotIntegrable
            One was asked for that was not written down.
        """
        given = self._numbers.get(purpose.name)
        rows, first = np.array([row for row, _ in keys], dtype=np.int64), np.array(positions, dtype=np.int64)
        if given is None or rows.max(initial=0) >= len(given) or first.max(initial=0) + count > given.shape[1]:
            raise NotIntegrable
        return given[torch.from_numpy(rows)[:, None], torch.from_numpy(first)[:, None] + torch.arange(count)]

    def exponential(self, *request: Any) -> Tensor:
        """
        Refuse: these are whole vectors.

        Raises
        ------
        NotIntegrable
            Always.
        """
        raise NotIntegrable


def rule_identity(rule: AcceptRule, num_speculative_tokens: int = K) -> RuleIdentity | None:
    """
    Compare, for each place in a round, the law of the emitted token with the target's.

    Parameters
    ----------
    rule : AcceptRule
        As the engine calls it.
    num_speculative_tokens : int, 1 or more
        Of the engine: beyond `K` one pair of laws is compared at each place of so long a draft too.

    Returns
    -------
    RuleIdentity or None
        None for a rule that this cannot judge: one whose random numbers are whole vectors, as the coupled rule's (whose output is
        held against the plain one token by token instead), or others than those it is given.

    Notes
    -----
    For every token that the draft could have drawn at the place, the tokens that come out are counted over a Fibonacci
    lattice [1]_ of (coin, number of the next token), and weighted by the draft. The tokens before the place are accepted by
    the coin 0; a place is left out where that hangs on the number too (a rule that draws from the target and compares), since
    what is left of the lattice then says nothing about it. Laws: random ones, and equal, sparse and one-hot ones. Every other
    row of the batch has other laws, so that a leak between rows shows. The correct rule is within 0.003 on these laws;
    `TOLERANCE` is more than twice that.
    Held by: tests/verify/test_verify_identity.py.

    References
    ----------
    .. [1] Niederreiter, "Random Number Generation and Quasi-Monte Carlo Methods", 1992, chapter 5.
    """
    try:
        return _integrate(rule, num_speculative_tokens)
    except NotIntegrable:
        return None


def _integrate(rule: AcceptRule, longest: int) -> RuleIdentity:
    generator = np.random.default_rng(SEED)
    at = torch.arange(POINTS, dtype=torch.float64)
    points = torch.stack([(at + 0.5) / POINTS, (at * STEP % POINTS + 0.5) / POINTS], dim=1)
    corners = torch.cartesian_prod(*[torch.tensor([LOWEST, HIGHEST], dtype=torch.float64)] * 2)
    worst, impossible, pairs = 0.0, 0, 0
    targets, drafts = _pairs(SIZES[0], np.random.default_rng(SEED))[0]
    one, other = (_decide(rule, targets, drafts, drafts.argmax(-1), points) for _ in range(2))
    if not all(map(torch.equal, one, other)):
        raise NotIntegrable
    given = [pair for size in SIZES for pair in _pairs(size, generator)]
    if longest > K:
        given.append(_pairs(SIZES[0], generator, longest)[0])
    for targets, drafts in given:
        pairs += 1
        for place in range(len(targets)):
            law = _law_at(rule, targets, drafts, place, points)
            if law is not None:
                worst = max(worst, 0.5 * float((law - targets[place]).abs().sum()))
            extreme = _law_at(rule, targets, drafts, place, corners)
            if extreme is not None:
                impossible += int((extreme[targets[place] == 0] > 0).sum())
    return RuleIdentity(pairs=pairs, worst=worst, tolerance=TOLERANCE, impossible=impossible)


def _pairs(size: int, generator: np.random.Generator, length: int = K) -> list[tuple[Tensor, Tensor]]:
    """Return targets (K + 1, V) and drafts (K, V) of a draft's length K."""

    def some(concentration: float) -> tuple[Tensor, Tensor]:
        laws = generator.dirichlet(np.full(size, concentration), 2 * length + 1)
        return torch.from_numpy(laws[: length + 1]), torch.from_numpy(laws[length + 1 :])

    targets, drafts = some(1.0)
    sparse = targets.clone()
    sparse[:, 0] = 0.0
    sparse /= sparse.sum(-1, keepdim=True)
    hot = torch.nn.functional.one_hot(torch.full((length,), size - 1), size).double()
    return [some(1.0), some(0.3), (targets, targets[:length]), (sparse, drafts), (targets, hot)]


def _law_at(rule: AcceptRule, targets: Tensor, drafts: Tensor, place: int, points: Tensor) -> Tensor | None:
    """Return the law of the token at a place, shape (V,); None where it is never reached, or where that hangs on its number."""
    size = targets.shape[1]
    before = (targets[:place] * drafts[:place]).argmax(-1)
    if place == len(drafts):
        choices = [(1.0, before)]
    else:
        drawn = torch.nonzero(drafts[place])
        choices = [(float(drafts[place, token]), torch.cat([before, token])) for token in drawn]
    counts = torch.zeros(size, dtype=torch.float64)
    # the same coins with other numbers
    elsewhere = torch.stack([points[:, 0], HIGHEST - points[:, 1]], dim=1)
    for weight, drafted in choices:
        accepted, following = _decide(rule, targets, drafts, drafted, points)
        if place and not torch.equal(accepted >= place, _decide(rule, targets, drafts, drafted, elsewhere)[0] >= place):
            return None
        here = following[accepted == place]
        if place < len(drafts):
            here = torch.cat([here, drafted[place].expand(int((accepted > place).sum()))])
        counts += weight * here.bincount(minlength=size)
    return counts / counts.sum() if counts.sum() > 0 else None


def _decide(
    rule: AcceptRule, targets: Tensor, drafts: Tensor, drafted: Tensor, points: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the rule once for each (coin of the last drafted token, number of the next); all before it have the coin 0."""
    rows, length, count = len(points), len(drafts), len(drafted)
    coins = torch.zeros(rows, length, dtype=torch.float64)
    if count:
        coins[:, count - 1] = points[:, 0]
    numbers = points[:, 1:].expand(-1, length + 1)
    token_ids = torch.zeros(rows, length, dtype=torch.int64)
    token_ids[:, :count] = drafted
    # every other row is a decoy: the same with the vocabulary turned round
    last_id = targets.shape[1] - 1
    proposal = Proposal(
        token_ids=_in_turn(token_ids, last_id - token_ids),
        num_tokens=torch.full((2 * rows,), count),
        probs=_in_turn(drafts.expand(rows, -1, -1), drafts.flip(-1).expand(rows, -1, -1)),
    )
    noise = Given(
        ACCEPT=_in_turn(coins, coins), CORRECTION=_in_turn(numbers, numbers), TARGET=_in_turn(numbers, numbers)
    )
    keys = [(row, 0) for row in range(2 * rows)]
    both = _in_turn(targets.expand(rows, -1, -1), targets.flip(-1).expand(rows, -1, -1))
    decision = rule(both, proposal, keys, [0] * len(keys), noise)
    return decision.num_accepted[::2], decision.next_token_ids[::2]


def _in_turn(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([first, second], dim=1).flatten(0, 1)
