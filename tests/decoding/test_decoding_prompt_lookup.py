"""Prompt lookup is what it says, for every sequence: the longest n-gram, its latest place that is long enough."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import InputError
from draftproof.proposers import PromptLookup, ProposerContext
from draftproof.sampling.noise import KeyedNoise
from support.toy_models import make_row


def naive(tokens: list[int], low: int, high: int, limit: int) -> list[int]:
    """REF: every length and every place, as the docstring says it."""
    for size in range(high, low - 1, -1):
        if size >= len(tokens):
            continue
        end = tokens[len(tokens) - size :]
        ends = [start + size for start in range(len(tokens) - size) if tokens[start : start + size] == end]
        if ends and limit > 0:
            long_enough = [place for place in ends if len(tokens) - place >= limit]
            place = max(long_enough) if long_enough else min(ends)
            return tokens[place : place + limit]
    return []


@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
@given(
    tokens=st.integers(1, 5).flatmap(lambda size: st.lists(st.integers(0, size), min_size=1, max_size=40)),
    low=st.integers(1, 4),
    more=st.integers(0, 3),
    limit=st.integers(0, 7),
)
def test_the_draft_is_that_of_the_naive_search(tokens: list[int], low: int, more: int, limit: int) -> None:
    assert PromptLookup(low, low + more).lookup(tokens, limit) == naive(tokens, low, low + more, limit)


@pytest.mark.parametrize(
    ("tokens", "sizes", "limit", "draft"),
    [
        pytest.param([1, 2, 3, 9, 2, 3], (1, 3), 3, [9, 2, 3], id="two-tokens-match"),
        pytest.param([1, 2, 7, 1, 2, 8, 1, 2], (1, 2), 2, [8, 1], id="the-latest-place"),
        pytest.param([1, 2, 7, 1, 2, 8, 1, 2], (1, 2), 4, [7, 1, 2, 8], id="the-latest-that-is-long-enough"),
        pytest.param([1, 2, 7, 1, 2, 8, 1, 2], (1, 2), 7, [7, 1, 2, 8, 1, 2], id="none-is-long-enough"),
        pytest.param([5, 1, 2, 9, 1, 2], (3, 4), 2, [], id="shorter-than-the-minimum"),
        pytest.param([4, 1, 2, 3, 8, 2, 3, 1, 2, 3], (1, 2), 1, [1], id="no-longer-than-the-maximum"),
        pytest.param([4, 1, 2, 3, 8, 2, 3, 1, 2, 3], (1, 3), 1, [8], id="the-longest-wins-over-the-latest"),
        pytest.param([7] * 48, (1, 4), 3, [7, 7, 7], id="one-token-over-and-over"),
        pytest.param([7, 7], (1, 4), 3, [7], id="the-match-may-touch-the-end"),
        pytest.param([7], (1, 4), 3, [], id="one-token"),
        pytest.param([1, 2, 3, 4], (1, 4), 3, [], id="nothing-repeats"),
        pytest.param([1, 1, 1], (1, 4), 0, [], id="nothing-asked"),
    ],
)
def test_what_is_found(tokens: list[int], sizes: tuple[int, int], limit: int, draft: list[int]) -> None:
    assert PromptLookup(*sizes).lookup(tokens, limit) == draft


def test_each_row_gets_its_own_draft_and_padding_for_the_rest() -> None:
    proposer = PromptLookup(1, 2)
    proposer.bind(
        ProposerContext(
            num_slots=3,
            max_len=64,
            num_speculative_tokens=4,
            vocab_size=16,
            device=torch.device("cpu"),
            noise=KeyedNoise(),
        )
    )
    rows = [make_row(prompt) for prompt in ([1, 2, 3, 1, 2], [5], [4, 4, 4])]
    proposal = proposer.propose(rows, [4, 4, 1])
    assert proposal.num_tokens.tolist() == [3, 0, 1] and proposal.probs is None
    assert proposal.token_ids.tolist() == [[3, 1, 2], [0, 0, 0], [4, 0, 0]]
    assert proposal.token_ids.dtype == proposal.num_tokens.dtype == torch.int64
    empty = proposer.propose(rows[1:2], [4])
    assert empty.token_ids.shape == (1, 0) and empty.num_tokens.tolist() == [0]


@pytest.mark.parametrize(("low", "high"), [(0, 3), (-1, 3), (3, 2)])
def test_sizes_out_of_range_are_refused(low: int, high: int) -> None:
    with pytest.raises(InputError, match=rf"n-grams {low}\.\.{high}: allowed 1 <= min <= max"):
        PromptLookup(low, high)
