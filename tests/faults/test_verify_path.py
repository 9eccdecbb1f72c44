"""Faults of the pass over a whole block: nothing but a judge that has no blocks can see them."""

import pytest
import torch

from draftproof.decoding.model import CachedModel
from draftproof.decoding.shapes import measure_shapes
from draftproof.proposers import PromptLookup
from support.toy_models import Scripted, judge, make_decoder, make_row, run, tiny_llama

PROMPT, COUNT = [5, 9, 2, 7, 5, 9, 2], 16


@pytest.fixture
def biased_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One logit is off by 0.15, in passes with more than one token of a row and nowhere else."""
    original = CachedModel.run

    def biased(self, first, end, blocks, *args, **options):
        logits = original(self, first, end, blocks, *args, **options)
        if options.get("logits", True) and max(map(len, blocks.values())) > 1:
            logits[..., 7] += 0.15
        return logits

    monkeypatch.setattr(CachedModel, "run", biased)


def test_a_bias_of_blocks_alone_is_not_taken_for_rounding(biased_blocks: None) -> None:
    """B4, B5: the engine measures blocks against single tokens at load, and its claim is gone."""
    cached = CachedModel(tiny_llama(), num_slots=1, max_len=64, block=5)
    measured = measure_shapes(cached)
    assert measured.claim == "up_to_ties" and measured.noise == pytest.approx(0.15)


def test_block_sizes_that_agree_with_one_another_prove_nothing() -> None:
    """B13, B16, B17: K = 2 and K = 5 give the same wrong tokens; only the plain loop tells."""
    model = tiny_llama()
    truth = judge(model, PROMPT, COUNT)
    unlikely = next(token for token in range(64) if token not in truth)

    def outputs(k: int, bias: float) -> list[int]:
        decoder = make_decoder(model, Scripted(lambda row, limit: [unlikely] * limit), k)
        score = decoder.target.score

        def scored(blocks):
            logits = score(blocks)
            if max(map(len, blocks.values())) > 1:
                logits = logits + bias * torch.linspace(0, 1, 64, dtype=torch.float64)
            return logits

        decoder.target.score = scored
        return run(decoder, make_row(PROMPT, COUNT))[0]

    assert outputs(2, 0.0) == outputs(5, 0.0) == truth
    assert outputs(2, 4.0) == outputs(5, 4.0) != truth


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("size", [2, 5])
def test_a_prompt_that_repeats_itself_to_its_end_is_a_prompt_like_another(k: int, size: int) -> None:
    """B9: the looked-up words reach the prompt's own end, and beyond it the text that is being generated."""
    model, prompt = tiny_llama(), [11, 12, 13] * 16
    row = make_row(prompt, COUNT)
    assert run(make_decoder(model, PromptLookup(size, 5), k), row) == [judge(model, prompt, COUNT)]
    assert row.rounds[0].num_proposed == k
