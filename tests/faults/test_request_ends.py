"""Faults where a block is longer than what the request or a model still has room for."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from draftproof.errors import PromptError
from draftproof.proposers import DraftModel, EarlyExit, FirstOf, PromptLookup
from draftproof.sampling.accept import rejection
from draftproof.sampling.coupled import coupled
from draftproof.sampling.draw import draw_alone, draw_shared
from support.toy_engines import ask, make_engine, noisy_copy
from support.toy_models import VOCAB, Scripted, judge, letters, make_decoder, make_row, run, tiny_llama

pytestmark = pytest.mark.usefixtures("short_self_test")

PROMPT = [3, 4, 5, 3, 4, 5, 3, 4]
K = 4
FULL = K + 2


def learned_positions(size: int, seed: int = 0) -> GPT2LMHeadModel:
    """A model that has a row for each of its positions, and fails at the next one."""
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=size, initializer_range=0.3)
    return GPT2LMHeadModel(config).double().eval()


def short_draft() -> DraftModel:
    """Its last position is two tokens after the prompt's end."""
    return DraftModel(learned_positions(len(PROMPT) + 2, 1))


PROPOSERS = {
    "prompt-lookup": lambda model: PromptLookup(1, 3),
    "the target as its own draft": DraftModel,
    "another draft": lambda model: DraftModel(noisy_copy(model)),
    "a draft of fewer positions": lambda model: short_draft(),
    "early-exit": lambda model: EarlyExit(1),
    "first-of": lambda model: FirstOf(PromptLookup(2, 3), short_draft()),
}


@pytest.fixture(scope="module")
def truth() -> list[int]:
    return judge(tiny_llama(), PROMPT, 24)


def rounds_fit(row, room: int) -> bool:
    """No round drafted more than what was left less the token that follows in any case."""
    left = room
    for item in row.rounds:
        if item.num_proposed >= left:
            return False
        left -= item.emitted
    return left == 0


@pytest.mark.parametrize("kind", PROPOSERS)
def test_every_proposer_ends_at_max_tokens_and_at_the_context_limit(kind: str, truth: list[int]) -> None:
    """B78, B139, B141: 1 to K + 2 tokens left, by the request or by the context; the judge's tokens up to there."""
    model = tiny_llama()
    decoder = make_decoder(model, PROPOSERS[kind](model), K, slots=2, max_len=len(PROMPT) + FULL)
    for left in range(1, FULL + 1):
        row = make_row(PROMPT, left)
        assert run(decoder, row) == [truth[:left]]
        assert row.finish_reason == "length" and rounds_fit(row, left)
    engine = make_engine(model, proposer=PROPOSERS[kind](model), max_len=len(PROMPT) + FULL)
    for size in range(len(PROMPT), len(PROMPT) + FULL):
        prompt = (PROMPT * 2)[:size]
        (completion,) = engine.generate([prompt], ask(50))
        assert list(completion.token_ids) == judge(model, prompt, engine.max_len - size)
        assert completion.finish_reason == "length" and completion.error is None
        assert all(item.draft_error is None for item in completion.rounds)
    with pytest.raises(PromptError, match="context limit"):
        engine.generate([PROMPT * 2], ask(1))


@pytest.mark.parametrize("target_size", [24, 64])
@pytest.mark.parametrize("draft_size", [10, 16, 64])
def test_neither_model_is_asked_for_a_position_that_it_does_not_have(target_size: int, draft_size: int) -> None:
    """B139, B141, B147: learned positions on both sides, a short and a long prompt side by side, up to the very end."""
    target, draft = learned_positions(target_size), learned_positions(draft_size, 1)
    with torch.no_grad():
        for mine, theirs in zip(draft.parameters(), target.parameters(), strict=True):
            size = min(len(mine), len(theirs))
            mine[:size] = theirs[:size]
    engine = make_engine(target, proposer=DraftModel(draft), max_batch=3)
    assert engine.max_len == target_size
    prompts = [[5, 9, 2], [7] * 12, [8] * (target_size - 1)]
    completions = engine.generate(prompts, ask(100))
    for prompt, completion in zip(prompts, completions, strict=True):
        assert list(completion.token_ids) == judge(target, prompt, target_size - len(prompt))
        assert all(item.draft_error is None for item in completion.rounds)
    drafted = [sum(item.num_proposed for item in completion.rounds) for completion in completions]
    # the same weights: accepted whole while the draft has positions, silent after that
    assert drafted[0] > 0 and (drafted[1] > 0) == (draft_size > 12) and drafted[2] == 0
    at = 0
    for item in completions[0].rounds:
        assert item.num_accepted == item.num_proposed <= max(0, draft_size - 3 - at)
        at += item.emitted


RULES = {"rejection": (rejection, draw_alone), "coupled": (coupled, draw_shared)}


@pytest.mark.parametrize("name", RULES)
def test_a_stop_inside_a_block_changes_neither_what_is_kept_nor_what_runs_beside_or_after(name: str) -> None:
    """B74, B76, B95: sampled, the draft accepted in part; what follows the stop leaves no trace."""
    rule, drawing = RULES[name]
    model = tiny_llama()
    decoder = make_decoder(model, DraftModel(noisy_copy(model)), K, slots=2, accept=rule, draw=drawing)

    def ask_for(number: int, **options):
        return make_row(PROMPT, 20, request_id=number, temperature=0.8, seed=number, **options)

    (free, beside), after = run(decoder, ask_for(1), ask_for(2)), run(decoder, ask_for(3))[0]
    ends = set()
    for offset in range(K + 2):
        options = {"eos": {free[offset]}} if offset % 2 else {"stop": (letters(free[offset : offset + 2]),)}
        rows = [ask_for(1, **options), ask_for(2), ask_for(3)]
        assert run(decoder, *rows) == [free[: rows[0].num_generated], beside, after]
        assert rows[0].finish_reason == "stop" and rows[0].num_generated <= offset + 2
        assert sum(chunk.num_tokens for chunk in rows[0].chunks) == rows[0].num_generated
        ends.add(rows[0].rounds[-1].next_token)
    # some ended inside their block and some with the block's own last token
    assert None in ends and len(ends) > 1


@pytest.mark.parametrize("min_tokens", [1, 4, 7, 8])
def test_min_tokens_counts_new_tokens_across_blocks(min_tokens: int, truth: list[int]) -> None:
    """B86: not the prompt's, and not rounds; the end that is drafted too early is refused in its place."""
    model, eos = tiny_llama(), truth[2]
    decoder = make_decoder(model, None)
    allowed = run(decoder, make_row(PROMPT, 20, eos={eos}, min_tokens=min_tokens))[0]
    assert len(allowed) >= min_tokens and eos not in allowed[: min_tokens - 1]
    # drafts the tokens of a request without an end, the end among them, and then those of this one
    for drafts in (truth, allowed):
        script = Scripted(lambda row, limit, drafts=drafts: drafts[row.num_generated : row.num_generated + limit])
        row = make_row(PROMPT, 20, eos={eos}, min_tokens=min_tokens)
        assert run(make_decoder(model, script, K), row) == [allowed]
