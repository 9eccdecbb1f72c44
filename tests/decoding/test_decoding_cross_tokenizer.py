"""A draft with another vocabulary: what it reads, what it may propose, and that nothing of it is seen in the output."""

import copy
import random
from itertools import product

import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from draftproof import Engine
from draftproof.decoding.proposers.draft_cache import CATCH_UP
from draftproof.decoding.proposers.pieces import shared_tokens, token_pieces
from draftproof.decoding.proposers.rendering import LONG_ENOUGH, Reader, Rendering, drops_first_space
from draftproof.errors import InputError, ModelError
from draftproof.proposers import CrossTokenizer, DraftModel, FirstOf, PromptLookup, ProposerContext
from draftproof.sampling.accept import residual
from draftproof.sampling.coupled import coupled
from draftproof.sampling.draw import draw_alone, draw_shared
from draftproof.sampling.law import token_law
from draftproof.sampling.noise import KeyedNoise
from support.toy_engines import ask, make_engine, numbered_words
from support.toy_models import VOCAB, judge, make_decoder, make_row, run, tiny_llama
from support.toy_tokenizers import byte_level, sentencepiece, spelt_words

pytestmark = pytest.mark.usefixtures("short_self_test")

K = 3
BYTES, PIECES = byte_level(), sentencepiece()
KINDS = {"byte-level": BYTES, "sentencepiece": PIECES, "words": numbered_words(), "metaspace": spelt_words()}
TEXTS = [
    "the red blue",
    "the  red   blue ",
    " the red",
    "  the",
    "red\n\n the\n",
    "a \u00e9t\u00e9 \u65e5\u672c \U0001f600!",
    "thethe,the. ing",
    "\u2581the <s> <unk> <0x41>",
    "\t\r\n",
]


def bound(
    proposer: CrossTokenizer,
    target_tokenizer,
    *,
    slots: int = 1,
    max_len: int = 128,
    vocab: int | None = None,
    draw=None,
) -> CrossTokenizer:
    proposer.bind(
        ProposerContext(
            num_slots=slots,
            max_len=max_len,
            num_speculative_tokens=K,
            vocab_size=vocab or len(target_tokenizer),
            device=torch.device("cpu"),
            noise=KeyedNoise(),
            draw=draw or draw_alone,
            tokenizer=target_tokenizer,
        )
    )
    return proposer


def row_at(slot: int, token_ids: list[int], **options):
    row = make_row(token_ids, 200, request_id=slot, **options)
    row.slot = slot
    return row


def logits_after(model, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]


def rendering(target, draft) -> Rendering:
    pieces = token_pieces(target)
    return Rendering(pieces, drops_first_space(target, pieces), Reader(draft, token_pieces(draft)))


def joined(tokenizer, token_ids: list[int]) -> bytes:
    """REF of what ordinary tokens stand for: the tokenizer's own decoding, behind a letter so that no space is dropped."""
    (front,) = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
    decoded = tokenizer.decode([front, *token_ids], clean_up_tokenization_spaces=False)
    return decoded.removeprefix(tokenizer.decode([front])).encode()


# what tokens stand for


@pytest.mark.parametrize("kind", KINDS)
def test_an_ordinary_token_stands_for_the_text_that_its_tokenizer_decodes(kind: str) -> None:
    tokenizer = KINDS[kind]
    pieces = token_pieces(tokenizer)
    assert pieces.keys() == set(tokenizer.get_vocab().values())
    special = {token_id: name for name, token_id in tokenizer.get_added_vocab().items()}
    seen = 0
    for token_id, piece in pieces.items():
        if token_id in special:
            assert piece == special[token_id]
        elif piece.isascii():
            assert joined(tokenizer, [token_id]) == piece
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_the_pieces_of_a_text_are_its_bytes(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    pieces = token_pieces(tokenizer)
    token_ids = tokenizer(text.replace("<s>", "").replace("<unk>", ""), add_special_tokens=False)["input_ids"]
    expected = " " * (kind == "sentencepiece") + text.replace("<s>", "").replace("<unk>", "").replace("\u2581", " ")
    if kind == "byte-level":
        expected = expected.replace(" the", "\u2581the", 1) if text.startswith("\u2581") else expected
    assert b"".join(pieces[token_id] for token_id in token_ids) == expected.encode()


def test_shared_tokens_are_alike_byte_by_byte_and_one_to_one() -> None:
    first, second = token_pieces(BYTES), token_pieces(PIECES)
    shared = shared_tokens(first, second)
    assert all(first[target] == second[draft] for target, draft in shared.items())
    assert len(set(shared.values())) == len(shared)
    assert set(map(first.get, shared)) == set(first.values()) & set(second.values())
    for both in (b" the", b" red", b"\n", b"a", b"\xc3"):
        assert both in set(map(first.get, shared))
    # a byte fallback is not what text becomes where there is a letter
    token_of = {piece: token_id for token_id, piece in second.items() if not 3 <= token_id < 259}
    assert token_of[b"a"] in shared.values()


def test_special_tokens_are_shared_by_name_and_never_with_their_spelling() -> None:
    ends = byte_level("</s> the", special=("</s>", "<|user|>")), byte_level("the", special=("<|user|>",))
    pieces = [token_pieces(tokenizer) for tokenizer in (*ends, PIECES)]
    assert shared_tokens(pieces[0], pieces[2])[ends[0].eos_token_id] == PIECES.eos_token_id
    users = [tokenizer.convert_tokens_to_ids("<|user|>") for tokenizer in ends]
    assert shared_tokens(pieces[0], pieces[1])[users[0]] == users[1]
    spelt = byte_level("<|user|>")
    (plain,) = [token_id for token_id, piece in token_pieces(spelt).items() if piece == b" <|user|>"]
    assert plain not in shared_tokens(token_pieces(spelt), pieces[1])


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        pytest.param(object(), "object does not show what its tokens stand for; give a tokenizer with", id="none"),
        pytest.param("wordpiece", "decodes by WordPiece cannot be compared.*allowed: byte-level", id="wordpiece"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(tokenizer, message: str) -> None:
    if tokenizer == "wordpiece":
        inner = Tokenizer(BPE({"a": 0}, []))
        inner.decoder = decoders.WordPiece()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    with pytest.raises(ModelError, match=message):
        token_pieces(tokenizer)


# what the draft reads


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("target", "draft"), [(BYTES, PIECES), (PIECES, BYTES), (BYTES, BYTES), (PIECES, PIECES)])
def test_a_text_is_read_as_the_draft_would_encode_it_however_it_comes(target, draft, text: str) -> None:
    token_ids = target(text, add_special_tokens=False)["input_ids"]
    whole = rendering(target, draft).read(token_ids)
    # sentencepiece has no way to tell "\u2581" from a space; and a space before a text is the one that it adds itself
    told = target.decode(token_ids, clean_up_tokenization_spaces=False) if "<s>" not in text else None
    if told is not None:
        assert whole == draft(told.removeprefix(" ") if draft is PIECES else told)["input_ids"]
    for seed in range(4):
        rng, part, at = random.Random(seed), rendering(target, draft), 0
        while at < len(token_ids):
            at = min(len(token_ids), at + rng.choice([1, 1, 2, 5]))
            last = part.read(token_ids[:at])
        assert last == whole


def test_half_a_character_waits() -> None:
    token_ids = BYTES("the \U0001f600")["input_ids"]
    part = rendering(BYTES, PIECES)
    read = [part.read(token_ids[:size]) for size in range(len(token_ids) - 4, len(token_ids) + 1)]
    assert [bool(tokens) for tokens in read] == [True, False, False, False, True]
    assert read[-1] == PIECES("the \U0001f600")["input_ids"]


def test_bytes_that_are_no_character_are_read_as_a_replacement_and_not_for_ever_waited_for() -> None:
    byte_of = {piece: token_id for token_id, piece in token_pieces(BYTES).items()}
    broken = [byte_of[b"\xf0"], byte_of[b"\x9f"], byte_of[b"a"], byte_of[b"\xff"], byte_of[b"\xe4"], byte_of["<|end|>"]]
    assert rendering(BYTES, PIECES).read(broken) == PIECES("\ufffda\ufffd\ufffd")["input_ids"]


def test_special_tokens_are_kept_where_both_have_them_and_left_out_elsewhere() -> None:
    target, draft = byte_level(special=("</s>", "<|user|>", "<s>")), PIECES
    text = "<s><|user|>the red</s>\nblue"
    part, plain = rendering(target, draft), {"add_special_tokens": False}
    assert part.read(target(text)["input_ids"]) == [
        draft.bos_token_id,
        *draft("the red", **plain)["input_ids"],
        draft.eos_token_id,
        *draft("\nblue", **plain)["input_ids"],
    ]
    unknown = len(target) + 5
    assert rendering(target, draft).read([unknown, *target("the")["input_ids"]]) == draft("the")["input_ids"]


@pytest.mark.parametrize(("target", "draft"), [(BYTES, PIECES), (PIECES, BYTES)])
def test_a_long_text_is_read_once_and_as_a_whole_text_would_be(target, draft, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    text = " ".join(rng.choice("the red blue theory reading, and. xyz".split()) for _ in range(500))
    token_ids = target(text, add_special_tokens=False)["input_ids"]
    part, sizes, encode = rendering(target, draft), [], Reader.encode

    def counted(self, text: str) -> list[int]:
        sizes.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(Reader, "encode", counted)
    for size in range(1, len(token_ids) + 1, 7):
        last = part.read(token_ids[:size])
    assert part.read(token_ids) == rendering(target, draft).read(token_ids) == draft(text)["input_ids"]
    assert last and max(sizes) < LONG_ENOUGH + 20 < len(text) / 5


# what it proposes


def intersection(logits: torch.Tensor, params, target, draft, size: int) -> torch.Tensor:
    """REF: the draft's probabilities at the temperature, by piece, without what the target lacks, divided by their sum."""
    probs = (logits.double() / params.temperature).softmax(-1)
    own = {piece: probs[token_id].item() for token_id, piece in token_pieces(draft).items()}
    law = torch.zeros(size, dtype=torch.float64)
    for token_id, piece in token_pieces(target).items():
        law[token_id] = own.get(piece, 0.0)
    return law / law.sum()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(("target", "draft"), [(BYTES, PIECES), (PIECES, BYTES)], ids=["to-pieces", "to-bytes"])
def test_the_law_is_the_drafts_over_what_both_have_at_every_place(target, draft, temperature: float) -> None:
    """Over rows that share a batch; within a draft each token is read as the draft's own of the same bytes."""
    model, size = tiny_llama(1, vocab=len(draft)), len(target)
    texts = ["the red", "a  blue\n", "reading \U0001f600"]
    rows = [
        row_at(slot, target(text, add_special_tokens=False)["input_ids"], temperature=temperature, seed=slot)
        for slot, text in enumerate(texts)
    ]
    proposer = bound(CrossTokenizer(model, draft), target, slots=3)
    proposal = proposer.propose(rows, [K, K - 1, K])
    assert proposal.num_tokens.tolist() == [K, K - 1, K]
    shared, noise = shared_tokens(token_pieces(target), token_pieces(draft)), KeyedNoise()
    for index, (row, text) in enumerate(zip(rows, texts, strict=True)):
        tokens = list(draft(text)["input_ids"])
        for place in range(int(proposal.num_tokens[index])):
            logits = logits_after(model, tokens)
            kept = torch.full((size,), -torch.inf, dtype=torch.float64)
            for target_id, draft_id in shared.items():
                kept[target_id] = logits[draft_id]
            law = token_law(kept[None, None], [row.params])[0, 0]
            assert torch.allclose(proposal.probs[index, place], law, atol=1e-9)
            drawn = int(draw_alone(law[None], [row.key], [row.num_generated + place], noise))
            assert proposal.token_ids[index, place].item() == drawn
            tokens.append(shared[drawn])


def test_restricting_is_renormalising_the_probabilities_by_piece() -> None:
    """Against the definition over strings; the two toy vocabularies of numbered words spell nothing twice."""
    target, draft = numbered_words(), spelt_words(lambda number: number % 4 != 0)
    model = tiny_llama(1, vocab=len(draft))
    row = row_at(0, [2, 5, 8, 3], temperature=0.8)
    proposal = bound(CrossTokenizer(model, draft), target).propose([row], [1])
    logits = logits_after(model, draft("w02 w05 w08 w03")["input_ids"])
    expected = intersection(logits, row.params, target, draft, VOCAB)
    assert torch.allclose(proposal.probs[0, 0], expected, atol=1e-9)
    assert not proposal.probs[0, 0, 4::4].any() and (proposal.probs[0, 0, 5::4] > 0).all()


def test_the_same_tokenizer_gives_what_a_draft_model_gives() -> None:
    target, model = numbered_words(), tiny_llama(1)
    rows = [row_at(slot, [3, 4, slot + 2], temperature=1.0, seed=slot, top_k=9) for slot in range(4)]
    crossed = bound(CrossTokenizer(model, numbered_words()), target, slots=4).propose(rows, [K] * 4)
    plain = bound(DraftModel(model), target, slots=4).propose(rows, [K] * 4)
    assert torch.equal(crossed.token_ids, plain.token_ids) and torch.equal(crossed.num_tokens, plain.num_tokens)
    assert torch.allclose(crossed.probs, plain.probs, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_beyond_a_tokenizer_or_a_model_are_never_proposed(temperature: float) -> None:
    """The draft would love to: ids that its tokenizer lacks have by far the largest logits."""
    draft, target = spelt_words(vocab=50), numbered_words(60)
    model = tiny_llama(1, vocab=len(draft) + 9)
    with torch.no_grad():
        model.lm_head.weight[len(draft) :] = 9.0 * model.lm_head.weight[0]
    proposer = bound(CrossTokenizer(model, draft), target, slots=4, vocab=VOCAB)
    rows = [row_at(slot, [3, 4, slot + 2], temperature=temperature, seed=slot) for slot in range(4)]
    proposal = proposer.propose(rows, [K] * 4)
    assert proposal.probs.shape == (4, K, VOCAB) and not proposal.probs[..., 50:].any()
    assert proposal.num_tokens.tolist() == [K] * 4 and proposal.token_ids.max() < 50
    # a target with fewer ids than its tokenizer
    fewer = bound(CrossTokenizer(tiny_llama(1, vocab=90), spelt_words()), numbered_words(), slots=4, vocab=40)
    proposal = fewer.propose(rows, [K] * 4)
    assert proposal.probs.shape == (4, K, 40) and proposal.num_tokens.tolist() == [K] * 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_with_fewer_ids_than_its_tokenizer_proposes_and_reads_those_only(temperature: float) -> None:
    proposer = bound(CrossTokenizer(tiny_llama(1, vocab=60), spelt_words()), numbered_words(), slots=2)
    own = spelt_words().convert_tokens_to_ids
    rows = [row_at(slot, [61, 62, last], temperature=temperature, seed=slot) for slot, last in enumerate((60, 3))]
    assert own("\u2581w60") < 60 <= own("\u2581w03")
    proposal = proposer.propose(rows, [K] * 2)
    assert proposal.num_tokens.tolist() == [K, 0]
    words = proposal.probs[0].sum(0).nonzero()[:, 0].tolist()
    assert all(word < 2 or own(f"\u2581w{word:02}") < 60 for word in words)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_ends_where_there_is_nothing_that_both_have(temperature: float) -> None:
    """At once for one row, and after two tokens for another, by what its processor leaves; the third goes on."""
    draft = spelt_words(lambda number: number % 4 != 0)

    def later(input_ids, scores):
        kept = torch.full_like(scores, -torch.inf)
        chosen = [4, 8] if input_ids.shape[1] >= 5 else [5, 6, 8]
        kept[:, chosen] = scores[:, chosen]
        return kept

    proposer = bound(CrossTokenizer(tiny_llama(1, vocab=80), draft), numbered_words(), slots=3)
    rows = [
        row_at(0, [3, 4, 5], temperature=temperature, allowed_token_ids=(4, 8, 12)),
        row_at(1, [3, 4, 5], temperature=temperature, logits_processors=(later,)),
        row_at(2, [3, 4, 5], temperature=temperature),
    ]
    assert proposer.propose(rows, [K] * 3).num_tokens.tolist() == [0, 2, K]


def test_a_row_that_ends_in_half_a_character_gets_no_draft_until_it_is_whole() -> None:
    token_ids = BYTES("the \U0001f600")["input_ids"]
    proposer = bound(CrossTokenizer(tiny_llama(1, vocab=len(PIECES)), PIECES), BYTES, slots=2)
    half, whole = row_at(0, token_ids[:-1]), row_at(1, token_ids[:2])
    assert proposer.propose([half, whole], [K, K]).num_tokens.tolist() == [0, K]
    half.token_ids += token_ids[-1:]
    fresh = bound(CrossTokenizer(tiny_llama(1, vocab=len(PIECES)), PIECES), BYTES)
    again, expected = proposer.propose([half], [K]), fresh.propose([row_at(0, token_ids)], [K])
    assert torch.equal(again.token_ids, expected.token_ids) and again.num_tokens.tolist() == [K]


def test_a_prompt_that_the_draft_cannot_read_gets_no_draft() -> None:
    """Nothing but special tokens of the target, and a draft without a BOS of its own."""
    proposer = bound(CrossTokenizer(tiny_llama(1, vocab=len(PIECES)), sentencepiece(bos=False)), BYTES)
    assert proposer.propose([row_at(0, [BYTES.eos_token_id])], [K]).num_tokens.tolist() == [0]


def test_earlier_tokens_that_are_spelt_anew_are_taken_back() -> None:
    """ "the" then "ory": the draft has one token for both, and its cache holds the first spelling."""
    token_ids = BYTES(" red the")["input_ids"] + BYTES("ory")["input_ids"]
    model = tiny_llama(1, vocab=len(PIECES))
    proposer = bound(CrossTokenizer(model, PIECES), BYTES)
    row = row_at(0, token_ids[:-3])
    proposer.propose([row], [K])
    before = proposer.cached.row_len[0]
    row.token_ids += token_ids[-3:]
    proposal = proposer.propose([row], [1])
    read = PIECES("red theory")["input_ids"]
    assert len(read) == len(PIECES("red the")["input_ids"]) and before > len(read)
    assert proposer.cached.row_len == [len(read)]
    logits = logits_after(model, read)
    shared = shared_tokens(token_pieces(BYTES), token_pieces(PIECES))
    assert proposal.token_ids.item() == max(shared, key=lambda target_id: logits[shared[target_id]].item())


def test_a_released_slot_forgets_its_text() -> None:
    proposer = bound(CrossTokenizer(tiny_llama(1, vocab=len(PIECES)), PIECES), BYTES)
    proposer.propose([row_at(0, BYTES("the red blue \U0001f600")["input_ids"][:-1])], [K])
    proposer.release(0)
    assert proposer.cached.row_len == [0]
    used = proposer.propose([row_at(0, BYTES("the red")["input_ids"])], [K])
    fresh = bound(CrossTokenizer(tiny_llama(1, vocab=len(PIECES)), PIECES), BYTES)
    expected = fresh.propose([row_at(0, BYTES("the red")["input_ids"])], [K])
    assert torch.equal(used.token_ids, expected.token_ids) and torch.allclose(used.probs, expected.probs, atol=1e-9)


@pytest.mark.parametrize("size", range(4, 13))
def test_a_draft_stops_at_its_own_context_limit_in_its_own_tokens(size: int) -> None:
    """Every fourth word is two tokens of the draft."""
    draft = tiny_llama(1, vocab=80)
    draft.config.max_position_embeddings = 12
    tokenizer = spelt_words(lambda number: number % 4 != 0)
    proposer = bound(CrossTokenizer(draft, tokenizer), numbered_words(), max_len=64)
    tokens = [2 + place % 10 for place in range(size)]
    read = len(tokenizer(numbered_words().decode(tokens))["input_ids"])
    assert read == size + sum(token_id % 4 == 0 for token_id in tokens) > size
    proposal = proposer.propose([row_at(0, tokens)], [K])
    assert proposal.num_tokens.tolist() == [max(0, min(K, 12 - read))] and proposer.cached.max_len == 12


def test_the_drafts_cache_has_room_for_a_longer_spelling() -> None:
    proposer = bound(CrossTokenizer(tiny_llama(1, vocab=90), spelt_words()), numbered_words(), max_len=60)
    assert proposer.cached.max_len == 120


# the output is the target's


def permuted(model, target, draft):
    """The target's weights, in the draft's ids; a token that the target lacks is never likely."""
    twin = tiny_llama(0, model.dtype, vocab=len(draft))
    state = copy.deepcopy(model.state_dict())
    shared = shared_tokens(token_pieces(target), token_pieces(draft))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = torch.zeros(len(draft), state[name].shape[1], dtype=model.dtype)
        for target_id, draft_id in shared.items():
            rows[draft_id] = state[name][target_id]
        state[name] = rows
    twin.load_state_dict(state)
    return twin.eval()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_the_target_in_other_ids_is_accepted_whole(temperature: float) -> None:
    target, draft, model = numbered_words(), spelt_words(), tiny_llama()
    words = tuple(range(2, VOCAB))
    decoder = make_decoder(
        model, CrossTokenizer(permuted(model, target, draft), draft), K, slots=2, tokenizer=target, accept=coupled,
        draw=draw_shared,
    )  # fmt: skip
    rows = [
        make_row([3, 4, slot + 5], 24, request_id=slot, seed=slot, temperature=temperature, allowed_token_ids=words)
        for slot in range(3)
    ]
    run(decoder, *rows)
    assert all(item.draft_error is None for row in rows for item in row.rounds)
    assert all(item.num_accepted == item.num_proposed for row in rows for item in row.rounds)
    assert sum(item.num_accepted for row in rows for item in row.rounds) >= 50


def decoder_of(model, target, draft, **parts):
    """The draft is random but for the words that it shares: it is the target in other ids, a little disturbed."""
    twin = permuted(model, target, draft)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter += torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.02
    return make_decoder(model, CrossTokenizer(twin, draft), K, tokenizer=target, **parts)


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        pytest.param(BYTES, PIECES, id="bytes-pieces"),
        pytest.param(PIECES, BYTES, id="pieces-bytes"),
        pytest.param(numbered_words(), spelt_words(lambda number: number % 16 != 0), id="words"),
    ],
)
def test_greedy_output_is_the_judges_for_rows_that_join_and_leave(target, draft) -> None:
    """Random models write half characters, bytes that are none, and special tokens."""
    model = tiny_llama(vocab=len(target))
    prompts = [target(text)["input_ids"] for text in ("the red", "w03 w17  w05", "\U0001f600 blue")]
    decoder = decoder_of(model, target, draft, slots=2)
    rows = [make_row(prompt, 12 + 3 * number, request_id=number) for number, prompt in enumerate(prompts)]
    assert run(decoder, *rows) == [judge(model, prompt, 12 + 3 * number) for number, prompt in enumerate(prompts)]
    assert all(item.draft_error is None for row in rows for item in row.rounds)
    proposed, accepted = (
        sum(getattr(item, name) for row in rows for item in row.rounds) for name in ("num_proposed", "num_accepted")
    )
    assert 0 < accepted < proposed


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_coupled_output_is_that_of_the_target_alone(temperature: float) -> None:
    model = tiny_llama(vocab=len(BYTES))
    prompts = [BYTES(text)["input_ids"] for text in ("the red", "\U0001f600 blue", "reading  and")]

    def rows() -> list:
        return [
            make_row(prompt, 20, request_id=seed, seed=seed, temperature=temperature)
            for seed, prompt in enumerate(prompts)
        ]

    speculative = rows()
    decoder = decoder_of(model, BYTES, PIECES, slots=2, accept=coupled, draw=draw_shared)
    assert run(decoder, *speculative) == run(make_decoder(model, None, K, accept=coupled), *rows())
    assert any(item.num_accepted for row in speculative for item in row.rounds)


class Told:
    """Draws what it is told, and keeps the laws that it was to draw from."""

    def tell(self, tokens: tuple[int, ...]) -> None:
        self.tokens, self.laws = tokens, []

    def __call__(self, probs, keys, positions, noise) -> torch.Tensor:
        self.laws.append(probs[0].clone())
        return torch.tensor([self.tokens[len(self.laws) - 1]])


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"frequency_penalty": 1.5}], ids=["plain", "top-k", "penalty"])
@pytest.mark.parametrize("allowed", [(2, 3, 5, 4), (3, 8, 4)], ids=["one-unshared", "two-unshared"])
def test_a_round_has_the_targets_law(allowed: tuple[int, ...], options: dict) -> None:
    """
    Every draft, every acceptance and every correction, in float64, against the target's own law of K + 1 tokens.

    A draft is weighed by the law that it was drawn from, and corrected by the one that is reported. Words 4 and 8 are not the draft's.
    """
    width, model, prompt = 2, tiny_llama(), [3, 4, 5]
    proposer = CrossTokenizer(tiny_llama(1, vocab=80), spelt_words(lambda number: number % 4 != 0))
    row = row_at(0, prompt, temperature=1.3, allowed_token_ids=allowed, **options)
    draw = Told()
    bound(proposer, numbered_words(), draw=draw)

    def target_law(tokens: tuple[int, ...]) -> torch.Tensor:
        after = make_row(prompt, 9)
        after.token_ids += tokens
        return token_law(logits_after(model, after.token_ids)[None, None], [row.params], [after.prefix()])[0, 0]

    laws = {tokens: target_law(tokens) for size in range(width + 1) for tokens in product(allowed, repeat=size)}
    result = dict.fromkeys(product(allowed, repeat=width + 1), 0.0)

    def complete(tokens: tuple[int, ...], weight: float) -> None:
        if len(tokens) == width + 1:
            result[tokens] += weight
            return
        for token in allowed:
            if weight * laws[tokens][token] > 0:
                complete((*tokens, token), weight * laws[tokens][token].item())

    total = 0.0
    for told in product([word for word in allowed if word % 4], repeat=width):
        draw.tell(told)
        proposal = proposer.propose([row], [width])
        count = int(proposal.num_tokens[0])
        assert count == width
        weight = 1.0
        for place in range(count):
            weight *= draw.laws[place][told[place]].item()
        total += weight
        if weight == 0:
            continue
        for place, token in enumerate(told):
            target, reported = laws[told[:place]], proposal.probs[0, place]
            keep = min(1.0, (target[token] / reported[token]).item())
            left = residual(target[None], reported[None])[0]
            for other in allowed:
                complete((*told[:place], other), weight * (1 - keep) * left[other].item())
            weight *= keep
        complete(told, weight)
    assert total == pytest.approx(1, abs=1e-12)
    for tokens, share in result.items():
        exact = 1.0
        for size in range(width + 1):
            exact *= laws[tokens[:size]][tokens[size]].item()
        assert share == pytest.approx(exact, abs=1e-12)


# loading, refusing, counting


def test_vocabularies_that_share_next_to_nothing_are_refused() -> None:
    digits = spelt_words(lambda number: False)
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE({chr(0x3B1 + at): at for at in range(20)}, [])))
    with pytest.raises(
        ModelError, match=r"shares 0 tokens with the target's, of 20 in the smaller one; too few.*use another"
    ):
        bound(CrossTokenizer(tiny_llama(1, vocab=80), digits), other)


def test_what_is_missing_is_told() -> None:
    model = tiny_llama(1)
    with pytest.raises(InputError, match="got a name with a tokenizer"):
        CrossTokenizer("some-draft", numbered_words())
    with pytest.raises(InputError, match="got a model without one"):
        CrossTokenizer(model)
    with pytest.raises(InputError, match=r"confidence_threshold = 1\.0"):
        CrossTokenizer(model, numbered_words(), 1.0)
    with pytest.raises(ModelError, match="'some-draft' is not loaded"):
        make_engine(proposer=CrossTokenizer("some-draft"))
    with pytest.raises(ModelError, match="needs the target's tokenizer"):
        make_decoder(model, CrossTokenizer(model, numbered_words()))


def test_a_name_is_loaded_once_with_its_tokenizer() -> None:
    model, tokenizer, asked = tiny_llama(1), numbered_words(), []

    def loader(name: str):
        asked.append(name)
        return model, tokenizer

    proposer = CrossTokenizer("some name", confidence_threshold=0.25)
    for _ in range(2):
        proposer.load(loader)
    twin = copy.deepcopy(proposer)
    assert asked == ["some name"] and twin is not proposer
    assert twin.source is model and twin.tokenizer is tokenizer and twin.confidence_threshold == 0.25


def test_an_engine_counts_its_memory_and_a_sibling_shares_its_weights() -> None:
    model, draft = tiny_llama(), tiny_llama(1, vocab=90)
    engine = make_engine(model, proposer=FirstOf(PromptLookup(), CrossTokenizer(draft, spelt_words())), max_len=100)
    memory = engine.memory()
    assert memory["draft_weights"] == sum(parameter.nbytes for parameter in draft.parameters())
    assert memory["draft_cache"] == memory["target_cache"] // (100 + engine.num_speculative_tokens + 1) * (
        200 + CATCH_UP
    )
    sibling = engine.sibling(max_batch=2, max_len=60)
    first, second = (each.proposer.proposers[1] for each in (engine, sibling))
    assert first.source is second.source and first.cached is not second.cached
    prompts, params = [[3, 4, 5], [9, 2]], ask(12)
    expected = [judge(model, prompt, 12) for prompt in prompts]
    for each in (engine, sibling):
        done = each.generate(prompts, params)
        assert [list(item.token_ids) for item in done] == expected


@pytest.mark.parametrize("batch", [1, 2])
def test_models_by_name_are_loaded_and_a_plain_draft_model_points_here(tmp_path, batch: int) -> None:
    tokenizers = {"target": numbered_words(), "draft": spelt_words()}
    for name, tokenizer in tokenizers.items():
        tiny_llama(0, torch.bfloat16, vocab=len(tokenizer)).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    names = [str(tmp_path / name) for name in tokenizers]
    if batch == 1:
        with pytest.raises(ModelError, match=r"has another tokenizer.*use CrossTokenizer with this draft"):
            Engine.from_pretrained(names[0], proposer=DraftModel(names[1]), max_len=64)
    engine = Engine.from_pretrained(names[0], proposer=CrossTokenizer(names[1]), max_len=64, max_batch=batch)
    plain, speculative = (
        engine.generate(["w03 w04", "w05"], ask(12), speculate=speculate) for speculate in (False, True)
    )
    if engine.capabilities.claim == "bitwise":
        assert [item.token_ids for item in plain] == [item.token_ids for item in speculative]
    assert all(item.speculation.num_draft_tokens > 5 for item in speculative)
    assert all(turn.draft_error is None for item in speculative for turn in item.rounds)
