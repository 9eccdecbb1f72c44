"""Numbers that are not finite: a draft's cost it one round's draft, and what ends drafting is told in the trace."""

import pytest
import torch

from draftproof.decoding.loop import MAX_DRAFT_FAILURES
from draftproof.proposers import CrossTokenizer, DraftModel, FirstOf, PromptLookup
from support.toy_engines import ask, make_engine, noisy_copy, numbered_words
from support.toy_models import Scripted, judge, tiny_llama

pytestmark = pytest.mark.usefixtures("short_self_test")

PROMPTS = [[5, 9, 2, 7, 5, 9, 2], [3, 4, 5]]
COUNT = 40


@pytest.fixture(scope="module")
def truths() -> list[list[int]]:
    return [judge(tiny_llama(), prompt, COUNT) for prompt in PROMPTS]


def break_pass(draft, number: int) -> None:
    """From here on, the draft's pass of this number, and no other, gives NaN and writes it into its cache."""
    passes = iter(range(1, 10**6))
    draft.model.embed_tokens.register_forward_hook(
        lambda module, inputs, output: output * torch.nan if next(passes) == number else output
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("kind", ["draft-model", "cross-tokenizer"])
def test_one_broken_pass_costs_a_draft_model_one_rounds_draft(
    kind: str, number: int, temperature: float, truths: list[list[int]]
) -> None:
    """The target is its own draft, so that every other drafted token is accepted."""
    draft = noisy_copy(tiny_llama(), 0.0)
    proposer = DraftModel(draft) if kind == "draft-model" else CrossTokenizer(draft, numbered_words())
    engine = make_engine(proposer=proposer, max_batch=2)
    break_pass(draft, number)
    done = engine.generate(PROMPTS, ask(COUNT, temperature=temperature))
    for completion, truth in zip(done, truths, strict=True):
        if temperature == 0.0:
            assert list(completion.token_ids) == truth
        assert all(item.num_accepted == item.num_proposed for item in completion.rounds)
        short = [item for item in completion.rounds[:-1] if item.num_proposed < engine.num_speculative_tokens]
        assert len(short) <= 1 and all("not finite" in item.draft_error for item in short if not item.num_proposed)


def test_tokens_that_were_drawn_before_a_broken_pass_are_kept() -> None:
    """Dropping them would be to choose by what was drawn: the broken token is its own cause."""
    draft = noisy_copy(tiny_llama(), 0.05)
    with torch.no_grad():
        draft.model.embed_tokens.weight[4] = torch.nan
    engine = make_engine(proposer=DraftModel(draft))
    params = ask(12, temperature=1.0, logit_bias={4: 3.0}, bad_words_ids=((4,),))
    done = [
        engine.generate([PROMPTS[0]], params.model_copy(update={"bad_words_ids": (), "seed": seed}))[0]
        for seed in range(12)
    ]
    rounds = [item for completion in done for item in completion.rounds]
    assert any(0 < item.num_proposed < engine.num_speculative_tokens for item in rounds)


def test_a_draft_that_is_always_broken_is_told_of_and_then_left_alone(truths: list[list[int]]) -> None:
    draft = noisy_copy(tiny_llama(), 0.0)
    engine = make_engine(proposer=DraftModel(draft))
    with torch.no_grad():
        draft.lm_head.weight.fill_(torch.nan)
    first, second = (engine.generate([prompt], ask(COUNT))[0] for prompt in PROMPTS)
    assert [list(first.token_ids), list(second.token_ids)] == truths
    reasons = [item.draft_error for item in first.rounds]
    assert reasons[:MAX_DRAFT_FAILURES] == ["ValueError: the draft's logits are not finite"] * MAX_DRAFT_FAILURES
    # and whoever comes later is told, too; the last round has no room for a draft
    assert all("drafting stopped after" in item.draft_error for item in second.rounds[:-1])
    asked_for_none = engine.generate([PROMPTS[1]], ask(COUNT), speculate=False)[0]
    assert all(item.draft_error is None for item in asked_for_none.rounds)


def test_a_drafted_token_that_breaks_the_targets_block_is_in_the_trace() -> None:
    model = tiny_llama()
    truth = judge(model, PROMPTS[0], COUNT)
    unused = next(token_id for token_id in range(2, 64) if token_id not in truth + PROMPTS[0])
    with torch.no_grad():
        model.model.embed_tokens.weight[unused] = torch.nan
    script = Scripted(lambda row, limit: [*truth[row.num_generated :][:1], unused] if row.num_generated == 5 else [])
    (done,) = make_engine(model, proposer=script).generate([PROMPTS[0]], ask(COUNT, logprobs=0))
    assert list(done.token_ids) == truth and len(done.logprobs) == COUNT
    (broken,) = [item for item in done.rounds if item.draft_error]
    assert (broken.num_proposed, broken.num_accepted, broken.emitted) == (2, 0, 0)
    assert "goes on target-only" in broken.draft_error
    assert done.speculation is not None and done.speculation.num_draft_tokens == 2
    assert sum(item.emitted for item in done.rounds) == sum(chunk.num_tokens for chunk in done.chunks) == COUNT
    assert all(chunk.num_tokens for chunk in done.chunks)


def test_each_of_several_proposers_is_released_even_where_one_fails_to() -> None:
    class Stuck(PromptLookup):
        def release(self, slot: int) -> None:
            raise RuntimeError("stuck")

    draft = DraftModel(noisy_copy(tiny_llama()))
    engine = make_engine(proposer=FirstOf(Stuck(4, 4), draft))
    engine.generate([PROMPTS[0]], ask(8))
    assert draft.cached.row_len == [0]
    assert not any(
        tensor[:, :, : draft.cached.max_len].any() for layer in draft.cached.store._slots for tensor in layer.tensors()
    )
