"""A block is cut where its tokens, one by one, would have ended the request."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.decoding.stopping import StopRule

PIECES = ["a", "b", "ab", "", "ca"]  # token 2 is two characters, token 3 is special and has no text
EOS = 3


def decode(token_ids) -> str:
    return "".join(PIECES[token_id] for token_id in token_ids)


def rule(max_tokens: int = 100, **options) -> StopRule:
    return StopRule(max_tokens=max_tokens, decode=decode, **options)


def one_by_one(held: StopRule, generated: list[int], new: list[int]):
    """REF: tokens, reason and text, when each token is looked at alone."""
    tokens = list(generated)
    for token_id in new:
        before = decode(tokens)
        tokens.append(token_id)
        text = decode(tokens)
        begins = [text.find(stop, max(0, len(before) - len(stop) + 1)) for stop in held.stop]
        begins = [at for at in begins if at >= 0 and len(tokens) >= held.min_tokens]
        if begins:
            return tokens, "stop", text[: min(begins)]
        if token_id in held.end_token_ids:
            return tokens, "stop", text
        if len(tokens) == held.max_tokens:
            return tokens, "length", text
    return tokens, None, decode(tokens)


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("before", [0, 1, 7])
def test_an_end_token_at_every_offset_stays_and_what_follows_goes(before: int, offset: int) -> None:
    block = [0] * offset + [EOS] + [1, EOS, 1][: 4 - offset]
    held = rule(end_token_ids=frozenset({EOS}))
    assert held.cut([0] * before, block) == ([0] * offset + [EOS], "stop")
    assert rule().cut([0] * before, block) == (block, None)


@pytest.mark.parametrize(("before", "size"), list(itertools.product(range(6), range(1, 6))))
def test_the_length_is_exact_at_every_offset(before: int, size: int) -> None:
    kept, reason = rule(6).cut([0] * before, [1] * size)
    assert kept == [1] * min(size, 6 - before)
    assert reason == ("length" if before + size >= 6 else None)


@pytest.mark.parametrize("split", range(1, 6))
def test_a_stop_string_is_found_across_two_blocks(split: int) -> None:
    """The text is bbabaa, and the stop string baba... ends with its fifth character."""
    tokens, held = [1, 1, 0, 1, 0, 0], rule(stop=("baba",))
    first, second = tokens[:split], tokens[split:]
    if split < 5:
        assert held.cut([], first) == (first, None)
        assert held.cut(first, second) == (tokens[split:5], "stop")
    else:
        assert held.cut([], first) == (first, "stop")
    assert held.text(tokens[:5]) == "b"


@pytest.mark.parametrize(
    ("options", "block", "expected"),
    [
        pytest.param({"max_tokens": 2, "end_token_ids": frozenset({EOS})}, [0, EOS], ([0, EOS], "stop"), id="end-last"),
        pytest.param({"max_tokens": 2, "stop": ("ab",)}, [0, 1], ([0, 1], "stop"), id="stop-string-last"),
        pytest.param({"max_tokens": 1, "stop": ("ab",)}, [0, 1], ([0], "length"), id="length-first"),
        pytest.param(
            {"end_token_ids": frozenset({EOS}), "stop": ("ab",)}, [0, EOS, 1], ([0, EOS], "stop"), id="end-first"
        ),
        pytest.param(
            {"end_token_ids": frozenset({EOS}), "stop": ("ab",)}, [0, 1, EOS], ([0, 1], "stop"), id="stop-string-first"
        ),
        pytest.param({"stop": ("ba", "ab")}, [0, 1, 0], ([0, 1], "stop"), id="the-earlier-of-two"),
        pytest.param({"stop": ("zz",)}, [0, 1], ([0, 1], None), id="nothing"),
        pytest.param({"stop": ("ab",)}, [], ([], None), id="empty-block"),
    ],
)
def test_the_first_end_wins_and_an_end_is_stronger_than_the_length(options: dict, block: list[int], expected) -> None:
    assert rule(**options).cut([], block) == expected


@pytest.mark.parametrize(
    ("stop", "tokens", "text"),
    [
        pytest.param(("ca",), [1, 4], "b", id="inside-one-token"),
        pytest.param(("c",), [1, 4], "b", id="the-rest-of-its-token-goes-too"),
        pytest.param(("bca", "a"), [1, 4], "", id="the-one-that-begins-first"),
        pytest.param(("x",), [1, 4], "bca", id="none"),
        pytest.param((), [1, EOS, 0], "ba", id="no-stop-strings"),
    ],
)
def test_the_text_ends_before_the_first_stop_string(stop: tuple[str, ...], tokens: list[int], text: str) -> None:
    assert rule(stop=stop).text(tokens) == text


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(
    blocks=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=1, max_size=6),
    max_tokens=st.integers(1, 20),
    min_tokens=st.integers(0, 6),
    ends=st.frozensets(st.sampled_from([1, EOS]), max_size=2),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=2).map(tuple),
)
def test_blocks_end_where_their_tokens_one_by_one_would(blocks, max_tokens, min_tokens, ends, stop) -> None:
    held = rule(max_tokens, min_tokens=min(min_tokens, max_tokens), end_token_ids=ends, stop=stop)
    expected = one_by_one(held, [], [token_id for block in blocks for token_id in block])
    generated: list[int] = []
    reason = None
    for block in blocks:
        kept, reason = held.cut(generated, block)
        assert kept == block[: len(kept)]
        generated += kept
        if reason is not None:
            break
    assert (generated, reason) == expected[:2]
    if reason is not None:
        assert held.text(generated) == expected[2]


def test_a_stop_string_that_the_next_token_decodes_away_still_ends_the_request() -> None:
    """Some tokenizers drop the space before a full stop, so the text of a prefix is no prefix of the text."""
    pieces = ["end", " ", "."]

    def tidy(token_ids) -> str:
        return "".join(pieces[token_id] for token_id in token_ids).replace(" .", ".")

    held = StopRule(max_tokens=9, decode=tidy, stop=("end ",))
    plain: list[int] = []
    for token_id in (0, 1, 2):
        kept, reason = held.cut(plain, [token_id])
        plain += kept
        if reason is not None:
            break
    assert held.cut([], [0, 1, 2]) == (plain, "stop")


@pytest.mark.parametrize(
    ("stop", "tokens", "shown"),
    [
        pytest.param(("abc",), [1, 0], "b", id="one-character-begun"),
        pytest.param(("abc",), [1, 0, 1], "b", id="two-characters-begun"),
        pytest.param(("abc", "ba"), [1], "", id="another-begun"),
        pytest.param(("abc",), [0, 1, 1], "abb", id="begun-and-gone-on-otherwise"),
        pytest.param(("aab",), [0, 0, 0], "a", id="begun-again-inside"),
        pytest.param((), [0, 1], "ab", id="no-stop-strings"),
    ],
)
def test_while_a_request_goes_on_what_may_become_a_stop_string_is_held_back(stop, tokens, shown: str) -> None:
    assert rule(stop=stop).text(tokens, ended=False) == shown
    assert rule(stop=stop).text(tokens) == decode(tokens)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    tokens=st.lists(st.integers(0, 4), max_size=12),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=2).map(tuple),
)
def test_what_was_shown_is_never_taken_back(tokens: list[int], stop: tuple[str, ...]) -> None:
    held = rule(stop=stop)
    kept, reason = held.cut([], tokens)
    texts = [held.text(kept[:size], ended=False) for size in range(len(kept) + (reason is None))]
    texts.append(held.text(kept))
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
