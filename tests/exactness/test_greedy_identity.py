"""Greedy speculative output is the target's own output, token for token."""

import pytest
import torch

from draftproof.decoding.proposers.draft_model import DraftModel
from draftproof.decoding.proposers.prompt_lookup import PromptLookup
from support.toy_models import VOCAB, Scripted, judge, make_decoder, make_row, run, tiny_llama

PROMPTS = [[5, 9, 2, 7, 5, 9, 2], [1], list(range(1, 41)), [3] * 70, [8, 8, 1, 8, 8, 1, 8]]


def worst(model):
    """A proposer of the target's least likely token."""

    def script(row, limit):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([row.token_ids]), use_cache=False).logits[0, -1]
        return [int(logits.argmin())] * limit

    return Scripted(script)


def nearly(model, seed=7, scale=0.05):
    """A draft that agrees with the target most of the time: its weights plus a little noise."""
    torch.manual_seed(seed)
    draft = tiny_llama(0, model.dtype)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return draft


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_proposer_gives_the_judges_tokens_in_float64(k, attention):
    model = tiny_llama(attention=attention)
    expected = [judge(model, prompt, 24) for prompt in PROMPTS]
    for proposer in (None, PromptLookup(1, 3), DraftModel(nearly(model)), worst(model)):
        decoder = make_decoder(model, proposer, k, slots=2)
        rows = [make_row(prompt, request_id=index) for index, prompt in enumerate(PROMPTS)]
        assert run(decoder, *rows) == expected


@pytest.mark.parametrize("k", [1, 3, 5])
def test_bfloat16_batches_and_drafts_equal_the_solo_target_only_arm(k):
    model = tiny_llama(3, torch.bfloat16)
    solo = make_decoder(model, None, k)
    expected = [run(solo, make_row(prompt, 40))[0] for prompt in PROMPTS]
    for proposer in (None, PromptLookup(1, 3), DraftModel(nearly(model))):
        decoder = make_decoder(model, proposer, k, slots=4)
        rows = [make_row(prompt, 40, request_id=index) for index, prompt in enumerate(PROMPTS)]
        assert run(decoder, *rows) == expected


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_draft_accepts_everything(k, temperature):
    """In float64 a ratio can miss 1 by rounding only: false alarm below 200 tokens x 1e-12."""
    model = tiny_llama()
    decoder = make_decoder(model, DraftModel(tiny_llama()), k, slots=2, max_len=256)
    rows = [make_row(prompt, 100, temperature=temperature, seed=4) for prompt in PROMPTS[:2]]
    run(decoder, *rows)
    rounds = [item for row in rows for item in row.rounds]
    assert sum(item.num_proposed for item in rounds) > 80
    assert all(item.num_accepted == item.num_proposed for item in rounds)


def test_the_worst_draft_is_never_accepted():
    model = tiny_llama()
    row = make_row(PROMPTS[0])
    run(make_decoder(model, worst(model)), row)
    assert sum(item.num_proposed for item in row.rounds) > 0
    assert all(item.num_accepted == 0 for item in row.rounds)


@pytest.mark.parametrize("accepted", range(5))
def test_rows_that_accept_different_counts_equal_their_solo_runs(accepted):
    model = tiny_llama()
    expected = {tuple(prompt): judge(model, prompt, 30) for prompt in PROMPTS[:3]}

    def script(row, limit):
        truth = expected[tuple(row.token_ids[: row.num_prompt])]
        right = (accepted + row.request_id) % 5
        ahead = truth[row.num_generated : row.num_generated + limit]
        return [token if at < right else (token + 1) % VOCAB for at, token in enumerate(ahead)]

    rows = [make_row(prompt, 30, request_id=index) for index, prompt in enumerate(PROMPTS[:3])]
    assert run(make_decoder(model, Scripted(script), 4, slots=3), *rows) == list(expected.values())
    assert rows[0].rounds[0].num_accepted == accepted


def test_switching_speculation_on_and_off_inside_a_request_changes_nothing():
    model = tiny_llama()
    expected = judge(model, PROMPTS[0], 40)
    decoder = make_decoder(model, DraftModel(nearly(model)), 4)
    row = make_row(PROMPTS[0], 40)
    decoder.submit(row)
    while row.finish_reason is None:
        row.speculate = len(row.rounds) % 3 != 1
        decoder.step()
    assert row.generated == expected


def test_a_long_sequence_crosses_the_edges_of_the_key_view_unchanged(monkeypatch):
    monkeypatch.setattr("draftproof.decoding.model.FIRST_KEY_LEN", 16)
    model = tiny_llama()
    expected = judge(model, PROMPTS[0], 80)
    for proposer in (None, PromptLookup(1, 3), DraftModel(tiny_llama())):
        assert run(make_decoder(model, proposer, 5), make_row(PROMPTS[0], 80)) == [expected]


def test_nan_left_in_a_slot_does_not_reach_the_next_request():
    model = tiny_llama()
    expected = judge(model, PROMPTS[0], 12)
    decoder = make_decoder(model, None)
    poisoned = make_row(PROMPTS[2], 12)
    decoder.submit(poisoned)
    decoder.step()
    for layer in decoder.target.store.layers:
        layer.keys[0, :, :20] = torch.nan
        layer.values[0, :, :20] = torch.nan
    decoder.step()
    assert poisoned.finish_reason == "error" and "not finite" in poisoned.error
    assert run(decoder, make_row(PROMPTS[0], 12)) == [expected]


def test_nan_under_a_rejected_draft_does_not_reach_the_next_round():
    model = tiny_llama()
    expected = judge(model, PROMPTS[0], 20)
    unused = next(token for token in range(VOCAB) if token not in expected + PROMPTS[0])
    with torch.no_grad():
        model.get_input_embeddings().weight = torch.nn.Parameter(model.get_input_embeddings().weight.clone())
        model.get_input_embeddings().weight[unused] = torch.nan
    script = Scripted(lambda row, limit: [unused] * limit if row.num_generated % 3 else [])
    assert run(make_decoder(model, script), make_row(PROMPTS[0], 20)) == [expected]


def test_a_request_with_the_prompt_of_a_running_one_equals_its_solo_run():
    model = tiny_llama(3, torch.bfloat16)
    solo = run(make_decoder(model, None), make_row(PROMPTS[2], 20))[0]
    for first, second in ((PROMPTS[2], PROMPTS[2]), (PROMPTS[2][:1], PROMPTS[2])):
        decoder = make_decoder(model, PromptLookup(1, 3), slots=2)
        rows = [make_row(prompt, 20, request_id=index) for index, prompt in enumerate((first, second))]
        decoder.submit(rows[0])
        decoder.step()
        decoder.submit(rows[1])
        decoder.run()
        assert rows[1].generated == solo
