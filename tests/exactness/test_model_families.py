"""Each model family, eager and SDPA, gives the judge's tokens; docs/models.md has a row for each, held here."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    JambaConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
)

from draftproof.decoding.proposers.early_exit import EarlyExit
from draftproof.decoding.proposers.prompt_lookup import PromptLookup
from draftproof.errors import ModelError
from support.toy_models import VOCAB, judge, make_decoder, make_row, run

PROMPTS = [[5, 9, 2, 7, 5, 9, 2], [1], list(range(1, 41))]
LLAMA_LIKE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
OLDER = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}
# name: (config, attention kernels, has early exit)
FAMILIES = {
    "Llama": (LlamaConfig(**LLAMA_LIKE), ("sdpa", "eager"), True),
    "Qwen2": (Qwen2Config(**LLAMA_LIKE), ("sdpa", "eager"), True),
    "Qwen2, mixed windows": (
        Qwen2Config(**LLAMA_LIKE, use_sliding_window=True, sliding_window=8, max_window_layers=1),
        ("sdpa", "eager"),
        True,
    ),
    "Qwen3": (Qwen3Config(**LLAMA_LIKE, head_dim=8), ("sdpa", "eager"), True),
    "Mistral, sliding window": (MistralConfig(**LLAMA_LIKE, sliding_window=8), ("sdpa", "eager"), True),
    "Mistral": (MistralConfig(**LLAMA_LIKE, sliding_window=None), ("sdpa", "eager"), True),
    "Gemma 2": (Gemma2Config(**LLAMA_LIKE, head_dim=8, sliding_window=8, query_pre_attn_scalar=8), ("eager",), True),
    "Gemma 3, mixed windows": (
        Gemma3TextConfig(**LLAMA_LIKE, head_dim=8, sliding_window=8, sliding_window_pattern=2, query_pre_attn_scalar=8),
        ("sdpa", "eager"),
        True,
    ),
    "GPT-2": (
        GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=256, initializer_range=0.3),
        ("sdpa", "eager"),
        False,
    ),
    "GPT-NeoX": (GPTNeoXConfig(**OLDER, intermediate_size=64, max_position_embeddings=512), ("sdpa", "eager"), False),
    "Phi": (PhiConfig(**{**LLAMA_LIKE, "num_key_value_heads": 4}), ("sdpa", "eager"), True),
    "Falcon": (FalconConfig(**OLDER, max_position_embeddings=512, alibi=False), ("sdpa", "eager"), False),
}
REFUSED = {
    "Falcon with alibi": (FalconConfig(**OLDER, alibi=True), "mask"),
    "Bloom": (BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=3, n_head=4), "mask"),
    "Mamba": (MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2), "rolled back"),
    "Jamba": (
        JambaConfig(**LLAMA_LIKE, attn_layer_period=2, attn_layer_offset=1),
        "rolled back",
    ),
    "Llama 4": (Llama4TextConfig(**LLAMA_LIKE, head_dim=8, num_local_experts=2, attention_chunk_size=8), "chunked"),
    "Bart": (BartConfig(vocab_size=VOCAB, d_model=32, encoder_layers=1, decoder_layers=1), "encoder-decoder"),
}


def build(config, attention):
    torch.manual_seed(0)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return kind.from_config(config, attn_implementation=attention).double().eval()


@pytest.mark.parametrize(
    ("name", "attention"), [(name, kernel) for name, (_, kernels, _) in FAMILIES.items() for kernel in kernels]
)
def test_a_family_gives_the_judges_tokens(name: str, attention: str) -> None:
    model = build(FAMILIES[name][0], attention)
    expected = [judge(model, prompt, 30) for prompt in PROMPTS]
    proposers = [None, PromptLookup(1, 3)] + ([EarlyExit(1)] if FAMILIES[name][2] else [])
    for proposer in proposers:
        rows = [make_row(prompt, 30, request_id=index) for index, prompt in enumerate(PROMPTS)]
        assert run(make_decoder(model, proposer, k=4, slots=2), *rows) == expected
        if proposer is not None:
            assert sum(item.num_accepted for row in rows for item in row.rounds) > 0


@pytest.mark.parametrize("name", [name for name, (_, _, early) in FAMILIES.items() if not early])
def test_early_exit_is_refused_where_the_model_runs_all_layers(name: str) -> None:
    with pytest.raises(ModelError, match="always runs all of its layers"):
        make_decoder(build(FAMILIES[name][0], "eager"), EarlyExit(1))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_rolled_back_is_refused_by_name(name: str) -> None:
    config, reason = REFUSED[name]
    model = build(config, "eager")
    with pytest.raises(ModelError, match=reason) as refusal:
        make_decoder(model)
    assert type(model).__name__ in str(refusal.value)


def test_a_model_without_a_head_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="LlamaModel has no language model head"):
        make_decoder(AutoModel.from_config(FAMILIES["Llama"][0]))


def test_a_model_that_computes_something_else_through_a_cache_is_refused() -> None:
    """The self-test's last line: no error, no odd cache, but other logits."""
    model = build(FAMILIES["Llama"][0], "sdpa")
    forward = model.forward

    def position_blind(*args, position_ids=None, **kwargs):
        return forward(*args, position_ids=None if position_ids is None else position_ids * 0, **kwargs)

    model.forward = position_blind
    with pytest.raises(ModelError, match="computes something else"):
        make_decoder(model)


def test_the_documentation_has_a_row_for_each_family() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    for name in [*FAMILIES, *REFUSED]:
        assert f"| {name} |" in text
