"""Each cause of a greedy difference is planted and named, and only rounding is excused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from draftproof import Engine
from draftproof.engines.hf import HfEngine
from draftproof.evidence import GreedyResult
from draftproof.verify import triage as named
from draftproof.verify.controls import RULE_DEFECTS
from draftproof.verify.greedy import CONTROLLED_STRICT, compare_greedy, rate_p_value
from draftproof.verify.noise_floor import NoiseFloor
from draftproof.verify.triage import Place, find_place, triage
from support.scripted import Restricted
from support.toy_engines import EOS, K, ask, noisy_copy, numbered_words
from support.toy_models import tiny_llama
from support.triage import LENGTH, MORE, PROMPTS, compared_records, toy_engine, toy_model

pytestmark = pytest.mark.usefixtures("short_self_test")

ULP = 0.125  # of bfloat16 between 16 and 32


def judged(engine: Any, **options: Any) -> GreedyResult:
    return compare_greedy(engine, *compared_records(engine, **options))


def causes(found: GreedyResult) -> set[str | None]:
    return {one.cause for one in found.divergences}


def with_b(records: list[dict[str, Any]], edit: Callable[[dict[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
    """Change the speculative record of the first prompt."""
    return [item | edit(item) if (item["prompt_id"], item["block"]) == ("p0", "B") else item for item in records]


# the target's passes


def test_a_bias_in_float32_of_passes_with_several_rows_is_a_named_failure() -> None:
    found = judged(toy_engine(dtype="float32", bias=0.15))
    assert found.outcome == "FAIL" and causes(found) == {named.MULTI_ROW}
    for one in found.divergences:
        assert one.kind == "DEFECT" and one.confirmed and one.gap is not None and one.gap < 0.16
        assert one.explained  # the passes that were run do give it: it is not the speculation
    assert found.triage is not None and found.triage.tau == 1e-3
    assert f"defect: {named.MULTI_ROW}" in found.triage.reasons


def test_where_both_arms_run_passes_of_several_rows_the_self_test_gives_the_bias_away() -> None:
    """In the bitwise class a plain step is as wide as it must be, so that the arms agree, and so does the whole pass."""
    found = judged(toy_engine(dtype="float32", bias=0.15, numerics="bitwise"))
    assert found.identical == found.prompts and found.outcome == "FAIL"
    assert any(named.MULTI_ROW in reason and "1 x 1 @" in reason for reason in found.reasons)


def test_the_same_bias_in_bfloat16_is_within_tau_and_float32_gives_it_away() -> None:
    found = judged(toy_engine(dtype="bfloat16", bias=0.15, base=22.0), prompts=MORE, params=ask(24))
    assert found.triage is not None and found.triage.ulp_floor == 2 * ULP
    assert found.divergences
    # by tau alone it would have been excused
    assert all(one.regret is not None and one.regret <= found.triage.tau for one in found.divergences)
    assert found.outcome == "FAIL" and causes(found) == {named.MULTI_ROW}
    assert all("in float32 the gap moves by 0.15" in one.note for one in found.divergences)


def other_rounding(logits: Tensor, several: bool) -> Tensor:
    """As of a kernel that sums in another order: up or down by a unit, by the bits, and only in bfloat16."""
    if not several or logits.dtype != torch.bfloat16:
        return logits
    places = torch.arange(logits.shape[-1])
    turn = (logits.float() / ULP).round().long() * 7919 + places * 104729
    return logits + (turn % 3 - 1).to(logits.dtype) * ULP


def test_rounding_that_the_target_shows_against_itself_is_excused() -> None:
    engine = toy_engine(dtype="bfloat16", base=22.0, change=other_rounding)
    found = judged(engine, prompts=MORE, params=ask(24))
    assert found.divergences and found.outcome == "PASS"
    assert causes(found) <= {named.ROUNDING, named.EXACT_TIE}
    for one in found.divergences:
        assert one.kind in ("OK", "TIE") and one.explained
        assert "in float32 the gap moves by" in one.note and "own draft" in one.note
    seen = found.triage
    assert seen is not None and seen.noise is not None and 2 * ULP <= seen.tau <= seen.cap == 0.5
    assert seen.target_flips > 0 and seen.rate_p_value is not None and seen.rate_p_value > 0.01
    assert sum(count for _, count in seen.gap_histogram) == len(found.divergences)
    assert seen.worst in found.divergences and seen.ties == len(found.divergences) and seen.reasons == []


def test_the_same_difference_is_not_excused_where_the_target_is_quieter() -> None:
    engine = toy_engine(dtype="bfloat16", base=22.0, change=other_rounding)
    records, prompts = compared_records(engine, ask(24), MORE)
    places = [place for one in range(len(MORE)) if (place := place_of(records, prompts, f"p{one}")) is not None]
    quiet = NoiseFloor(noise=0.01, floor=0.05, cap=0.5, positions=512, flips=0)
    loud = NoiseFloor(noise=0.2, floor=2 * ULP, cap=0.5, positions=512, flips=0)
    kinds = {
        name: [triage(engine, noise, place).kind for place in places] for name, noise in (("q", quiet), ("l", loud))
    }
    assert "DEFECT" in kinds["q"] and "DEFECT" not in kinds["l"]


def place_of(records: list[dict[str, Any]], prompts: dict[str, list[int]], name: str) -> Place | None:
    blocks = {item["block"]: item for item in records if item["prompt_id"] == name}
    return find_place(prompts[name], blocks["A1"], blocks["B"])


def test_two_tokens_of_equal_logits_are_an_exact_tie_whichever_is_taken() -> None:
    model = toy_model()
    engine = toy_engine(model)
    records, prompts = compared_records(engine)
    at = 5
    token = records[0]["token_ids"][at]
    twin = next(other for other in range(2, 64) if other not in records[0]["token_ids"])
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[token]
    records = with_b(records, lambda item: {"token_ids": [*item["token_ids"][:at], twin, *item["token_ids"][at + 1 :]]})
    found = compare_greedy(Restricted(engine, claim="up_to_ties"), records, prompts)
    (one,) = found.divergences
    assert (one.kind, one.cause, one.gap, one.regret) == ("OK", named.EXACT_TIE, 0.0, 0.0)
    assert found.outcome == "PASS"


# the engine around it


def forget(target: Any, slot: int, num_tokens: int) -> None:
    """Rejected tokens stay in the cache."""


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_cache_that_keeps_rejected_tokens_is_named(dtype: str) -> None:
    found = judged(toy_engine(dtype=dtype, take_back=forget), params=ask(12))
    assert found.outcome == "FAIL" and found.triage is not None
    assert all(one.cause == named.CACHE for one in found.divergences if one.confirmed)
    assert any(one.cause == named.CACHE for one in found.divergences)


@pytest.mark.parametrize("numerics", ["bitwise", "fast"])
def test_a_rule_that_takes_a_wrong_token_is_named_whatever_is_claimed(numerics: str) -> None:
    found = judged(toy_engine(accept=RULE_DEFECTS["always accept"], numerics=numerics))
    assert found.outcome == "FAIL" and causes(found) == {named.SPECULATION}
    for one in found.divergences:
        assert one.explained is False and one.kind == "DEFECT"
    noted = sum("the target as its own draft gives the target-only token" in one.note for one in found.divergences)
    assert found.triage is not None and noted == found.triage.controlled
    assert noted == (CONTROLLED_STRICT if numerics == "bitwise" else len(found.divergences))


@pytest.mark.parametrize("numerics", ["bitwise", "fast"])
def test_tokens_past_the_end_of_sequence_are_the_stop_rule_s(numerics: str) -> None:
    engine = toy_engine(numerics=numerics)
    records, prompts = compared_records(engine)
    end = records[0]["token_ids"][7]
    engine._eos = frozenset({end})
    records, prompts = compared_records(engine, ask(LENGTH, ignore_eos=False))
    assert records[0]["finish_reason"] == "stop" and len(records[0]["token_ids"]) < LENGTH
    longer = with_b(records, lambda item: {"token_ids": [*item["token_ids"], 7, 8]})
    found = compare_greedy(engine, longer, prompts)
    assert (found.outcome, causes(found)) == ("FAIL", {named.STOP_RULE})
    shorter = with_b(records, lambda item: {"token_ids": item["token_ids"][:-2]})
    assert causes(compare_greedy(engine, shorter, prompts)) == {named.STOP_RULE}


@pytest.mark.parametrize("numerics", ["bitwise", "fast"])
def test_tokens_past_the_longest_output_are_the_length_s(numerics: str) -> None:
    engine = toy_engine(numerics=numerics)
    records, prompts = compared_records(engine)
    longer = with_b(records, lambda item: {"token_ids": [*item["token_ids"], 7]})
    found = compare_greedy(engine, longer, prompts)
    assert (found.outcome, causes(found)) == ("FAIL", {named.LENGTH})


@pytest.mark.parametrize("change", [{"num_prompt_tokens": 3}, {"text": "w01"}])
def test_the_same_tokens_of_another_prompt_or_as_another_text_are_the_tokenizer_s(change: dict[str, Any]) -> None:
    engine = toy_engine()
    records, prompts = compared_records(engine)
    assert compare_greedy(engine, records, prompts).outcome == "PASS"
    found = compare_greedy(engine, with_b(records, lambda item: change), prompts)
    assert (found.outcome, causes(found)) == ("FAIL", {named.TOKENIZER})


def test_only_the_worst_differences_get_the_control_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.verify.greedy.CONTROLLED", 1)
    found = judged(toy_engine(accept=RULE_DEFECTS["always accept"]))
    assert len(found.divergences) > 1 and found.triage is not None and found.triage.controlled == 1
    assert sum("own draft" in one.note for one in found.divergences) == 1


def test_without_passes_to_replay_a_tie_stays_open() -> None:
    engine = toy_engine(dtype="bfloat16", base=22.0, change=other_rounding)
    records, prompts = compared_records(engine, ask(24), MORE)
    # as of an engine that tells neither its rounds nor its passes; the arms change places, since the judge, which
    # scores several rows at once, is of one mind with a block
    places = {"A1": "B", "A2": "B2", "B": "A1"}
    silent = [item | {"rounds": [], "block": places[item["block"]]} for item in records]
    found = compare_greedy(engine, silent, prompts)
    assert found.outcome == "INCONCLUSIVE" and {one.explained for one in found.divergences} == {None}
    assert "TIE" in {one.kind for one in found.divergences}
    assert found.triage is not None and any("not explained" in reason for reason in found.triage.reasons)


def test_the_rate_of_ties_is_held_against_twice_the_target_s_own() -> None:
    # 10 flips in 500 positions; in 500 tokens 20 are expected at most
    assert rate_p_value(20, 500, 10, 500) > 0.2 and rate_p_value(60, 500, 10, 500) < 0.01
    # the shares of a two to one split: all of 3 on one side
    assert rate_p_value(3, 500, 0, 500) == pytest.approx((2 / 3) ** 3)
    assert rate_p_value(0, 500, 0, 500) == 1.0
    assert rate_p_value(3, 500, 0, 0) is None


# replaying the passes that were run


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("kind", ["native", "prompt-lookup", "assisted"])
def test_the_passes_of_a_request_give_its_tokens_again(kind: str, dtype: str) -> None:
    model = tiny_llama(0, getattr(torch, dtype))
    engine = toy_engine(model) if kind == "native" else assisted(model, kind == "assisted")
    records, prompts = compared_records(engine)
    for item in records:
        place = Place(prompt=[], target_only=item, speculative=item, at=len(item["token_ids"]) - 1)
        assert place.passes is not None and sum(kept for _, kept in place.passes) == LENGTH
        logits = [
            row
            for rows in engine.score_passes(prompts[item["prompt_id"]], item["token_ids"], place.passes)
            for row in rows
        ]
        assert [int(row.argmax()) for row in logits] == item["token_ids"]
    widths = {width for item in records if item["block"] == "B" for width, _ in place_passes(item)}
    assert max(widths) == K + 1


def place_passes(item: dict[str, Any]) -> list[tuple[int, int]]:
    passes = Place(prompt=[], target_only=item, speculative=item, at=LENGTH - 1).passes
    assert passes is not None
    return passes


def assisted(model: Any, with_draft: bool = True) -> HfEngine:
    draft = noisy_copy(tiny_llama(0, model.dtype), 0.02) if with_draft else None
    return HfEngine(model, numbered_words(), num_speculative_tokens=K, max_len=256, draft=draft)


def test_scoring_passes_leaves_the_engine_as_it_was() -> None:
    engine = toy_engine()
    before = engine.generate([PROMPTS[0]], ask(LENGTH))[0].token_ids
    for rows in engine.score_passes(PROMPTS[1], [5, 6, 7], [(1, 1), (5, 2)]):
        assert rows.shape[1] == 64
    half = engine.score_passes(PROMPTS[1], [5, 6, 7], [(1, 1), (5, 2)])
    next(half)
    half.close()
    assert engine.generate([PROMPTS[0]], ask(LENGTH))[0].token_ids == before


# transformers' assisted generation


def test_assisted_generation_is_the_target_in_float64_and_its_own_draft_is_accepted_whole() -> None:
    engine = assisted(tiny_llama())
    assert judged(engine).outcome == "PASS"
    own = engine.control_arm("own draft").generate([PROMPTS[0]], ask(LENGTH))[0]
    assert {chunk.num_tokens for chunk in own.chunks[:-1]} == {K + 1}
    assert engine.memory()["draft_weights"] == engine.memory()["target_weights"]


def test_assisted_generation_with_a_biased_block_pass_fails_by_name() -> None:
    found = judged(assisted(toy_model("float32", bias=0.15)))
    assert found.outcome == "FAIL" and causes(found) == {named.MULTI_ROW}


def test_assisted_generation_that_rounds_otherwise_in_a_block_passes_up_to_ties() -> None:
    found = judged(assisted(toy_model("bfloat16", base=22.0, change=other_rounding)), prompts=MORE)
    assert found.divergences and found.outcome == "PASS"
    assert all(one.explained for one in found.divergences)


def test_a_float32_copy_unpacks_what_was_packed_and_keeps_hooks() -> None:
    from draftproof.engines.pack import can_pack, pack_linears
    from draftproof.engines.widen import float32_copy

    model = toy_model("bfloat16", base=3.0)
    ids = torch.tensor([PROMPTS[0]])
    wanted = toy_model("bfloat16", base=3.0).float()(input_ids=ids, use_cache=False).logits
    assert torch.equal(float32_copy(model)(input_ids=ids, use_cache=False).logits, wanted)
    if can_pack(model.device, model.dtype):
        assert pack_linears(model)
        twin = float32_copy(model)
        assert twin.dtype == torch.float32 and model.dtype == torch.bfloat16
        # a packed head is another module, without the hook
        torch.testing.assert_close(twin(input_ids=ids, use_cache=False).logits + 3.0, wanted)


def test_an_end_of_sequence_inside_a_block_is_no_difference() -> None:
    engine = toy_engine()
    assert isinstance(engine, Engine) and EOS in engine._eos
    assert judged(engine, params=ask(LENGTH, ignore_eos=False)).outcome == "PASS"
