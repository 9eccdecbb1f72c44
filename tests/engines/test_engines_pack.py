"""Packed weights compute what the plain ones do, and only where torch can."""

import weakref

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from draftproof.decoding.model import CachedModel
from draftproof.engines.pack import MKLDNN, PackedLinear, PackedSibling, PackedSiblings, pack_linears
from draftproof.proposers import DraftModel, PromptLookup
from support.toy_engines import ask, make_engine, noisy_copy
from support.toy_models import VOCAB, tiny_llama

PROMPTS = [[3, 4, 5, 3, 4, 5, 3, 4], [9], [*range(10, 50)]]
# the largest relative error of one rounding to bfloat16's 8 bits
ROUNDING = 2.0**-8
can_pack = pytest.mark.skipif(
    not (hasattr(MKLDNN, "_linear_pointwise") and MKLDNN._is_mkldnn_bf16_supported()),
    reason="this processor or build of torch has no bfloat16 kernels of oneDNN",
)


def plain_llama(seed: int = 0, **options) -> LlamaForCausalLM:
    """With biases everywhere, unless told otherwise; they start at zero, so they are given values."""
    model = tiny_llama(seed, torch.bfloat16, **{"attention_bias": True, "mlp_bias": True, **options})
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.normal_()
    return model


def logits_of(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([PROMPTS[2]]), use_cache=False).logits[0].double()


@can_pack
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 6, 33])
def test_a_packed_layer_is_the_exact_product_rounded_once(rows: int, bias: bool) -> None:
    """Within one rounding of the float64 result, and of the float32 sums behind it; the bias is kept."""
    torch.manual_seed(rows)
    linear = nn.Linear(96, 40, bias=bias).to(torch.bfloat16)
    hidden = torch.randn(2, rows, 96).to(torch.bfloat16)
    exact = hidden.double() @ linear.weight.detach().double().T + (linear.bias.detach().double() if bias else 0.0)
    packed = PackedLinear(linear)
    with torch.no_grad():
        result = packed(hidden)
    assert result.dtype == torch.bfloat16 and result.shape == (2, rows, 40)
    assert ((result.double() - exact).abs() <= ROUNDING * exact.abs() + 1e-5).all()
    assert (packed.in_features, packed.out_features) == (96, 40)
    assert (packed.bias is None) != bias


@can_pack
def test_the_logits_are_as_close_to_the_exact_ones_as_before() -> None:
    """Both against the same weights in float64: packing may add no more than half again of bfloat16's own error."""
    model = plain_llama()
    exact = logits_of(plain_llama().double())
    before = (logits_of(model) - exact).abs()
    assert pack_linears(model) is True
    after = (logits_of(model) - exact).abs()
    assert 0 < before.mean() and after.mean() < 1.5 * before.mean() and after.max() < 2 * before.max()


@can_pack
@pytest.mark.parametrize("kind", ["prompt-lookup", "draft-model"])
def test_speculation_changes_no_greedy_token_of_a_packed_model(kind: str) -> None:
    model = plain_llama(3)
    draft = noisy_copy(plain_llama(3, attention_bias=False, mlp_bias=False))
    assert pack_linears(model) and pack_linears(draft)
    proposer = DraftModel(draft) if kind == "draft-model" else PromptLookup(1, 3)
    solo, engine = make_engine(model), make_engine(model, proposer=proposer, max_batch=3)
    if engine.capabilities.claim != "bitwise":
        pytest.skip("on this machine the engine claims identity up to ties only")
    expected = [solo.generate([prompt], ask())[0].token_ids for prompt in PROMPTS]
    for speculate in (False, True):
        completions = engine.generate(PROMPTS, ask(), speculate=speculate)
        assert [completion.token_ids for completion in completions] == expected
    assert any(completion.speculation.num_accepted_draft_tokens for completion in completions)
    assert engine.capabilities.details["packed_weights"] is True


@can_pack
def test_every_linear_layer_is_packed_and_its_plain_weight_is_gone() -> None:
    model = plain_llama()
    pack_linears(model)
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(PackedLinear) == 2 * 4 + 1 and kinds.count(PackedSibling) == 2 * 5 and nn.Linear not in kinds
    # what is left is embeddings, norms and biases
    assert all(parameter.dim() == 1 for name, parameter in model.named_parameters() if "embed" not in name)
    assert isinstance(model.get_output_embeddings(), PackedLinear)


@can_pack
def test_tied_embeddings_still_embed() -> None:
    model = plain_llama(tie_word_embeddings=True)
    twin = plain_llama(tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    pack_linears(model)
    ids = torch.arange(VOCAB)
    assert torch.equal(model.get_input_embeddings()(ids), twin.get_input_embeddings()(ids))
    assert torch.equal(model.model.embed_tokens.weight, twin.lm_head.weight)
    hidden = torch.randn(1, 5, 32).to(torch.bfloat16)
    with torch.no_grad():
        heads = model.lm_head(hidden).double(), twin.lm_head(hidden).double()
    assert torch.allclose(*heads, rtol=2 * ROUNDING, atol=1e-5)


@can_pack
@pytest.mark.parametrize("tied", [False, True])
def test_weight_bytes_count_packed_weights_once(tied: bool) -> None:
    """A layout is padded to whole blocks, so that it may take more than the weight itself."""
    model = plain_llama(tie_word_embeddings=tied)
    before = CachedModel(model, num_slots=1, max_len=32, block=2).weight_bytes
    pack_linears(model)
    packed = [module.packed_bytes for module in model.modules() if isinstance(module, PackedLinear)]
    after = CachedModel(model, num_slots=1, max_len=32, block=2).weight_bytes
    assert after == sum(packed) + sum(parameter.nbytes for parameter in model.parameters())
    # a tied head is packed besides the embedding that stays
    assert before + (VOCAB * 32 * 2 if tied else 0) <= after < 3 * before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_are_left_alone(dtype: torch.dtype) -> None:
    model = tiny_llama(dtype=dtype)
    before = dict(model.named_modules())
    assert pack_linears(model) is False
    assert dict(model.named_modules()) == before
    assert all(type(module) is not PackedLinear for module in before.values())
    assert make_engine(model).capabilities.details["packed_weights"] is False


def test_a_build_without_the_kernels_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        """Has none of the calls."""

    monkeypatch.setattr("draftproof.engines.pack.MKLDNN", Without())
    model = plain_llama()
    assert pack_linears(model) is False
    assert all(type(module) is not PackedLinear for module in model.modules())


class Doubled(nn.Linear):
    """Computes something else than a linear layer."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(hidden)


@can_pack
def test_subclasses_of_a_linear_layer_are_left_alone() -> None:
    model = plain_llama()
    odd = Doubled(32, VOCAB, bias=False).to(torch.bfloat16)
    odd.weight = model.lm_head.weight
    model.lm_head = odd
    exact = logits_of(model)
    pack_linears(model)
    assert model.lm_head is odd
    assert torch.allclose(logits_of(model), exact, rtol=0.05, atol=0.05 * exact.abs().max().item())


@can_pack
def test_a_model_that_has_nothing_left_to_pack_says_so() -> None:
    model = plain_llama()
    assert pack_linears(model) is True
    assert pack_linears(model) is False


def siblings_of(*sizes: int, bias: bool = False) -> tuple[list[nn.Linear], list[PackedSibling]]:
    torch.manual_seed(len(sizes))
    linears = [nn.Linear(96, size, bias=bias).to(torch.bfloat16) for size in sizes]
    together = PackedSiblings(linears)
    return linears, [PackedSibling(together, index) for index in range(len(sizes))]


@can_pack
@pytest.mark.parametrize("bias", [False, True])
def test_siblings_give_what_each_layer_gives_alone(bias: bool) -> None:
    """In any order, asked once or twice, with one tensor or with several in turn."""
    linears, parts = siblings_of(40, 24, 56, bias=bias)
    first, second = (torch.randn(2, 3, 96).to(torch.bfloat16) for _ in range(2))
    with torch.no_grad():
        for index, hidden in [(0, first), (1, first), (2, first), (2, second), (0, first), (0, second), (1, first)]:
            alone = PackedLinear(linears[index])(hidden)
            assert torch.allclose(parts[index](hidden).double(), alone.double(), rtol=2 * ROUNDING, atol=1e-5)
    assert [part.out_features for part in parts] == [40, 24, 56]


@can_pack
def test_siblings_run_in_inference_mode() -> None:
    linears, parts = siblings_of(40, 24)
    with torch.inference_mode():
        hidden = torch.randn(1, 3, 96).to(torch.bfloat16)
        for linear, part in zip(linears, parts, strict=True):
            assert torch.allclose(part(hidden), PackedLinear(linear)(hidden), rtol=2 * ROUNDING, atol=1e-5)


@can_pack
def test_siblings_see_that_their_input_was_written_over() -> None:
    linears, parts = siblings_of(40, 24)
    hidden = torch.randn(1, 3, 96).to(torch.bfloat16)
    with torch.no_grad():
        parts[0](hidden)
        hidden.mul_(-2.0)
        assert torch.allclose(parts[1](hidden), PackedLinear(linears[1])(hidden), rtol=2 * ROUNDING, atol=1e-5)


@can_pack
def test_siblings_keep_nothing_of_a_pass_that_is_over() -> None:
    _, parts = siblings_of(40, 24)
    hidden = torch.randn(1, 3, 96).to(torch.bfloat16)
    held = weakref.ref(hidden)
    with torch.no_grad():
        outputs = [part(hidden) for part in parts]
    assert len(outputs) == 2
    del hidden, outputs
    assert held() is None


@can_pack
@pytest.mark.parametrize("bias", [False, True])
def test_siblings_are_taken_apart_again(bias: bool) -> None:
    linears, parts = siblings_of(40, 24, 56, bias=bias)
    for linear, part in zip(linears, parts, strict=True):
        plain = part.unpacked()
        assert torch.equal(plain.weight, linear.weight)
        assert (plain.bias is None) != bias
        assert plain.bias is None or torch.equal(plain.bias, linear.bias)
