"""Whatever was appended, taken back, copied or scrubbed: the logits are those of the plain model on what a slot holds."""

import random
import warnings

import pytest
import torch
import transformers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from draftproof.decoding.model import CachedModel, PassShapes
from draftproof.decoding.shapes import measure_shapes
from draftproof.errors import ModelError
from support.toy_models import VOCAB, tiny_llama

POISON = VOCAB - 1  # its embedding is NaN in the random runs


def plain(model, token_ids) -> torch.Tensor:
    """REF: the whole sequence at once, no cache; shape (T, V)."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]


def close(got: torch.Tensor, want: torch.Tensor, attention: str = "sdpa") -> bool:
    """Eager attention takes its softmax in float32, whatever the model's dtype."""
    bound = 1e-4 if attention == "eager" else 1e-9
    return bool(torch.allclose(got, want, rtol=bound, atol=bound))


def make(model=None, *, slots: int = 1, max_len: int = 64, block: int = 5) -> CachedModel:
    return CachedModel(tiny_llama() if model is None else model, num_slots=slots, max_len=max_len, block=block)


SHAPES = {
    "one by one": PassShapes(),
    "narrow plain passes": PassShapes(plain_alone=1, plain_group=2),
    "pairs": PassShapes(group=2, plain_group=1),
    "four, key lengths apart": PassShapes(group=4, plain_alone=2, plain_group=2),
    "four, key lengths together": PassShapes(group=4, plain_alone=2, plain_group=1, key_lens_agree=True),
}


def mixed_windows(attention: str) -> Qwen2ForCausalLM:
    """One layer attends to everything, the other to the last eight tokens."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
    )
    config._attn_implementation = attention
    return Qwen2ForCausalLM(config).double().eval()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("kind", "attention"), [("full", "eager"), ("full", "sdpa"), ("windows", "sdpa")])
def test_a_random_history_of_five_slots_always_gives_the_plain_models_logits(
    name: str, kind: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, blocks of any size in any order, roll-backs, copies, releases, and values that are not numbers."""
    monkeypatch.setattr("draftproof.decoding.model.FIRST_KEY_LEN", 16)
    monkeypatch.setattr("draftproof.decoding.model.PREFILL_CHUNK", 32)
    rng = random.Random(f"{name} {kind} {attention}")
    model = tiny_llama(attention=attention) if kind == "full" else mixed_windows(attention)
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = torch.nan
    cached = make(model, slots=5, max_len=60)
    cached.shapes = SHAPES[name]
    held: list[list[int]] = [[] for _ in range(5)]

    def some(count: int) -> list[int]:
        return [rng.randrange(POISON) for _ in range(count)]

    for _ in range(60):
        action, slot = (
            rng.choice(["score"] * 6 + ["prefill", "take back", "copy", "release", "poison"]),
            rng.randrange(5),
        )
        if action == "prefill":
            new = some(rng.randrange(min(40, 60 - len(held[slot])) + 1))
            cached.prefill(slot, new)
            held[slot] += new
        elif action == "take back":
            count = rng.randrange(min(4, len(held[slot])) + 1)
            cached.roll_back(slot, count)
            del held[slot][len(held[slot]) - count :]
        elif action == "copy":
            cached.release(slot)
            source = rng.choice([other for other in range(5) if other != slot])
            held[slot] = held[source][: rng.randrange(len(held[source]) + 1)]
            cached.fork(source, slot, len(held[slot]))
        elif action == "release":
            cached.release(slot)
            held[slot] = []
        else:
            able = [other for other in range(5) if len(held[other]) + 5 <= 60]
            chosen = rng.sample(able, rng.randrange(1, len(able) + 1)) if able else []
            blocks = {other: some(rng.choice([1, 1, 2, 5])) for other in chosen}
            if action == "poison" and chosen:
                blocks[chosen[0]] = [*some(1), POISON, *some(2)]
            if not blocks:
                continue
            logits = cached.score(blocks)
            for row, (other, block) in zip(logits, blocks.items(), strict=True):
                if POISON in block:
                    assert row[: len(block)].isnan().any()
                    cached.roll_back(other, len(block))
                    cached.scrub_tail(other)
                else:
                    held[other] += block
                    assert close(row[: len(block)], plain(model, held[other])[-len(block) :], attention)
        assert cached.row_len == [len(tokens) for tokens in held]


COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 6}
ARCHITECTURES = {
    "GPT2LMHeadModel": ("GPT2Config", {}),
    "GPTBigCodeForCausalLM": ("GPTBigCodeConfig", {}),
    "GPTJForCausalLM": ("GPTJConfig", {"rotary_dim": 4}),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", {}),
    "OPTForCausalLM": ("OPTConfig", {"word_embed_proj_dim": 32, "ffn_dim": 64}),
    "PhiForCausalLM": ("PhiConfig", {}),
    "Qwen2ForCausalLM": ("Qwen2Config", {}),
    "Qwen3ForCausalLM": ("Qwen3Config", {"head_dim": 8}),
    "GemmaForCausalLM": ("GemmaConfig", {"head_dim": 8}),
    "StableLmForCausalLM": ("StableLmConfig", {}),
    "CohereForCausalLM": ("CohereConfig", {}),
    "GraniteForCausalLM": ("GraniteConfig", {"attention_multiplier": 0.5}),
    "SmolLM3ForCausalLM": ("SmolLM3Config", {"no_rope_layers": [1, 0], "use_sliding_window": False}),
    "DiffLlamaForCausalLM": ("DiffLlamaConfig", {}),
    # experts, and values narrower than keys
    "Qwen2MoeForCausalLM": ("Qwen2MoeConfig", {"num_experts": 4, "shared_expert_intermediate_size": 16, **EXPERTS}),
    "DeepseekV3ForCausalLM": (
        "DeepseekV3Config",
        {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4, **LATENT, **EXPERTS},
    ),
}
WITHOUT_FLOAT64 = {"Qwen2MoeForCausalLM", "DeepseekV3ForCausalLM"}


def build(name: str, config: str, options: dict, attention: str = "sdpa"):
    """Weights are made large enough that every layer counts."""
    torch.manual_seed(0)
    settings = getattr(transformers, config)(**{**COMMON, **options})
    settings._attn_implementation = attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, name)(settings)
    model = model.to(torch.float32 if name in WITHOUT_FLOAT64 else torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def check_against_plain(model) -> None:
    cached = make(model, slots=2, max_len=100)
    measure_shapes(cached)
    kind = "sdpa" if model.dtype == torch.float64 else "eager"
    rng = random.Random(1)
    tokens = [[rng.randrange(2, VOCAB) for _ in range(60)] for _ in range(2)]
    cached.prefill(0, tokens[0][:40])
    cached.prefill(1, tokens[1][:17])
    logits = cached.score({0: tokens[0][40:45], 1: tokens[1][17:20]})
    assert close(logits[0], plain(model, tokens[0][:45])[40:], kind)
    assert close(logits[1, :3], plain(model, tokens[1][:20])[17:], kind)
    cached.roll_back(0, 3)
    cached.roll_back(1, 2)
    assert cached.row_len == [42, 18]
    logits = cached.score({0: [7], 1: tokens[1][18:22]})
    assert close(logits[0, 0], plain(model, [*tokens[0][:42], 7])[-1], kind)
    assert close(logits[1, :4], plain(model, tokens[1][:22])[18:], kind)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_other_architectures_give_their_plain_logits(name: str) -> None:
    check_against_plain(build(name, *ARCHITECTURES[name]))


@pytest.mark.parametrize(
    ("name", "config", "options", "reason"),
    [
        pytest.param("MambaForCausalLM", "MambaConfig", {"state_size": 4}, "LinearAttentionLayer", id="recurrent"),
        pytest.param(
            "T5ForConditionalGeneration",
            "T5Config",
            {"d_kv": 8, "d_ff": 64, "decoder_start_token_id": 0},
            "encoder-decoder",
            id="encoder-decoder",
        ),
    ],
)
def test_a_model_that_cannot_be_taken_back_by_length_is_refused_by_name(
    name: str, config: str, options: dict, reason: str
) -> None:
    with pytest.raises(ModelError, match=f"{name}.*{reason}"):
        make(build(name, config, options, attention="eager"))


@pytest.mark.parametrize(
    ("name", "config", "options", "attention"),
    [
        pytest.param("RwkvForCausalLM", "RwkvConfig", {"context_length": 128}, "eager", id="recurrent-without-a-sign"),
        pytest.param(
            "GPTNeoForCausalLM",
            "GPTNeoConfig",
            {"attention_types": [[["global", "local"], 1]], "window_size": 8},
            "eager",
            id="window-without-a-sign",
        ),
        pytest.param(
            "GPTNeoForCausalLM",
            "GPTNeoConfig",
            {"attention_types": [[["global", "local"], 1]], "window_size": 64},
            "eager",
            id="window-longer-than-the-self-test",
        ),
        pytest.param("FalconForCausalLM", "FalconConfig", {"alibi": False}, "sdpa", id="kernel-named-in-the-model"),
        pytest.param(
            "BartForCausalLM",
            "BartConfig",
            {"is_encoder_decoder": False, "is_decoder": True, "decoder_layers": 2, "decoder_ffn_dim": 64},
            "sdpa",
            id="positions-of-its-own",
        ),
        pytest.param("BloomForCausalLM", "BloomConfig", {}, "eager", id="positions-from-the-mask"),
    ],
)
def test_a_model_that_only_looks_plain_is_run_right_or_refused(
    name: str, config: str, options: dict, attention: str
) -> None:
    try:
        check_against_plain(build(name, config, options, attention))
    except ModelError as error:
        assert name in str(error)


def test_frequencies_that_depend_on_the_length_do_not_depend_on_the_neighbours() -> None:
    """As Phi-3's: other rotary frequencies beyond a length. Right, or refused."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **{**COMMON, "max_position_embeddings": 512},
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 4,
            "long_factor": [3.0] * 4,
            "original_max_position_embeddings": 64,
            "factor": 8.0,
        },
    )
    model = LlamaForCausalLM(config).double().eval()
    try:
        cached = make(model, slots=2, max_len=128)
        assert measure_shapes(cached).claim == "bitwise"
    except ModelError:
        return
    cached.prefill(0, [3] * 20)
    cached.prefill(1, [4] * 90)
    alone = cached.score({0: [5]})[0, 0]
    cached.roll_back(0, 1)
    assert torch.equal(cached.score({0: [5], 1: [6]})[0, 0], alone)


def test_an_attention_kernel_that_takes_no_mask_is_refused() -> None:
    model = tiny_llama()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(
        ModelError, match=r"LlamaForCausalLM uses attention 'flex_attention'; allowed: 'eager' or 'sdpa'"
    ):
        make(model)


# the shapes of the passes


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int, bool]]:
    """Every pass: slots, positions, key length, whether logits are wanted."""
    seen: list[tuple[int, int, int, bool]] = []
    run = CachedModel.run

    def recorded(self, first, end, blocks, width, key_len, **options):
        seen.append((end - first, width, key_len, options.get("logits", True)))
        return run(self, first, end, blocks, width, key_len, **options)

    monkeypatch.setattr(CachedModel, "run", recorded)
    return seen


@pytest.mark.parametrize(
    ("count", "widths"),
    [
        (0, []),
        (1, [32]),
        (32, [32]),
        (33, [64]),
        (65, [96]),
        (200, [224]),
        (256, [256]),
        (257, [256, 32]),
        (300, [256, 64]),
    ],
)
def test_the_widths_of_a_prompts_passes_depend_on_its_length_alone(passes, count: int, widths: list[int]) -> None:
    cached = make(slots=2, max_len=320)
    for slot in (0, 1):
        passes.clear()
        cached.prefill(slot, [slot + 3] * count)
        assert [width for _, width, _, _ in passes] == widths
        assert all(slots == 1 and not logits for slots, _, _, logits in passes)
        assert cached.row_len[slot] == count
    cached.release(0)
    cached.score({1: [4]})
    passes.clear()
    cached.prefill(0, [6] * count)
    assert [width for _, width, _, _ in passes] == widths


def test_a_prompts_keys_have_the_same_bits_in_every_slot_and_beside_every_neighbour() -> None:
    model, prompt = tiny_llama(dtype=torch.bfloat16), [(5 * place) % VOCAB for place in range(150)]
    cached = make(model, slots=3, max_len=200)
    cached.prefill(1, prompt)
    cached.prefill(0, [4] * 30)
    cached.prefill(2, prompt)
    for layer in cached.store.layers:
        for tensor in (layer.keys, layer.values):
            assert torch.equal(tensor[1, :, :150], tensor[2, :, :150])


def test_key_views_grow_in_powers_of_two_up_to_the_limit() -> None:
    cached = make(max_len=1000)
    lengths = [1, 255, 256, 257, 512, 513, 999, 1000]
    assert [cached.key_len(length) for length in lengths] == [256, 256, 256, 512, 512, 1000, 1000, 1000]
    assert make(max_len=100).key_len(3) == 100


def test_a_pass_is_as_wide_as_its_class_says(passes) -> None:
    cached = make(slots=4, max_len=300, block=5)
    cached.shapes = PassShapes(group=2, plain_alone=1, plain_group=2)
    cases = {
        "one plain row": ({0: [1]}, [(1, 1, 256)]),
        "one block": ({3: [1, 2]}, [(1, 5, 256)]),
        "two plain rows of a group": ({0: [1], 1: [2]}, [(2, 2, 256)]),
        "one of two drafts": ({0: [1], 1: [2, 3]}, [(2, 5, 256)]),
        "two groups": ({0: [1], 2: [1, 2], 3: [3]}, [(1, 1, 256), (2, 5, 256)]),
    }
    for name, (blocks, expected) in cases.items():
        passes.clear()
        cached.score(blocks)
        assert [item[:3] for item in passes] == expected, name
    cached.prefill(1, [3] * 260)
    passes.clear()
    cached.score({0: [1], 1: [2]})
    assert [item[:3] for item in passes] == [(1, 1, 256), (1, 1, 300)]
    cached.shapes = PassShapes(group=2, plain_alone=1, plain_group=2, key_lens_agree=True)
    passes.clear()
    cached.score({0: [1], 1: [2]})
    assert [item[:3] for item in passes] == [(2, 2, 300)]


# what a pass writes


def written(before: list[torch.Tensor], cached: CachedModel) -> set[tuple[int, int]]:
    """The readable (slot, column) whose keys or values changed in some layer."""
    changed = torch.zeros(cached.num_slots, cached.max_len, dtype=torch.bool)
    for old, new in zip(before, snapshot(cached), strict=True):
        changed |= (old != new).any(3).any(1)
    return {(slot, column) for slot, column in changed.nonzero().tolist()}


def snapshot(cached: CachedModel) -> list[torch.Tensor]:
    tensors = [tensor for layer in cached.store.layers for tensor in (layer.keys, layer.values)]
    return [tensor[:, :, : cached.max_len].clone() for tensor in tensors]


@pytest.mark.parametrize("group", [1, 4])
def test_padding_changes_no_readable_column(group: int) -> None:
    """A sentinel stands in every readable column that holds no token; the last slot has no room for a whole block."""
    cached = make(slots=4, max_len=40, block=5)
    cached.shapes = PassShapes(group=group, key_lens_agree=True)
    for slot, count in enumerate((0, 10, 3, 38)):
        cached.prefill(slot, [slot + 2] * count)
    cached.prefill(0, [9])
    for layer in cached.store.layers:
        for tensor in (layer.keys, layer.values):
            for slot, length in enumerate(cached.row_len):
                tensor[slot, :, length : cached.max_len] = 7.0
    before = snapshot(cached)
    cached.prefill(0, [3, 4])
    assert written(before, cached) == {(0, 1), (0, 2)}
    before = snapshot(cached)
    logits = cached.score({1: [5, 6, 7], 3: [8, 9]})
    assert written(before, cached) == {(1, 10), (1, 11), (1, 12), (3, 38), (3, 39)}
    # what stands beyond a row's length is not read either
    model = cached.model
    assert close(logits[0], plain(model, [3] * 10 + [5, 6, 7])[10:])
    assert close(logits[1, :2], plain(model, [5] * 38 + [8, 9])[38:])


def test_no_pass_reads_the_columns_that_take_the_padding() -> None:
    cached = make(slots=2, max_len=20)
    cached.shapes = PassShapes(group=2)
    cached.prefill(0, [3] * 19)
    cached.prefill(1, [4] * 6)
    for layer in cached.store.layers:
        for tensor in (layer.keys, layer.values):
            assert tensor.shape[2] == 20 + cached.block
            tensor[:, :, 20:] = torch.nan
    logits = cached.score({0: [5], 1: [6, 7]})
    assert close(logits[0, 0], plain(cached.model, [3] * 19 + [5])[-1])
    assert close(logits[1, :2], plain(cached.model, [4] * 6 + [6, 7])[-2:])


def test_taking_tokens_back_forgets_and_the_next_pass_writes_over_them() -> None:
    cached = make()
    cached.prefill(0, [3, 4, 5])
    cached.score({0: [6, 7, 8]})
    before = snapshot(cached)
    cached.roll_back(0, 2)
    assert cached.row_len == [4] and written(before, cached) == set()
    logits = cached.score({0: [9, 2]})
    assert written(before, cached) == {(0, 4), (0, 5)}
    assert close(logits[0], plain(cached.model, [3, 4, 5, 6, 9, 2])[4:])


def test_scrubbing_a_tail_removes_what_is_not_a_number_and_keeps_the_rest() -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = torch.nan
    cached = make(model)
    cached.prefill(0, [3, 4, 5])
    before = snapshot(cached)
    assert not cached.score({0: [6, POISON, 7]}).isfinite().all()
    cached.roll_back(0, 3)
    assert not cached.score({0: [8]}).isfinite().all()  # under the mask, and felt all the same
    cached.roll_back(0, 1)
    cached.scrub_tail(0)
    assert written(before, cached) == set()
    assert close(cached.score({0: [8, 9]})[0, :2], plain(model, [3, 4, 5, 8, 9])[3:])


def test_a_released_slot_is_empty_whatever_was_written_to_it() -> None:
    cached = make(slots=3)
    cached.prefill(0, [3] * 20)
    cached.score({0: [4, 5, 6, 7, 8]})
    cached.roll_back(0, 4)
    cached.fork(0, 1, 15)
    cached.prefill(2, [9] * 5)
    cached.release(0)
    cached.release(1)
    assert cached.row_len == [0, 0, 5]
    assert all(not tensor[:2].any() and tensor[2, :, :5].any() for tensor in snapshot(cached))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copied_prompt_has_the_bits_of_a_prefilled_one(dtype: torch.dtype) -> None:
    cached = make(tiny_llama(dtype=dtype), slots=3)
    prompt = [*range(2, 32)]
    cached.prefill(0, prompt)
    cached.score({0: [5, 6]})
    cached.fork(0, 1, len(prompt))
    cached.prefill(2, prompt)
    assert cached.row_len == [32, 30, 30]
    first, second = cached.score({1: [7, 8, 9]}), cached.score({2: [7, 8, 9]})
    assert torch.equal(first, second)


def test_rows_come_back_in_the_order_that_they_were_given() -> None:
    cached = make(slots=4)
    cached.shapes = PassShapes(group=2)
    for slot in range(4):
        cached.prefill(slot, [slot + 2] * (slot + 1))
    blocks = {3: [6], 0: [7, 8], 2: [9, 3, 4], 1: [5]}
    logits = cached.score(blocks)
    assert logits.shape == (4, 3, VOCAB)
    for row, (slot, block) in zip(logits, blocks.items(), strict=True):
        expected = plain(cached.model, [slot + 2] * (slot + 1) + block)[-len(block) :]
        assert close(row[: len(block)], expected)


def test_a_raw_pass_changes_no_length_and_leaves_the_models_kernel_as_it_was() -> None:
    for attention in ("eager", "sdpa"):
        cached = make(tiny_llama(attention=attention), slots=2)
        cached.prefill(0, [3, 4])
        logits = cached.run(0, 2, {0: [5, 6]}, 4, 64)
        assert logits.shape == (2, 4, VOCAB) and cached.row_len == [2, 0]
        assert close(logits[0, :2], plain(cached.model, [3, 4, 5, 6])[2:], attention)
        assert cached.model.config._attn_implementation == attention


def test_the_models_kernel_is_put_back_when_a_pass_fails() -> None:
    model = tiny_llama()
    cached = make(model)

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    handle = model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        cached.score({0: [3]})
    handle.remove()
    assert model.config._attn_implementation == "sdpa" and cached.row_len == [0]
    assert close(cached.score({0: [3]})[0, :1], plain(model, [3]))


def test_shared_weights_are_counted_once_and_the_vocabulary_is_the_heads() -> None:
    model = tiny_llama(vocab=70)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    assert make(model).weight_bytes == num_bytes and make(model).vocab_size == 70
    model.lm_head.weight = model.model.embed_tokens.weight
    assert make(model).weight_bytes == num_bytes - 70 * 32 * 8
    model.set_output_embeddings(nn.Linear(32, 72, bias=False).double())
    assert make(model).vocab_size == 72
