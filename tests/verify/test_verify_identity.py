"""The accept rule's law on a grid: the correct rule and its lossless variants are near, every wrong one is far."""

import functools
from dataclasses import replace

import pytest
import torch

from draftproof.sampling.accept import Decision, rejection
from draftproof.sampling.coupled import coupled
from draftproof.sampling.draw import draw
from draftproof.sampling.noise import Purpose
from draftproof.verify.controls import DEFECTS, LOSSLESS
from draftproof.verify.identity import TOLERANCE, rule_identity

RULES = {name: control for name, control in (DEFECTS | LOSSLESS).items() if control.part == "accept"}


def test_the_correct_rule_is_closer_than_half_the_tolerance() -> None:
    found = rule_identity(rejection)
    assert found is not None and 0 < found.worst < TOLERANCE / 2
    assert found.impossible == 0 and found.pairs == 10


@pytest.mark.parametrize("name", [name for name, control in RULES.items() if control.kind == "defect"])
def test_a_wrong_rule_is_far_or_emits_what_is_impossible(name: str) -> None:
    found = rule_identity(RULES[name].wrap(rejection))
    assert found is not None and (found.worst > 2 * TOLERANCE or found.impossible > 0)


def test_a_rule_without_bonus_is_as_close_and_the_coupled_one_is_not_asked() -> None:
    found = rule_identity(LOSSLESS["no bonus"].wrap(rejection))
    assert found is not None and found.worst < TOLERANCE / 2 and found.impossible == 0
    assert rule_identity(LOSSLESS["coupled rule"].wrap(rejection)) is None


def matching(target_probs, proposal, keys, positions, noise):
    """Draw from the target at each place, and keep drafted tokens while they are what came: exact, with one number a place."""
    batch, width = proposal.token_ids.shape
    numbers = noise.uniform(keys, positions, Purpose.TARGET, width + 1)
    own = torch.stack([draw(target_probs[:, place], numbers[:, place]) for place in range(width + 1)], dim=1)
    same = (own[:, :width] == proposal.token_ids) & (torch.arange(width) < proposal.num_tokens[:, None])
    count = same.cumprod(-1).sum(-1)
    return Decision(num_accepted=count, next_token_ids=own[torch.arange(batch), count])


def test_a_rule_that_draws_from_the_target_and_compares_is_not_accused() -> None:
    """There the tokens before a place stay by the target's numbers, of which the lattice has one."""
    found = rule_identity(matching)
    assert found is not None and found.worst < TOLERANCE / 2 and found.impossible == 0


def test_a_rule_with_other_numbers_than_those_it_is_given_is_not_judged() -> None:
    class Own:
        def uniform(self, keys, positions, purpose, count):
            return torch.rand(len(keys), count, dtype=torch.float64)

    assert rule_identity(lambda *given: rejection(*given[:-1], Own())) is None
    assert rule_identity(functools.partial(coupled)) is None


def test_a_deviation_at_the_fifth_place_is_seen_of_an_engine_that_drafts_so_many() -> None:
    """After a rejection there the token is drawn from the target itself; of three drafted tokens none stands there."""

    def late(target_probs, proposal, keys, positions, noise):
        right, wrong = (
            rule(target_probs, proposal, keys, positions, noise)
            for rule in (rejection, DEFECTS["redraw from the target"].wrap(rejection))
        )
        tokens = torch.where(right.num_accepted == 4, wrong.next_token_ids, right.next_token_ids)
        return replace(right, next_token_ids=tokens)

    assert rule_identity(late) == rule_identity(rejection)
    found, correct = rule_identity(late, 5), rule_identity(rejection, 5)
    assert found is not None and found.worst > 2 * TOLERANCE
    assert correct is not None and correct.worst < TOLERANCE / 2 and correct.pairs == found.pairs == 11


class Asked:
    """Passes requests for numbers on in another way."""

    def __init__(self, noise, change=lambda purpose: purpose, extra=0):
        self._noise, self._change, self._extra = noise, change, extra

    def uniform(self, keys, positions, purpose, count):
        ask = functools.partial(self._noise.uniform, keys, purpose=self._change(purpose), count=1)
        places = range(count + self._extra)
        return torch.cat([ask([first + at for first in positions]) for at in places], dim=1)[:, :count]


def test_a_right_rule_that_asks_for_one_number_at_a_time_is_right() -> None:
    found = rule_identity(lambda *given: rejection(*given[:-1], Asked(given[-1])))
    assert found == rule_identity(rejection)


def test_a_right_rule_that_asks_for_the_rows_that_need_a_number_is_right() -> None:
    class ByRow:
        def __init__(self, noise):
            self._noise = noise

        def uniform(self, keys, positions, purpose, count):
            both = [self._noise.uniform(keys[at::2], positions[at::2], purpose, count) for at in (0, 1)]
            return torch.stack(both, dim=1).flatten(0, 1)

    assert rule_identity(lambda *given: rejection(*given[:-1], ByRow(given[-1]))) == rule_identity(rejection)


@pytest.mark.parametrize(
    "options",
    [{"change": lambda purpose: Purpose.SHARED if purpose is Purpose.CORRECTION else purpose}, {"extra": 1}],
    ids=["of another purpose", "beyond the round"],
)
def test_a_rule_that_asks_for_numbers_that_are_not_on_the_lattice_is_not_judged(options) -> None:
    assert rule_identity(lambda *given: rejection(*given[:-1], Asked(given[-1], **options))) is None


def test_a_deviation_in_the_last_place_only_is_seen() -> None:
    """The bonus token is one id too high in 3 % of cases, at a place that is reached after three accepted tokens."""

    def late(target_probs, proposal, keys, positions, noise):
        decision = rejection(target_probs, proposal, keys, positions, noise)
        moved = (decision.next_token_ids + 1) % target_probs.shape[-1]
        chosen = (decision.num_accepted == 3) & (torch.arange(len(keys)) // 2 % 33 == 0)
        return replace(decision, next_token_ids=torch.where(chosen, moved, decision.next_token_ids))

    found = rule_identity(late)
    assert found is not None and found.worst > TOLERANCE
