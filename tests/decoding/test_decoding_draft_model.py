"""Whatever became of its drafts, a draft model proposes what the plain model would on the committed tokens."""

import random

import pytest
import torch

from draftproof.decoding.model import CachedModel
from draftproof.errors import InputError
from draftproof.proposers import DraftModel, Proposal, ProposerContext
from draftproof.sampling.draw import draw_alone
from draftproof.sampling.law import token_law
from draftproof.sampling.noise import KeyedNoise
from support.toy_models import VOCAB, judge, make_decoder, make_row, run, tiny_llama

pytestmark = pytest.mark.usefixtures("short_self_test")

K = 4


def bound(model, *, slots: int = 1, max_len: int = 128, vocab: int = VOCAB, threshold: float = 0.0) -> DraftModel:
    proposer = DraftModel(model, threshold)
    proposer.bind(
        ProposerContext(
            num_slots=slots,
            max_len=max_len,
            num_speculative_tokens=K,
            vocab_size=vocab,
            device=torch.device("cpu"),
            noise=KeyedNoise(),
        )
    )
    return proposer


def row_at(slot: int, prompt: list[int], **options):
    row = make_row(prompt, 200, **options)
    row.slot = slot
    return row


def logits_after(model, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]


def check(proposal: Proposal, model, rows, counts: list[int], vocab: int = VOCAB) -> None:
    """REF: one plain forward per drafted token, over the committed tokens and the draft so far."""
    assert proposal.num_tokens.tolist() == counts
    assert proposal.token_ids.shape == (len(rows), max(counts)) and proposal.probs.dtype == torch.float64
    noise = KeyedNoise()
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        tokens = list(row.token_ids)
        for place in range(count):
            logits = logits_after(model, tokens)[:vocab]
            logits = torch.nn.functional.pad(logits, (0, vocab - len(logits)), value=-torch.inf)
            law = token_law(logits[None, None], [row.params])[0, 0]
            assert torch.allclose(proposal.probs[index, place], law, atol=1e-9)
            # from the very law that is reported, with the numbers of this very place
            drawn = int(draw_alone(proposal.probs[index, place][None], [row.key], [row.num_generated + place], noise))
            assert proposal.token_ids[index, place].item() == drawn
            tokens.append(drawn)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_random_history_of_three_rows_is_always_caught_up_with(seed: int, temperature: float) -> None:
    """Rejections at every offset, full acceptance, rounds in which a row is not asked, rows that end and others that begin."""
    rng = random.Random(seed)
    model = tiny_llama(1)
    proposer = bound(model, slots=3)

    def begin(slot: int):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 3, 20, 40]))]
        return row_at(slot, prompt, temperature=temperature, seed=rng.randrange(9), top_k=5)

    rows, checked = [begin(slot) for slot in range(3)], 0
    for _ in range(14):
        asked = rng.sample(rows, rng.randrange(1, 4))
        limits = [rng.choice([0, 1, K, K]) for _ in asked]
        proposal = proposer.propose(asked, limits)
        if any(limits):
            check(proposal, model, asked, limits)
            checked += int(proposal.num_tokens.sum())
        for index, row in enumerate(asked):
            draft = proposal.token_ids[index, : limits[index]].tolist()
            row.token_ids += [*draft[: rng.randrange(len(draft) + 1)], rng.randrange(VOCAB)]
        for row in rows:
            if row not in asked and rng.random() < 0.5:
                row.token_ids += [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 6]))]
        gone = rng.randrange(3)
        if rng.random() < 0.3 or len(rows[gone].token_ids) > 90:
            proposer.release(gone)
            rows[gone] = begin(gone)
    assert checked > 14


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Every pass of any model: its positions, and whether its logits are wanted."""
    seen: list[tuple[int, bool]] = []
    original = CachedModel.run

    def recorded(self, first, end, blocks, width, key_len, **options):
        seen.append((max(map(len, blocks.values())), options.get("logits", True)))
        return original(self, first, end, blocks, width, key_len, **options)

    monkeypatch.setattr(CachedModel, "run", recorded)
    return seen


@pytest.mark.parametrize("accepted", range(K + 1))
def test_a_round_costs_one_pass_for_each_drafted_token_whatever_was_accepted(passes, accepted: int) -> None:
    """After a full acceptance the first pass reads two tokens; after anything else, one."""
    proposer, row = bound(tiny_llama(1)), row_at(0, [3, 4, 5, 6, 7])
    proposal = proposer.propose([row], [K])
    for _ in range(4):
        row.token_ids += [*proposal.token_ids[0, :accepted].tolist(), 9]
        passes.clear()
        proposal = proposer.propose([row], [K])
        assert passes == [(2 if accepted == K else 1, True)] + [(1, True)] * (K - 1)
        assert proposer.cached.row_len == [len(row.token_ids) + K - 1]


def test_a_row_that_was_not_asked_for_long_is_caught_up_with_in_one_pass(passes) -> None:
    model = tiny_llama(1)
    proposer, row = bound(model), row_at(0, [3, 4, 5])
    proposer.propose([row], [2])
    row.token_ids += [9, 8, 7, 6, 5, 4]
    passes.clear()
    proposal = proposer.propose([row], [2])
    # the last token but one of the prompt's pass went to the cache; the drafts of then are gone
    assert [logits for _, logits in passes] == [False, True, True]
    assert proposal.token_ids[0].tolist() == judge(model, row.token_ids, 2)


def test_only_rows_that_are_asked_are_read(passes) -> None:
    proposer = bound(tiny_llama(1), slots=2)
    rows = [row_at(0, [3, 4]), row_at(1, [5, 6])]
    passes.clear()
    proposal = proposer.propose(rows, [0, 0])
    assert passes == [] and proposal.num_tokens.tolist() == [0, 0] and proposal.token_ids.shape == (2, 0)
    proposal = proposer.propose(rows, [0, 3])
    assert proposal.num_tokens.tolist() == [0, 3] and proposer.cached.row_len == [0, 4]
    assert not proposal.probs[0].any() and not proposal.token_ids[0].any()


def test_a_released_slot_holds_nothing() -> None:
    proposer = bound(tiny_llama(1))
    proposer.propose([row_at(0, [3, 4, 5])], [K])
    proposer.release(0)
    assert proposer.cached.row_len == [0]
    assert not any(layer.keys[:, :, :128].any() for layer in proposer.cached.store.layers)


# the draft's own limits


@pytest.mark.parametrize("size", range(14, 23))
def test_a_draft_with_a_shorter_context_stops_at_its_own_limit(size: int) -> None:
    draft = tiny_llama(1)
    draft.config.max_position_embeddings = 20
    proposer, row = bound(draft), row_at(0, [(3 * place) % VOCAB for place in range(size)])
    proposal = proposer.propose([row], [K])
    expected = max(0, min(K, 20 - size))
    assert proposal.num_tokens.tolist() == [expected]
    assert proposal.token_ids[0, :expected].tolist() == judge(draft, row.token_ids, expected)
    assert proposer.cached.row_len[0] <= 20 and proposer.cached.max_len == 20


@pytest.mark.parametrize("prompt", [[5] * 3, [5, 6] * 12])
def test_a_request_goes_on_beyond_the_drafts_context(prompt: list[int]) -> None:
    model, draft = tiny_llama(), tiny_llama()
    draft.config.max_position_embeddings = 20
    row = make_row(prompt, 40)
    assert run(make_decoder(model, DraftModel(draft), K), row) == [judge(model, prompt, 40)]
    at = 0
    for item in row.rounds:
        assert item.num_proposed <= max(0, 20 - len(prompt) - at) and item.num_accepted == item.num_proposed
        at += item.emitted
    assert all(item.draft_error is None for item in row.rounds)
    assert any(item.num_proposed for item in row.rounds) == (len(prompt) < 20)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("draft_size", "size"), [(72, 64), (60, 64)], ids=["larger", "smaller"])
def test_ids_that_only_one_of_the_models_has_are_never_proposed(draft_size: int, size: int, temperature: float) -> None:
    """The draft would love to: its extra ids, or its last ones, have by far the largest logits."""
    draft = tiny_llama(1, vocab=draft_size)
    with torch.no_grad():
        draft.lm_head.weight[64:] = 9.0 * draft.lm_head.weight[0]
    proposer = bound(draft, slots=8, vocab=size)
    rows = [row_at(slot, [3, 4, slot], temperature=temperature, seed=slot) for slot in range(8)]
    proposal = proposer.propose(rows, [K] * 8)
    assert proposal.probs.shape == (8, K, size)
    assert torch.allclose(proposal.probs.sum(-1), torch.ones(8, K, dtype=torch.float64), atol=1e-12)
    shared = min(draft_size, size)
    assert not proposal.probs[..., shared:].any() and proposal.token_ids.max() < shared
    check(proposal, draft, rows, [K] * 8, size)


@pytest.mark.parametrize(("draft_size", "size"), [(72, 64), (60, 64)], ids=["larger", "smaller"])
def test_greedy_output_with_another_vocabulary_is_the_judges(draft_size: int, size: int) -> None:
    model, draft = tiny_llama(vocab=size), tiny_llama(0, vocab=draft_size)
    row = make_row([3, 4, 5, 3, 4, 5], 30)
    assert run(make_decoder(model, DraftModel(draft), K), row) == [judge(model, row.token_ids[:6], 30)]


def test_a_row_with_an_id_that_the_draft_does_not_have_gets_no_draft() -> None:
    proposer = bound(tiny_llama(1, vocab=60), slots=2)
    rows = [row_at(0, [3, 62, 5]), row_at(1, [3, 4, 5])]
    assert proposer.propose(rows, [K, K]).num_tokens.tolist() == [0, K]


def test_a_request_with_an_id_that_the_draft_does_not_have_costs_the_next_one_nothing() -> None:
    model, draft = tiny_llama(vocab=64), tiny_llama(vocab=60)
    decoder = make_decoder(model, DraftModel(draft), K)
    prompt = [3, 62, 5]
    assert run(decoder, make_row(prompt, 40)) == [judge(model, prompt, 40)]
    row = make_row([3, 4, 5], 8)
    run(decoder, row)
    assert any(item.num_proposed for item in row.rounds)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_only_ids_of_the_target_are_allowed_nothing_is_proposed(temperature: float) -> None:
    proposer = bound(tiny_llama(1, vocab=60))
    row = row_at(0, [3, 4, 5], temperature=temperature, allowed_token_ids=(61, 63))
    proposal = proposer.propose([row], [1])
    assert proposal.num_tokens.tolist() == [0]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8])
def test_drafting_stops_before_a_place_where_the_draft_is_unsure_and_not_for_what_was_drawn(threshold: float) -> None:
    """The same tokens as without a threshold, up to the first place whose likeliest token has less."""
    model = tiny_llama(1)
    rows = [row_at(slot, [3, slot], temperature=0.4, seed=slot) for slot in range(12)]
    free, unsure = bound(model, slots=12), bound(model, slots=12, threshold=threshold)
    whole, cut = free.propose(rows, [K] * 12), unsure.propose(rows, [K] * 12)
    lengths = []
    for index in range(12):
        sure = (whole.probs[index].amax(-1) >= threshold).tolist()
        lengths.append(sure.index(False) if False in sure else K)
        count = lengths[-1]
        assert cut.num_tokens[index] == count
        assert torch.equal(cut.token_ids[index, :count], whole.token_ids[index, :count])
        assert torch.allclose(cut.probs[index, :count], whole.probs[index, :count], atol=1e-9)
    assert len(set(lengths)) > 1
    # what was not drafted is not missed in the next round either
    for row, count in zip(rows, lengths, strict=True):
        row.token_ids += [*cut.token_ids[row.slot, :count].tolist(), 9]
    again, fresh = unsure.propose(rows, [K] * 12), bound(model, slots=12, threshold=threshold).propose(rows, [K] * 12)
    assert torch.equal(again.num_tokens, fresh.num_tokens)


@pytest.mark.parametrize("threshold", [-0.1, 1.0, float("nan")])
def test_a_threshold_out_of_range_is_refused(threshold: float) -> None:
    with pytest.raises(InputError, match=f"confidence_threshold = {threshold}: allowed 0 up to"):
        DraftModel("some name", threshold)


def test_a_draft_may_have_another_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        draft = tiny_llama(1, dtype)
        proposer = bound(draft)
        rows = [row_at(0, [3, 4, 5, 6], temperature=1.0)]
        proposal = proposer.propose(rows, [1])
        expected = token_law(logits_after(draft, [3, 4, 5, 6])[None, None], [rows[0].params])[0, 0]
        assert proposal.probs.dtype == torch.float64
        assert torch.allclose(proposal.probs[0, 0], expected, atol=1e-6 if dtype == torch.float32 else 0.05)


def test_a_name_is_loaded_once_and_a_model_is_taken_as_it_is() -> None:
    model, asked = tiny_llama(1), []

    def loader(name: str):
        asked.append(name)
        return model

    named, given = DraftModel("some name"), DraftModel(model)
    for proposer in (named, given):
        proposer.load(loader)
        proposer.load(loader)
        assert proposer.source is model
    assert asked == ["some name"]
