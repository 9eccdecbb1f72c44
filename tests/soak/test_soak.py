"""
Random requests that come, end, fail and are cancelled: nothing is left behind, and what finished is the judge's.

`make soak` runs 5,000 of them; the tests run some hundreds.
"""

import gc
import random

import pytest
import torch
from transformers import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from draftproof import SamplingParams
from draftproof.decoding.batch import Row
from draftproof.proposers import DraftModel, EarlyExit, FirstOf, PromptLookup
from support.oracles import judged
from support.toy_engines import make_engine, noisy_copy
from support.toy_models import VOCAB, tiny_llama

# the tokenizer's, and the one that the model's configuration names
ENDS = frozenset({1, 2})
SAMPLING = [{}, {}, {"temperature": 0.7}, {"temperature": 1.2, "top_k": 8}, {"temperature": 1.0, "top_p": 0.8}]
PROCESSORS = [
    ({}, []),
    ({}, []),
    ({"repetition_penalty": 1.3}, [RepetitionPenaltyLogitsProcessor(1.3)]),
    ({"logit_bias": {3: 2.0}}, [SequenceBiasLogitsProcessor([[[3], 2.0]])]),
    ({"bad_words_ids": ((4,), (9, 2))}, [NoBadWordsLogitsProcessor([[4], [9, 2]])]),
]


class Flaky(DraftModel):
    """A draft model that sometimes raises before or after it has worked, and sometimes proposes nonsense."""

    dice = random.Random(5)

    def propose(self, rows, limits):
        fate = self.dice.random()
        if fate < 0.002:
            raise RuntimeError("before")
        proposal = super().propose(rows, limits)
        if fate < 0.004:
            raise RuntimeError("after")
        if fate < 0.006:
            proposal.token_ids.fill_(VOCAB + 3)
        return proposal


def breaks(input_ids, scores):
    if input_ids.shape[1] > 12:
        raise RuntimeError("broken processor")
    return scores


@pytest.mark.parametrize("kind", ["lookup, else a flaky draft", "early exit"])
def test_random_requests_leave_nothing_behind_and_are_the_judges(kind: str, pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("--soak-requests") // 2
    model, dice = tiny_llama(), random.Random(kind)
    draft = Flaky(noisy_copy(model, 0.03))
    proposer = EarlyExit(1) if kind == "early exit" else FirstOf(PromptLookup(2, 4), draft)
    engine = make_engine(model, proposer=proposer, max_batch=5, max_len=96, verification="coupled")
    asked: dict[int, tuple[list[int], SamplingParams, dict, list]] = {}
    finished, cancelled, submitted, fails = 0, 0, 0, 0
    while submitted < count or engine.num_unfinished:
        while submitted < count and engine.num_unfinished < 8:
            prompt = [dice.randrange(2, VOCAB) for _ in range(dice.randrange(1, 40))]
            prompt = prompt + prompt[: dice.randrange(0, 8)]
            sampling, (options, processors) = dice.choice(SAMPLING), dice.choice(PROCESSORS)
            failing = dice.random() < 0.05
            params = SamplingParams(
                max_tokens=dice.randrange(1, 40),
                seed=submitted,
                logprobs=dice.choice([None, 2]),
                logits_processors=(breaks,) if failing else (),
                **{"temperature": 0.0, **sampling},
                **options,
            )
            number = engine.submit(prompt, params, speculate=dice.random() < 0.9)
            asked[number] = (prompt, params, sampling, processors)
            submitted += 1
        if asked and dice.random() < 0.02:
            victim = dice.choice(list(asked))
            engine.cancel(victim)
            del asked[victim]
            cancelled += 1
        for number, completion in engine.step():
            prompt, params, sampling, processors = asked.pop(number)
            limit = min(params.max_tokens, engine.max_len - len(prompt))
            if params.logits_processors:
                limit = min(limit, max(0, 13 - len(prompt)))
            expected = judged(
                model, prompt, limit, processors=processors, sampling=sampling, seed=params.seed, eos=ENDS
            )
            assert list(completion.token_ids) == expected
            assert (completion.logprobs is None) == (params.logprobs is None)
            assert len(completion.logprobs or expected) == len(expected)
            fails += completion.finish_reason == "error"
            finished += 1
    assert not asked and finished + cancelled == count and cancelled > 0 and fails > 0
    assert engine._decoder.rows == [] and sorted(engine._decoder._free) == list(range(5))
    stores = [engine._target] + ([draft.cached] if kind != "early exit" else [])
    for cached in stores:
        assert cached.row_len == [0] * 5
        for layer in cached.store._slots:
            for tensor in layer.tensors():
                assert not tensor[:, :, : cached.max_len].any()
    gc.collect()
    assert not [item for item in gc.get_objects() if type(item) is Row]


def test_memory_does_not_grow(pytestconfig: pytest.Config) -> None:
    """Tensors alive after many requests: as many as after a few."""
    engine = make_engine(proposer=PromptLookup(), max_batch=3, max_len=96)

    def alive() -> int:
        gc.collect()
        return sum(type(item) is torch.Tensor for item in gc.get_objects())

    def some(number: int) -> None:
        engine.generate(
            [[2 + index % 50] * 5 for index in range(number)], SamplingParams(max_tokens=6, temperature=0.8)
        )

    some(5)
    before = alive()
    some(pytestconfig.getoption("--soak-requests") // 4)
    assert alive() == before
