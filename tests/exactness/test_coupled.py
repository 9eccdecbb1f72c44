"""The coupled rule: the same tokens for a seed, whatever is drafted, and exactly the target's law."""

import math

import pytest
import torch
from scipy import stats

from draftproof.decoding.proposers.draft_model import DraftModel
from draftproof.decoding.proposers.prompt_lookup import PromptLookup
from draftproof.sampling.coupled import coupled
from draftproof.sampling.draw import draw_shared, race
from draftproof.sampling.noise import KeyedNoise, Purpose
from support.toy_models import Scripted, make_decoder, make_row, run, tiny_llama

MASK = 2**64 - 1
PROMPTS = ([5, 9, 5, 9, 5], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [60] * 17)


def mix(value: int) -> int:
    """SplitMix64's step in whole numbers: written apart from the product's."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def exponential(seed: int, index: int, position: int, token_id: int) -> float:
    state = mix(seed)
    state = mix(state ^ mix(index + 0x51))
    state = mix(state ^ mix(position + 0xA7))
    state = mix(state ^ mix(int(Purpose.SHARED)))
    bits = mix((state + token_id * 0x9E3779B97F4A7C15) & MASK) >> 12
    return -math.log((bits + 0.5) / 2**52)


def sampled_judge(model, prompt: list[int], count: int, seed: int, temperature: float) -> list[int]:
    """REF: no cache, one token at a time, whole numbers for the noise."""
    tokens = list(prompt)
    for position in range(count):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        probs = (logits / temperature).softmax(-1).tolist()
        times = [exponential(seed, 0, position, token) / p for token, p in enumerate(probs)]
        tokens.append(times.index(min(times)))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_the_tokens_are_the_judges_whatever_is_drafted(k: int, temperature: float) -> None:
    model, draft = tiny_llama(), tiny_llama(seed=1)
    expected = [sampled_judge(model, prompt, 16, 7, temperature) for prompt in PROMPTS]
    worst = Scripted(lambda row, limit: [0] * limit)
    for proposer in (None, PromptLookup(1, 3), DraftModel(draft), worst):
        decoder = make_decoder(model, proposer, k=k, slots=2, accept=coupled)
        rows = [
            make_row(prompt, 16, request_id=number, temperature=temperature, seed=7)
            for number, prompt in enumerate(PROMPTS)
        ]
        assert run(decoder, *rows) == expected


def test_a_draft_that_is_the_target_is_accepted_whole() -> None:
    model = tiny_llama()
    decoder = make_decoder(model, DraftModel(model), k=4, accept=coupled, draw=draw_shared)
    row = make_row(PROMPTS[0], 40, temperature=1.0, seed=3)
    run(decoder, row)
    assert sum(item.num_proposed for item in row.rounds) == sum(item.num_accepted for item in row.rounds) >= 30


def test_sharing_the_numbers_accepts_more_than_drawing_alone() -> None:
    model, draft = tiny_llama(), tiny_llama()
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    accepted = []
    for parts in ({"draw": draw_shared}, {}):
        decoder = make_decoder(model, DraftModel(draft), k=4, accept=coupled, **parts)
        rows = [make_row(PROMPTS[0], 40, request_id=seed, temperature=1.0, seed=seed) for seed in range(6)]
        run(decoder, *rows)
        accepted.append(sum(item.num_accepted for row in rows for item in row.rounds))
    assert accepted[0] > 1.5 * accepted[1]


def test_the_numbers_are_those_of_the_whole_number_reference() -> None:
    keys, positions = [(7, 0), (2**63 - 1, 3)], [0, 1000]
    got = KeyedNoise().exponential(keys, positions, 3, 50, torch.device("cpu"))
    for row, ((seed, index), position) in enumerate(zip(keys, positions, strict=True)):
        for place in range(3):
            for token in range(50):
                want = exponential(seed, index, position + place, token)
                assert got[row, place, token].item() == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("axis", ["tokens", "positions", "seeds"])
def test_the_numbers_are_exponential_and_neighbours_are_independent(axis: str) -> None:
    noise, device, count = KeyedNoise(), torch.device("cpu"), 40_000
    if axis == "tokens":
        values = noise.exponential([(11, 0)], [5], 1, count, device).flatten()
    elif axis == "positions":
        values = noise.exponential([(11, 0)], [0], count, 1, device).flatten()
    else:
        values = noise.exponential([(seed, 0) for seed in range(count)], [5] * count, 1, 1, device).flatten()
    uniform = torch.exp(-values).numpy()
    assert stats.kstest(uniform, "uniform").pvalue > 1e-4
    for lag in (1, 2, 64):
        assert abs(stats.pearsonr(uniform[lag:], uniform[:-lag]).statistic) < 4.5 / math.sqrt(count)
    pairs = stats.chi2_contingency(
        [[((uniform[:-1] < 0.5) == a).__and__((uniform[1:] < 0.5) == b).sum() for a in (0, 1)] for b in (0, 1)]
    )
    assert pairs.pvalue > 1e-4


def test_a_race_has_the_law_it_is_run_under() -> None:
    probs = torch.tensor([0.5, 0.25, 0.15, 0.1, 0.0], dtype=torch.float64)
    count = 60_000
    numbers = KeyedNoise().exponential([(seed, 1) for seed in range(count)], [0] * count, 1, 5, torch.device("cpu"))
    counts = torch.bincount(race(probs, numbers[:, 0]), minlength=5)
    assert counts[4] == 0
    assert stats.chisquare(counts[:4].numpy(), probs[:4].numpy() * count).pvalue > 1e-4


@pytest.mark.parametrize("token_id", [0, 1, 40])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_allowed_no_drafted_token_is_accepted(temperature: float, token_id: int) -> None:
    """A race without a runner ends with token 0: a draft of that very token must not pass for a winner."""

    def dead_end(input_ids, scores):
        return scores if input_ids.shape[1] <= 7 else torch.full_like(scores, -torch.inf)

    script = Scripted(lambda row, limit: [token_id] * limit)
    row = make_row(PROMPTS[0], 20, temperature=temperature, logits_processors=(dead_end,))
    run(make_decoder(tiny_llama(), script, accept=coupled, draw=draw_shared), row)
    assert len(row.generated) == 3 and row.finish_reason == "error" and "no token is allowed" in row.error
