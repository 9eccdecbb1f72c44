"""Faults where two models, or a model and its tokenizer, do not have the same ids."""

import json

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from draftproof import Engine
from draftproof.engines.hf import HfEngine
from draftproof.errors import InputError, PromptError
from draftproof.proposers import DraftModel
from support.toy_engines import EOS, ask, make_engine, numbered_words
from support.toy_models import VOCAB, judge, make_decoder, make_row, run, tiny_llama

pytestmark = pytest.mark.usefixtures("short_self_test")

PROMPT = [3, 4, 5, 3, 4, 5]
K = 4


class Force:
    """This token at this place of the output."""

    def __init__(self, num_prompt: int, place: int, token_id: int) -> None:
        self.at, self.token_id = num_prompt + place, token_id

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] != self.at:
            return scores
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([self.token_id]), 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 1, K - 1, K, K + 1])
def test_a_token_that_the_draft_does_not_have_in_the_middle_of_a_request(place: int, temperature: float) -> None:
    """B43, B44: the target has 64 ids, the draft 60, and id 62 comes at each offset; the neighbour still drafts."""
    model, draft = tiny_llama(), tiny_llama(vocab=60)
    decoder = make_decoder(model, DraftModel(draft), K, slots=2)
    options = {"temperature": temperature, "seed": 2}
    forced = make_row(PROMPT, 14, request_id=0, logits_processors=(Force(len(PROMPT), place, 62),), **options)
    other = make_row(PROMPT, 14, request_id=1, **options)
    run(decoder, forced, other)
    assert forced.generated[place] == 62 and forced.error is None and len(forced.generated) == 14
    assert all(item.draft_error is None for row in (forced, other) for item in row.rounds)
    assert sum(item.num_proposed for item in other.rounds) > 0
    if temperature == 0.0:
        before = judge(model, PROMPT, place)
        assert forced.generated == [*before, 62, *judge(model, [*PROMPT, *before, 62], 13 - place)]


@pytest.mark.parametrize("make", [make_engine, lambda model, vocab: HfEngine(model, numbered_words(vocab), max_len=64)])
def test_ids_above_the_tokenizers_are_generated_and_have_no_text(make) -> None:
    """B43: a vocabulary that is padded above the tokenizer's 60 words."""
    engine = make(tiny_llama(), vocab=60)
    (completion,) = engine.generate([PROMPT], ask(5, allowed_token_ids=(62, 63), stop="never"))
    assert set(completion.token_ids) <= {62, 63} and len(completion.token_ids) == 5 and completion.text == ""


@pytest.mark.parametrize("make", [make_engine, lambda model, vocab: HfEngine(model, numbered_words(vocab), max_len=64)])
def test_a_word_that_the_model_has_no_row_for_is_refused_where_it_is_given(make) -> None:
    """B45: the tokenizer has one word more than the model; not an error from deep inside the embedding."""
    engine = make(tiny_llama(), vocab=VOCAB + 1)
    with pytest.raises(PromptError, match=r"outside 0\.\.63"):
        engine.generate(["w03 w64"], ask(4))
    for name, value in {"stop_token_ids": (64,), "allowed_token_ids": (3, 64)}.items():
        with pytest.raises(InputError, match=f"{name} holds 64"):
            engine.generate(["w03"], ask(4, **{name: value}))
    assert len(engine.generate(["w03"], ask(4))[0].token_ids) == 4


@pytest.mark.parametrize("ends", [-1, [-1], [5, -1], VOCAB + 5, [VOCAB + 5]])
def test_an_end_that_is_no_id_ends_nothing_and_bans_nothing(ends) -> None:
    """B86: configurations say -1 for none, and an index of -1 is the last entry; others name ids that are not there."""
    model = tiny_llama()
    model.generation_config.eos_token_id = ends
    engine = make_engine(model)
    last = ask(6, ignore_eos=False, min_tokens=3, logit_bias={VOCAB - 1: 500.0})
    assert engine.generate([PROMPT], last)[0].token_ids == (VOCAB - 1,) * 6
    # the tokenizer's own end still is one
    first = ask(6, ignore_eos=False, logit_bias={EOS: 500.0})
    assert engine.generate([PROMPT], first)[0].token_ids == (EOS,)


def test_a_draft_whose_tokenizer_differs_in_what_changes_no_id_is_taken(tmp_path) -> None:
    """B47: another end, another chat template, a word more: the draft is fed the target's ids, never text."""
    model = tiny_llama(dtype=torch.float32)
    tokenizers = {"target": numbered_words(), "draft": numbered_words(VOCAB + 1)}
    tokenizers["draft"].chat_template = "{{ messages[0]['content'] }} w09"
    tokenizers["draft"].eos_token = "w08"
    for name, tokenizer in tokenizers.items():
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    config = tmp_path / "draft" / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token_id": 8}))
    engine = Engine.from_pretrained(
        str(tmp_path / "target"), proposer=DraftModel(str(tmp_path / "draft")), dtype="float64", max_len=64
    )
    chat = [{"role": "user", "content": "w03 w04"}]
    expected = judge(tiny_llama(dtype=torch.float32).double(), engine.encode(chat), 12)
    for eos in (8, expected[4]):
        (completion,) = engine.generate([chat], ask(12, ignore_eos=False, stop_token_ids=(eos,)))
        end = expected.index(eos) + 1 if eos in expected else 12
        assert list(completion.token_ids) == expected[:end]
        assert completion.speculation.draft_acceptance_rate == 1.0


def test_a_draft_of_another_architecture_is_loaded_by_its_own_configuration(tmp_path) -> None:
    """B145: neither sizes, nor the kind of model, nor its limit are the target's."""
    model = tiny_llama(dtype=torch.float32)
    torch.manual_seed(1)
    draft = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=1, n_head=2, n_positions=18))
    for name, each in {"target": model, "draft": draft}.items():
        each.save_pretrained(tmp_path / name)
        numbered_words().save_pretrained(tmp_path / name)
    engine = Engine.from_pretrained(
        str(tmp_path / "target"), proposer=DraftModel(str(tmp_path / "draft")), dtype="float64", max_len=64
    )
    assert type(engine.proposer.source) is GPT2LMHeadModel and engine.proposer.cached.max_len == 18
    (completion,) = engine.generate([PROMPT], ask(20))
    assert list(completion.token_ids) == judge(model.double(), PROMPT, 20)
    assert completion.speculation.num_draft_tokens > 0 and not any(item.draft_error for item in completion.rounds)
