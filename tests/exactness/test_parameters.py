"""Every sampling parameter, on both models and inside blocks, gives the judge's tokens; transformers' processors judge."""

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from draftproof.decoding.proposers.draft_model import DraftModel
from draftproof.decoding.proposers.prompt_lookup import PromptLookup
from draftproof.errors import InputError
from draftproof.request import SamplingParams
from draftproof.sampling.coupled import coupled
from draftproof.sampling.draw import draw_shared
from draftproof.sampling.law import token_law
from support.oracles import judged, warpers
from support.toy_models import VOCAB, Scripted, make_decoder, make_row, run, tiny_llama

PROMPTS = [[5, 9, 2, 7, 5, 9, 2], [1, 1, 1, 1], [8, 30, 1, 8, 30, 1, 8]]
COUNT = 20
EOS = 11


class Even:
    """Only even ids, and never the last token again: depends on what it is given and on nothing else."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, 1::2] = -torch.inf
        scores[:, input_ids[0, -1]] = -torch.inf
        return scores


class Frequency:
    """The penalties that transformers does not have, written apart from the product's: a plain count."""

    def __init__(self, num_prompt, presence, frequency):
        self.num_prompt, self.presence, self.frequency = num_prompt, presence, frequency

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        generated = input_ids[0, self.num_prompt :].tolist()
        for token_id in set(generated):
            scores[0, token_id] -= self.presence + self.frequency * generated.count(token_id)
        return scores


CASES = {
    "repetition": ({"repetition_penalty": 1.4}, lambda n: [RepetitionPenaltyLogitsProcessor(1.4)]),
    "presence and frequency": (
        {"presence_penalty": 0.9, "frequency_penalty": 0.5},
        lambda n: [Frequency(n, 0.9, 0.5)],
    ),
    "rewards": ({"presence_penalty": -0.4, "frequency_penalty": -0.2}, lambda n: [Frequency(n, -0.4, -0.2)]),
    "bias": ({"logit_bias": {3: 4.0, 7: -100.0}}, lambda n: [SequenceBiasLogitsProcessor([[[3], 4.0], [[7], -100.0]])]),
    "bad words": (
        {"bad_words_ids": ((4,), (9, 2), (1, 8, 30))},
        lambda n: [NoBadWordsLogitsProcessor([[4], [9, 2], [1, 8, 30]])],
    ),
    "min tokens": ({"min_tokens": 7}, lambda n: [MinNewTokensLengthLogitsProcessor(n, 7, [EOS])]),
    "processor": ({"logits_processors": (Even(),)}, lambda n: [Even()]),
    "many": (
        {
            "logit_bias": {3: 1.0},
            "repetition_penalty": 1.2,
            "bad_words_ids": ((4,), (9, 2)),
            "min_tokens": 5,
            "logits_processors": (Even(),),
        },
        lambda n: [
            SequenceBiasLogitsProcessor([[[3], 1.0]]),
            RepetitionPenaltyLogitsProcessor(1.2),
            NoBadWordsLogitsProcessor([[4], [9, 2]]),
            MinNewTokensLengthLogitsProcessor(n, 5, [EOS]),
            Even(),
        ],
    ),
}
SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.05},
    {"temperature": 5.0, "top_k": 6},
    {"temperature": 0.9, "top_p": 0.8},
    {"temperature": 1.3, "min_p": 0.2},
    {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
]


def reference(model, prompt, processors, sampling, seed):
    return judged(model, prompt, COUNT, processors=processors, sampling=sampling, seed=seed, eos=frozenset({EOS}))


def proposers(model):
    draft = tiny_llama(seed=0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    wrong = Scripted(lambda row, limit: [(row.token_ids[-1] + step) % VOCAB for step in range(limit)])
    return [None, PromptLookup(1, 3), DraftModel(draft), wrong]


@pytest.mark.parametrize("name", CASES)
def test_greedy_and_coupled_tokens_are_the_judges(name: str) -> None:
    options, processors = CASES[name]
    model = tiny_llama()
    for sampling in (SAMPLING[0], SAMPLING[1], SAMPLING[6]):
        expected = [reference(model, prompt, processors(len(prompt)), sampling, 3) for prompt in PROMPTS]
        for proposer in proposers(model):
            decoder = make_decoder(model, proposer, k=4, slots=2, accept=coupled, draw=draw_shared)
            rows = [
                make_row(prompt, COUNT, request_id=index, eos={EOS}, seed=3, **options, **sampling)
                for index, prompt in enumerate(PROMPTS)
            ]
            assert run(decoder, *rows) == expected


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_what_shapes_the_law_gives_the_judges_tokens(sampling: dict[str, float]) -> None:
    model = tiny_llama()
    expected = [reference(model, prompt, [], sampling, 8) for prompt in PROMPTS]
    for proposer in proposers(model):
        decoder = make_decoder(model, proposer, k=5, slots=3, accept=coupled, draw=draw_shared)
        rows = [
            make_row(prompt, COUNT, request_id=index, eos={EOS}, seed=8, **sampling)
            for index, prompt in enumerate(PROMPTS)
        ]
        assert run(decoder, *rows) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_under_the_same_parameters_is_accepted_whole(temperature: float) -> None:
    """The target as its own draft: anything applied to one of the two laws only would show as a rejection."""
    model = tiny_llama()
    options = CASES["many"][0] | {"frequency_penalty": 0.3, "top_p": 0.9}
    row = make_row(PROMPTS[0], 60, temperature=temperature, seed=5, **options)
    run(make_decoder(model, DraftModel(tiny_llama()), k=4), row)
    assert sum(item.num_proposed for item in row.rounds) > 20
    assert all(item.num_proposed == item.num_accepted for item in row.rounds)


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_logprobs_are_the_targets_one_per_token(mode: str) -> None:
    model = tiny_llama()
    sampling = {"temperature": 0.8, "top_k": 5}
    for proposer in proposers(model):
        row = make_row(PROMPTS[0], COUNT, seed=2, logprobs=3, logprobs_mode=mode, **sampling)
        (tokens,) = run(make_decoder(model, proposer, k=4), row)
        assert len(row.logprobs) == len(row.top_logprobs) == len(tokens)
        for place, token_id in enumerate(tokens):
            ids = torch.tensor([PROMPTS[0] + tokens[:place]])
            with torch.inference_mode():
                scores = model(input_ids=ids, use_cache=False).logits[:, -1]
            if mode == "processed":
                scores = LogitsProcessorList(warpers(**sampling))(ids, scores)
            expected = scores[0].log_softmax(-1)
            assert row.logprobs[place] == pytest.approx(expected[token_id].item(), abs=1e-9)
            best = expected.topk(3)
            assert list(row.top_logprobs[place]) == best.indices.tolist()
            assert list(row.top_logprobs[place].values()) == pytest.approx(best.values.tolist(), abs=1e-9)


def test_penalties_are_exact_to_the_last_bits_of_float64() -> None:
    row = make_row([5, 9], COUNT, presence_penalty=0.7, frequency_penalty=0.6, temperature=1.0)
    row.token_ids += [3, 3, 8]
    logits = torch.zeros(1, 1, VOCAB, dtype=torch.float64)
    law = token_law(logits, [row.params], [row.prefix()])[0, 0]
    assert (law[3] / law[0]).log().item() == pytest.approx(-1.9, abs=1e-14)
    assert (law[8] / law[0]).log().item() == pytest.approx(-1.3, abs=1e-14)


def fails(input_ids, scores):
    if input_ids.shape[1] > 9:
        raise RuntimeError("not this far")
    return scores


def forbids_all(input_ids, scores):
    return scores if input_ids.shape[1] <= 9 else torch.full_like(scores, -torch.inf)


@pytest.mark.parametrize(("processor", "reason"), [(fails, "not this far"), (forbids_all, "no token is allowed")])
def test_a_processor_that_fails_ends_its_own_request_only(processor, reason: str) -> None:
    model = tiny_llama()
    (free,) = run(make_decoder(model), make_row(PROMPTS[1], COUNT))
    for proposer in proposers(model):
        broken = make_row(PROMPTS[0], COUNT, request_id=0, logits_processors=(processor,))
        other = make_row(PROMPTS[1], COUNT, request_id=1)
        run(make_decoder(model, proposer, k=4, slots=2), broken, other)
        assert broken.finish_reason == "error" and reason in broken.error
        assert len(broken.generated) == 3
        assert other.generated == free


def test_min_tokens_holds_stop_strings_back() -> None:
    model = tiny_llama()
    (truth,) = run(make_decoder(model), make_row(PROMPTS[0], COUNT))
    stop = chr(256 + truth[2])
    for proposer in proposers(model):
        row = make_row(PROMPTS[0], COUNT, stop=(stop,), min_tokens=6)
        (tokens,) = run(make_decoder(model, proposer, k=4), row)
        ends = [at for at, token_id in enumerate(truth) if token_id == truth[2] and at >= 5]
        expected = truth[: ends[0] + 1] if ends else truth
        assert tokens == expected
        assert len(row.stop.text(tokens)) == len(expected) - bool(ends)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"typical_p": 0.9}, "typical_p"),
        ({"echo": True}, "echo"),
        ({"num_beams": 2}, "num_beams"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"bad_words_ids": ((),)}, "bad word"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SamplingParams(**values)
