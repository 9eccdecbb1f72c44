"""The self-test finds exactly the shapes that disagree, uses the rest, and leaves nothing behind."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from draftproof.decoding.model import CachedModel, PassShapes
from draftproof.decoding.shapes import any_shapes, measure_shapes
from draftproof.errors import ModelError
from support.toy_engines import make_engine
from support.toy_models import VOCAB, tiny_llama

Fault = Callable[[int, int, int], float]
BLOCK = 5


def logits_at(token_id: int, position: int) -> torch.Tensor:
    return torch.sin(100.0 * token_id + position + torch.arange(VOCAB, dtype=torch.float64))


class Plain:
    """Stands in for the plain model: the same function, the whole sequence at once."""

    def __call__(self, input_ids, **options):
        rows = [[logits_at(token_id, place) for place, token_id in enumerate(row)] for row in input_ids.tolist()]
        return SimpleNamespace(logits=torch.stack([torch.stack(row) for row in rows]))


class Told(CachedModel):
    """
    Logits are a function of a token and its position, plus what a fault adds to a pass of this shape.

    ``fault`` gets slots, positions and key length, and what it returns is added to every logit of the pass;
    ``spoil`` gets the logits (slots, positions, V) and may change them.
    """

    fault: Fault = staticmethod(lambda slots, width, key_len: 0.0)
    spoil: Callable[[torch.Tensor], None] = staticmethod(lambda logits: None)

    def run(self, first, end, blocks, width, key_len, **options):
        result = torch.zeros(end - first, width, VOCAB, dtype=torch.float64)
        for slot, block in blocks.items():
            for place, token_id in enumerate(block):
                result[slot - first, place] = logits_at(token_id, self.row_len[slot] + place)
        result += self.fault(end - first, width, key_len)
        self.spoil(result)
        return result


def told(fault: Fault | None = None, *, slots: int = 4, max_len: int = 64, block: int = BLOCK) -> Told:
    model = Told(tiny_llama(), num_slots=slots, max_len=max_len, block=block)
    model.model = Plain()
    if fault is not None:
        model.fault = fault
    return model


WIDEST = PassShapes(group=4, plain_alone=1, plain_group=1, key_lens_agree=True)


@pytest.mark.parametrize(
    ("fault", "shapes"),
    [
        pytest.param(lambda slots, width, key_len: 0.0, WIDEST, id="none"),
        pytest.param(
            lambda slots, width, key_len: width == 1,
            PassShapes(group=4, plain_alone=2, plain_group=2, key_lens_agree=True),
            id="passes-of-one-position",
        ),
        pytest.param(
            lambda slots, width, key_len: width < BLOCK,
            PassShapes(group=4, key_lens_agree=True),
            id="all-narrower-passes",
        ),
        pytest.param(
            lambda slots, width, key_len: slots == width == 1,
            PassShapes(group=4, plain_alone=2, plain_group=1, key_lens_agree=True),
            id="one-slot-and-one-position",
        ),
        pytest.param(
            lambda slots, width, key_len: slots == 4 and width == 1,
            PassShapes(group=4, plain_alone=1, plain_group=2, key_lens_agree=True),
            id="four-slots-and-one-position",
        ),
        pytest.param(
            lambda slots, width, key_len: slots == 4,
            PassShapes(group=2, plain_alone=1, plain_group=1, key_lens_agree=True),
            id="four-slots",
        ),
        pytest.param(
            lambda slots, width, key_len: slots > 1,
            PassShapes(group=1, plain_alone=1, key_lens_agree=True),
            id="more-than-one-slot",
        ),
    ],
)
def test_a_planted_disagreement_is_found_and_not_used(fault: Fault, shapes: PassShapes) -> None:
    model = told(lambda slots, width, key_len: 1e-13 * fault(slots, width, key_len))
    measured = measure_shapes(model)
    assert measured.shapes == model.shapes == shapes
    assert measured.claim == "bitwise"
    assert 0 <= measured.noise < 1e-12 and (measured.noise > 0) == bool(measured.differ)
    assert measured.threads == torch.get_num_threads() and measured.apart == ()


def test_every_agreeing_shape_is_named_and_so_is_the_largest_difference() -> None:
    faults = {(1, 1): 0.5, (4, 2): 2.0, (4, 1): 0.25}
    measured = measure_shapes(told(lambda slots, width, key_len: faults.get((slots, width), 0.0)))
    assert measured.agree == ("1 x 5 @ 64", "1 x 2 @ 64", "4 x 5 @ 64")
    assert measured.differ == ("1 x 1 @ 64", "4 x 1 @ 64", "4 x 2 @ 64")
    assert measured.noise == pytest.approx(2.0) and measured.apart == measured.differ
    assert measured.describe()["shapes"] == {"group": 4, "plain_alone": 2, "plain_group": None, "key_lens_agree": True}


def test_rows_of_one_block_that_differ_leave_no_claim() -> None:
    """A token alone in its block and the same token behind others: the very thing that speculation relies on."""
    model = told()

    def spoil(logits: torch.Tensor) -> None:
        logits[:, 3:4] += 1e-13

    model.spoil = spoil
    measured = measure_shapes(model)
    assert measured.claim == "up_to_ties" and "1 x 5 @ 64" in measured.differ


@pytest.mark.parametrize("row", [0, 3])
def test_every_slot_of_a_group_is_looked_at(row: int) -> None:
    model = told()

    def spoil(logits: torch.Tensor) -> None:
        if len(logits) == 4:
            logits[row] += 1e-13

    model.spoil = spoil
    assert measure_shapes(model).shapes.group == 2


def test_key_lengths_that_disagree_do_not_share_a_pass() -> None:
    model = told(lambda slots, width, key_len: 1e-13 * (key_len > 256), max_len=1000)
    measured = measure_shapes(model)
    assert measured.claim == "bitwise"
    assert measured.shapes == PassShapes(group=4, plain_alone=1, plain_group=1, key_lens_agree=False)
    assert measured.differ == ("keys 512", "keys 1000")


def test_where_key_lengths_agree_narrow_and_wide_passes_are_tested_at_both() -> None:
    fault = {(1, 1), (4, BLOCK)}
    model = told(lambda slots, width, key_len: 1e-13 * ((slots, width) in fault and key_len == 1000), max_len=1000)
    measured = measure_shapes(model)
    assert measured.shapes == PassShapes(group=2, plain_alone=2, plain_group=1, key_lens_agree=True)


@pytest.mark.parametrize(("slots", "group"), [(1, 1), (2, 2), (3, 2), (5, 4), (8, 8)])
def test_a_group_is_the_largest_power_of_two_that_fits(slots: int, group: int) -> None:
    assert measure_shapes(told(slots=slots)).shapes.group == group


@pytest.mark.parametrize("block", [2, 3, 16])
def test_a_plain_pass_is_narrower_than_the_block(block: int) -> None:
    model = told(lambda slots, width, key_len: 1e-13 * (width == 1), block=block)
    assert measure_shapes(model).shapes.plain_alone == (2 if block > 2 else None)


@pytest.mark.parametrize("max_len", [2, 3, 7, 40])
def test_a_short_context_is_long_enough_for_the_test(max_len: int) -> None:
    model = CachedModel(tiny_llama(), num_slots=2, max_len=max_len, block=BLOCK)
    measured = measure_shapes(model)
    assert len(measured.agree) + len(measured.differ) >= 3 and model.row_len == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_store_is_left_empty(dtype: torch.dtype) -> None:
    model = CachedModel(tiny_llama(dtype=dtype), num_slots=3, max_len=300, block=BLOCK)
    measure_shapes(model)
    assert model.row_len == [0, 0, 0]
    for layer in model.store.layers:
        assert not layer.keys[:, :, :300].any() and not layer.values[:, :, :300].any()


def test_a_real_model_whose_one_position_passes_are_off_does_not_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run = CachedModel.run

    def off(self, first, end, blocks, width, key_len, **options):
        result = run(self, first, end, blocks, width, key_len, **options)
        return result + 1e-3 if width == 1 else result

    monkeypatch.setattr(CachedModel, "run", off)
    model = CachedModel(tiny_llama(), num_slots=2, max_len=64, block=BLOCK)
    measured = measure_shapes(model)
    assert 1 not in (model.shapes.plain_alone, model.shapes.plain_group)
    assert "1 x 1 @ 64" in measured.differ and measured.noise >= 1e-3


def test_the_measured_shapes_of_a_real_model_agree_on_other_tokens_too() -> None:
    """The class that is claimed, tried with tokens and lengths that the self-test has not seen."""
    model = CachedModel(tiny_llama(5, torch.float32), num_slots=4, max_len=64, block=BLOCK)
    measured = measure_shapes(model)
    if measured.claim != "bitwise":
        pytest.skip("on this machine no claim is made")
    tokens = [(11 * place + 3) % VOCAB for place in range(30)]
    alone = CachedModel(tiny_llama(5, torch.float32), num_slots=1, max_len=64, block=BLOCK)
    for cached in (model, alone):
        for slot in range(cached.num_slots):
            cached.prefill(slot, tokens[:15])
    in_blocks = torch.cat(
        [model.score({slot: tokens[at : at + BLOCK] for slot in range(4)}) for at in range(15, 30, BLOCK)], dim=1
    )
    one_by_one = torch.cat([alone.score({0: [token_id]})[0] for token_id in tokens[15:]])
    assert all(torch.equal(row, one_by_one) for row in in_blocks)


def test_any_shapes_allows_all_and_claims_little() -> None:
    model = told(lambda slots, width, key_len: 1.0 * (width == 1), slots=6)
    measured = any_shapes(model)
    assert measured.claim == "up_to_ties"
    assert measured.shapes == model.shapes == PassShapes(group=6, plain_alone=1, plain_group=1, key_lens_agree=True)
    assert model.row_len == [0] * 6


@pytest.mark.parametrize("measure", [measure_shapes, any_shapes])
@pytest.mark.parametrize("size", [0.1, float("nan")])
def test_a_model_that_computes_something_else_than_it_does_plainly_is_refused(measure, size: float) -> None:
    """All passes alike, so that they agree with one another."""
    with pytest.raises(ModelError, match=r"Plain computes something else through a cache"):
        measure(told(lambda slots, width, key_len: size))
    assert measure(told(lambda slots, width, key_len: 1e-10)).differ == ()


# what is used was measured


@pytest.mark.parametrize("slots", [6, 7])
def test_no_pass_has_a_number_of_slots_that_was_not_measured(slots: int) -> None:
    model = told(lambda count, width, key_len: 1.0 * (count == slots - 4), slots=slots)
    assert measure_shapes(model).claim == "bitwise"
    for slot in range(slots):
        model.prefill(slot, [3] * 4)
    logits = model.score({slot: [5, 6] for slot in range(slots)})
    assert all(torch.equal(row[:2], logits[0, :2]) for row in logits)


def test_no_pass_has_a_key_length_that_was_not_measured() -> None:
    """A row alone reads 512 columns; beside a longer one it reads 1024."""
    model = told(lambda slots, width, key_len: 1.0 * (key_len == 512), slots=2, max_len=1024)
    assert measure_shapes(model).claim == "bitwise"
    model.prefill(0, [3] * 300)
    model.prefill(1, [3] * 600)
    alone = model.score({0: [5]})[0, 0]
    model.roll_back(0, 1)
    assert torch.equal(model.score({0: [5], 1: [6]})[0, 0], alone)


def test_a_plain_pass_over_a_long_view_has_the_bits_of_the_block_over_it() -> None:
    model = told(lambda slots, width, key_len: 1e-3 * width * (key_len > 256), slots=1, max_len=512)
    assert measure_shapes(model).claim == "bitwise"
    model.prefill(0, [3] * 300)
    plain = model.score({0: [5]})[0, 0]
    model.roll_back(0, 1)
    block = model.score({0: [5, 6]})[0, 0]
    assert torch.equal(plain, block)


def test_a_mixture_of_experts_claims_no_bits_however_the_tested_passes_agree() -> None:
    """How many tokens an expert computes over is up to the rows beside, which no shape tells."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    heads = {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **heads, **experts)).to(torch.bfloat16)
    measured = measure_shapes(CachedModel(model, num_slots=2, max_len=64, block=BLOCK))
    assert measured.claim == "up_to_ties" and "expert" in measured.reason
    engine = make_engine(model, max_len=64)
    assert engine.capabilities.claim == "up_to_ties" and measured.reason in engine.capabilities.claim_basis
    assert measure_shapes(told()).reason is None


def test_weights_that_are_not_numbers_are_named_as_what_they_are() -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(ModelError, match=r"logits that are not finite in torch.float64; check its weights"):
        measure_shapes(CachedModel(model, num_slots=1, max_len=64, block=BLOCK))
