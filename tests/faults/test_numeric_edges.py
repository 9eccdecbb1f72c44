"""Faults at the edges of floating point: ties to certainty, coins of 0 and almost 1, empty residuals, tiny temperatures."""

import math

import numpy as np
import pytest
import torch

from draftproof.decoding.proposers.draft_model import DraftModel
from draftproof.errors import InputError
from draftproof.request import SamplingParams
from draftproof.sampling import noise as noise_module
from draftproof.sampling.accept import Proposal, rejection, residual
from draftproof.sampling.coupled import coupled
from draftproof.sampling.draw import draw, race
from draftproof.sampling.law import token_law
from draftproof.sampling.noise import KeyedNoise, Purpose
from support.constant_noise import Constant
from support.toy_models import VOCAB, judge, make_decoder, make_row, run, tiny_llama

ALMOST_ONE = 1 - 2**-53
COINS = [0.0, 2**-149, 0.5, 1 - 2**-24, ALMOST_ONE]
GREEDY, SAMPLED = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0)
LARGE = 50_257


def decide(target_probs, drafts, probs, coin, rule=rejection):
    """One round of one row: laws (K + 1, V), drafted ids, what they were drawn from."""
    proposal = Proposal(
        token_ids=torch.tensor([drafts]),
        num_tokens=torch.tensor([len(drafts)]),
        probs=None if probs is None else probs[None],
    )
    decision = rule(target_probs[None], proposal, [(0, 0)], [0], Constant(coin))
    return decision.num_accepted.item(), decision.next_token_ids.item()


@pytest.mark.parametrize("coin", COINS)
@pytest.mark.parametrize("rule", [rejection, coupled])
def test_a_greedy_law_over_a_large_vocabulary_is_certain(coin: float, rule) -> None:
    """B11: not a one-hot that a second softmax makes nearly uniform; a right draft is accepted by every coin."""
    logits = torch.randn(2, 4, LARGE, generator=torch.Generator().manual_seed(1))
    best = logits[0].argmax(-1).tolist()
    # greedy and sampled requests in one batch
    law = token_law(logits, [GREEDY, SAMPLED])
    assert law[0].amax(-1).tolist() == [1.0] * 4 and law[0].sum(-1).tolist() == [1.0] * 4
    assert law[1].amax() < 0.1
    number = max(coin, 2**-149)
    assert decide(law[0], best[:3], None, number, rule) == (3, best[3])
    wrong = [best[0], (best[1] + 1) % LARGE, best[2]]
    assert decide(law[0], wrong, None, number, rule) == (1, best[1])


@pytest.mark.parametrize("coin", COINS)
def test_a_greedy_request_takes_the_argmax_whatever_the_soft_law_of_the_draft(coin: float) -> None:
    """B14: q(a) = .2 and p(a) = .3 would accept a softly; p(b) = .5 is the argmax."""
    logits = torch.log(torch.tensor([[[0.3, 0.5, 0.2]] * 2], dtype=torch.float64))
    law, told = token_law(logits, [GREEDY])[0], torch.tensor([[0.2, 0.4, 0.4]], dtype=torch.float64)
    assert decide(law, [0], told, coin) == (0, 1)
    assert decide(law, [1], told, coin) == (1, 1)
    soft = token_law(logits, [SAMPLED])[0]
    assert decide(soft, [0], told, coin)[0] == 1


@pytest.mark.parametrize("coin", COINS)
@pytest.mark.parametrize(
    "law",
    [
        [0.0, 0.5, 0.0, 0.5, 0.0],
        [0.0, 0.0, 1.0, 0.0, 0.0],
        [1 / 3, 1 / 3, 0.0, 1 / 3, 0.0],
        [0.0, 1e-300, 0.0, 2e-300, 0.0],
        [0.0, 1.0, 1e-17, 0.0, 0.0],
    ],
    ids=str,
)
def test_no_number_draws_a_token_without_mass(coin: float, law: list[float]) -> None:
    """B30: at the ends of the range a cumulative sum must not run over."""
    probs = torch.tensor([law], dtype=torch.float64)
    assert law[draw(probs, torch.tensor([coin], dtype=torch.float64)).item()] > 0
    for fastest in range(5):
        numbers = torch.full((1, 5), 36.8, dtype=torch.float64)
        numbers[0, fastest] = 2**-53
        assert law[race(probs, numbers).item()] > 0


@pytest.mark.parametrize("coin", COINS)
def test_a_coin_at_either_end_keeps_equal_laws_and_refuses_impossible_tokens(coin: float) -> None:
    """B30: a ratio of 1 is accepted by every coin below 1, a ratio of 0 by none."""
    law = torch.tensor([[0.7, 0.3, 0.0]] * 3, dtype=torch.float64)
    assert decide(law, [0, 1], law[:2], coin)[0] == 2
    told = torch.tensor([[0.1, 0.1, 0.8]] * 2, dtype=torch.float64)
    accepted, following = decide(law, [2, 0], told, coin)
    assert accepted == 0 and following != 2


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_the_extreme_states_of_the_generator_stay_in_range(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """B30: 1.0 is never produced, and an exponential number is neither 0 nor infinite."""
    monkeypatch.setattr(
        noise_module, "_states", lambda keys, positions, purpose, count: np.full((1, count), bits, dtype=np.uint64)
    )
    uniform = KeyedNoise().uniform([(0, 0)], [0], Purpose.ACCEPT, 3)
    assert ((uniform >= 0) & (uniform < 1)).all() and uniform[0, 0] == (0.0 if bits == 0 else ALMOST_ONE)
    numbers = KeyedNoise().exponential([(0, 0)], [0], 1, 999, torch.device("cpu"))
    assert numbers.isfinite().all() and (numbers > 0).all()


LAWS = {
    "equal": ([0.5, 0.3, 0.2, 0.0], [0.5, 0.3, 0.2, 0.0]),
    "equal but for rounding": ([0.5, 0.3, 0.2, 0.0], [0.5 + 1e-16, 0.3, 0.2, 0.0]),
    "draft above by 1e-8": ([0.5, 0.3, 0.2, 0.0], [0.5 + 1e-8, 0.3 + 1e-8, 0.2 + 1e-8, 1e-8]),
    "both certain": ([0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]),
    "certain of different tokens": ([0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("name", LAWS)
def test_what_a_rejection_leaves_is_a_law_inside_the_targets_support(name: str) -> None:
    """B31: 0 / 0 where the laws are equal; a coin of 1 forces the rejection that cannot happen."""
    target, draft = (torch.tensor([law], dtype=torch.float64) for law in LAWS[name])
    left = residual(target, draft)
    assert left.isfinite().all() and abs(left.sum().item() - 1) < 1e-12
    assert not left[target == 0].any()
    if name.startswith("certain"):
        return
    for token_id in range(4):
        accepted, following = decide(target.expand(2, 4), [token_id], draft, 1.0)
        assert accepted == 0 and target[0, following] > 0


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-300, 1e-8, 1e-3])
def test_a_tiny_temperature_is_greedy_and_still_drafts(temperature: float) -> None:
    """B33: no division by zero, no loss of every draft, on both models; in float64 and with the target as its own draft."""
    model, prompt = tiny_llama(), [5, 9, 2, 7]
    row = make_row(prompt, 16, temperature=temperature, seed=3)
    assert run(make_decoder(model, DraftModel(model), k=4), row) == [judge(model, prompt, 16)]
    rounds = [item for item in row.rounds if item.num_proposed]
    assert len(rounds) >= 3 and all(item.num_accepted == item.num_proposed for item in rounds)
    law = token_law(torch.randn(1, 1, VOCAB), [row.params])
    assert law.isfinite().all() and law.max() > 0.99


NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -3.0])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_not_a_usable_number_is_refused_by_name(name: str, value: float) -> None:
    """B22: a temperature below 0 or not a number never reaches a law; nor does any other."""
    with pytest.raises(InputError, match=name):
        SamplingParams(**{name: value})
