"""Faults of what a request changes in the law, where a block has many tokens and the code was written for one."""

import itertools

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from draftproof.engines.hf import HfEngine
from draftproof.engines.prompts import ENGINE_SPECIFIC
from draftproof.errors import InputError
from draftproof.request import SamplingParams
from draftproof.sampling import adjust
from draftproof.sampling.coupled import coupled
from support.oracles import judged, warpers
from support.toy_engines import ask, make_engine, numbered_words
from support.toy_models import VOCAB, Scripted, judge, make_decoder, make_row, run, tiny_llama

pytestmark = pytest.mark.usefixtures("short_self_test")

PROMPT = [5, 9, 2, 7, 5, 9, 2]
K, COUNT, EOS = 4, 20, 11


class Counted:
    """Presence and frequency penalties as a plain count of what was generated."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for token_id in input_ids[0, len(PROMPT) :].tolist():
            scores[0, token_id] -= 0.5
        for token_id in set(input_ids[0, len(PROMPT) :].tolist()):
            scores[0, token_id] -= 0.9
        return scores


class Other:
    """A user's own: never the last token again."""

    def __call__(self, input_ids, scores):
        return scores.index_fill(1, input_ids[0, -1:], -torch.inf)


PENALTIES = {
    "repetition": ({"repetition_penalty": 1.5}, [RepetitionPenaltyLogitsProcessor(1.5)]),
    "presence and frequency": ({"presence_penalty": 0.9, "frequency_penalty": 0.5}, [Counted()]),
}
BANS = {
    "bias": ({"logit_bias": {13: -100.0}}, [SequenceBiasLogitsProcessor([[[13], -100.0]])], 13),
    "bad word of two tokens": ({"bad_words_ids": ((13,), (9, 2))}, [NoBadWordsLogitsProcessor([[13], [9, 2]])], 13),
    "end below the minimum": (
        {"min_tokens": COUNT},
        [MinNewTokensLengthLogitsProcessor(len(PROMPT), COUNT, [EOS])],
        EOS,
    ),
    "processor": ({"logits_processors": (Other(),)}, [Other()], None),
}


def drafts(truth: list[int], wrong_at: int | None = None, wrong: int | None = None) -> Scripted:
    """The right tokens; at one offset of each block ``wrong`` instead, or (None) the token before again."""

    def script(row, limit):
        block = truth[row.num_generated : row.num_generated + limit]
        if wrong_at is not None and wrong_at < len(block):
            before = [row.token_ids[-1], *block][wrong_at]
            block[wrong_at] = before if wrong is None else wrong
        return block

    return Scripted(script)


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_count_every_token_of_a_block_however_many_are_accepted(name: str) -> None:
    """B81, B82: severity neither grows nor falls with acceptance, and a rejected draft counts as if it had not been."""
    options, processors = PENALTIES[name]
    model = tiny_llama()
    truth = judged(model, PROMPT, COUNT, processors=processors)
    assert truth != judge(model, PROMPT, COUNT)
    for wrong_at, wrong in ((None, None), (0, None), (1, PROMPT[0]), (K - 1, None)):
        row = make_row(PROMPT, COUNT, **options)
        assert run(make_decoder(model, drafts(truth, wrong_at, wrong), K), row) == [truth]
        if wrong_at is None:
            assert all(item.num_accepted == item.num_proposed for item in row.rounds)
            assert max(item.num_accepted for item in row.rounds) == K


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_that_see_one_token_a_round_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """B81: the same comparison, with penalties that look at committed tokens only."""
    options, processors = PENALTIES[name]
    model, counts = tiny_llama(), adjust._counts
    truth = judged(model, PROMPT, COUNT, processors=processors)
    monkeypatch.setattr(adjust, "_counts", lambda token_ids, draft, *rest: counts(token_ids, [], *rest))
    assert run(make_decoder(model, drafts(truth), K), make_row(PROMPT, COUNT, **options)) != [truth]


@pytest.mark.parametrize("name", BANS)
@pytest.mark.parametrize("offset", range(K))
def test_a_forbidden_draft_is_refused_at_every_offset(name: str, offset: int) -> None:
    """B84, B85, B86: and what comes in its place is the judge's; sampled, it never comes at all."""
    options, processors, forbidden = BANS[name]
    model = tiny_llama()
    truth = judged(model, PROMPT, COUNT, processors=processors)
    decoder = make_decoder(model, drafts(truth, offset, forbidden), K, slots=4)
    rows = [
        make_row(PROMPT, COUNT, request_id=seed, seed=seed, temperature=temperature, eos={EOS}, **options)
        for seed, temperature in enumerate([0.0, 1.0, 1.0, 3.0])
    ]
    outputs = run(decoder, *rows)
    assert outputs[0] == truth
    assert all(item.num_accepted <= offset for item in rows[0].rounds)
    for output in outputs:
        if forbidden is None:
            assert all(one != other for one, other in zip([PROMPT[-1], *output], output, strict=False))
        else:
            assert forbidden not in (output[:-1] if name.startswith("end") else output)
        if name.startswith("bad"):
            assert all(pair != (9, 2) for pair in itertools.pairwise(output))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_accepted_corrected_and_bonus_tokens_all_have_the_targets_logprob(temperature: float, mode: str) -> None:
    """B91: one for each token, also of a block that was cut; never 0 for a point mass, never the draft's."""
    model = tiny_llama()
    sampling = {"temperature": temperature, "top_k": 20} if temperature else {"temperature": 0.0}
    options = {"seed": 4, "logprobs": 2, "logprobs_mode": mode, "repetition_penalty": 1.2, **sampling}
    (plain,) = run(make_decoder(model, None, K, accept=coupled), make_row(PROMPT, COUNT, **options))
    sources = set()
    for eos in (None, plain[6], plain[8]):
        # right in every other block
        script = Scripted(
            lambda row, limit: [
                (token + len(row.rounds) % 2) % VOCAB for token in plain[row.num_generated : row.num_generated + limit]
            ]
        )
        row = make_row(PROMPT, COUNT, eos={eos} - {None}, **options)
        (tokens,) = run(make_decoder(model, script, K, accept=coupled), row)
        assert len(row.logprobs) == len(row.top_logprobs) == len(tokens)
        sources |= {item.next_token for item in row.rounds} | {"accepted" for item in row.rounds if item.num_accepted}
        for place, token_id in enumerate(tokens):
            ids = torch.tensor([PROMPT + tokens[:place]])
            with torch.inference_mode():
                scores = model(input_ids=ids, use_cache=False).logits[:, -1]
            if mode == "processed":
                chain = [RepetitionPenaltyLogitsProcessor(1.2), *warpers(**sampling)]
                scores = LogitsProcessorList(chain)(ids, scores)
                if not temperature:
                    scores = torch.full_like(scores, -torch.inf).index_fill(1, scores[0].argmax()[None], 0.0)
            assert row.logprobs[place] == pytest.approx(scores[0].log_softmax(-1)[token_id].item(), abs=1e-9)
    assert {"accepted", "correction", "bonus"} <= sources


# what would be ignored

ASKS = {
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {3: 1.0},
    "bad_words_ids": ((3,),),
    "min_tokens": 2,
    "n": 2,
    "logits_processors": (Other(),),
    "logprobs": 1,
    "logprobs_mode": "processed",
}


@pytest.mark.parametrize("name", ASKS)
def test_what_an_engine_cannot_honour_is_refused_and_never_ignored(name: str) -> None:
    """B84, B85, B90: transformers' own loop takes fewer parameters than ours."""
    engine = HfEngine(tiny_llama(), numbered_words(), max_len=64)
    assert name in ENGINE_SPECIFIC
    with pytest.raises(InputError, match=f"{name} cannot be honoured by engine 'transformers'"):
        engine.generate([PROMPT, PROMPT], [ask(4), ask(4, **{name: ASKS[name]})])


def test_every_parameter_is_honoured_refused_or_tested_above() -> None:
    """B85: a parameter that is added later is missed here until somebody says what becomes of it."""
    honoured = {"max_tokens", "temperature", "top_k", "top_p", "seed", "stop", "stop_token_ids", "ignore_eos"}
    assert set(SamplingParams.model_fields) - honoured - {"allowed_token_ids"} == set(ENGINE_SPECIFIC)


@pytest.mark.parametrize("call", ["stream", "submit"])
def test_several_completions_are_refused_where_one_is_returned(call: str) -> None:
    """B85: n > 1 must not quietly become 1."""
    engine = make_engine()
    with pytest.raises(InputError, match=f"n = 3: {call} takes one"):
        list(engine.stream(PROMPT, ask(4, n=3))) if call == "stream" else engine.submit(PROMPT, ask(4, n=3))
    assert len(engine.generate([PROMPT], ask(4, n=3))) == 3
