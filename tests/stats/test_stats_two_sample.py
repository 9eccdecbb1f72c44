"""Two groups of sequences: the level of the tests, what they see, and each statistic against a slow one."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, chi2_contingency

from draftproof.stats.two_sample import END, NUM_TESTS, TwoSampleResult, two_sample_tests

Integers = NDArray[np.int64]
NAMES = ["bigram chi-square", "chi-square by position", "MMD, Hamming kernel"]
V = 4
PROMPT_LAWS = np.random.default_rng(7).dirichlet(np.full(V, 1.0), size=(2, V, V))


def drawn(
    generator: np.random.Generator, count: int, length: int = 5, *, swap: float = 0.0
) -> tuple[Integers, Integers]:
    """
    Draw sequences that are no chains: the law of a token depends on the first one and on the one before.

    ``swap`` is how often a token comes from the law after another token than the one before it.
    """
    prompts = np.arange(count) % 2
    table = np.empty((count, length), dtype=np.int64)
    table[:, 0] = generator.integers(0, V, count)
    for at in range(1, length):
        before = table[:, at - 1]
        moved = generator.random(count) < swap
        laws = PROMPT_LAWS[prompts, table[:, 0], np.where(moved, (before + 1) % V, before)]
        table[:, at] = (generator.random(count)[:, None] > laws.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return table, prompts


def compare(one: Integers, two: Integers, prompts: Integers, **options: int) -> list[TwoSampleResult]:
    options = {"permutations": 199, "seed": 1, **options}
    second = np.repeat([False, True], [len(one), len(two)])
    return two_sample_tests(np.concatenate([one, two]), second, np.concatenate([prompts] * 2), **options)


def test_two_groups_of_one_law_are_told_apart_as_often_as_alpha_says() -> None:
    """
    400 pairs of 60 sequences; each test alone at .05 (exact: 199 exchanges), the smallest adjusted p at .05 or less.

    Binomial bands, 1e-5 on each side. The two laws differ in nothing, the tokens of a sequence depend on its first one.
    """
    generator = np.random.default_rng(1)
    alone, together = np.zeros(NUM_TESTS), 0
    for seed in range(400):
        table, prompts = drawn(generator, 120)
        found = compare(table[:60], table[60:], prompts[:60], seed=seed)
        alone += [item.p_value is not None and item.p_value <= 0.05 for item in found]
        together += min(item.adjusted for item in found if item.adjusted is not None) <= 0.05
    assert (alone >= binom.ppf(1e-5, 400, 0.05)).all() and (alone <= binom.ppf(1 - 1e-5, 400, 0.05)).all()
    assert together <= binom.ppf(1 - 1e-5, 400, 0.05)


def test_tokens_that_follow_another_law_are_found() -> None:
    """Half of the transitions are others. With another seed the bigrams were at their least p in 40 of 40 pairs."""
    generator = np.random.default_rng(8)
    for seed in range(20):
        (one, prompts), (two, _) = drawn(generator, 400), drawn(generator, 400, swap=0.5)
        found = {item.name: item for item in compare(one, two, prompts, seed=seed)}
        assert found["bigram chi-square"].p_value == 1 / 200 and found["bigram chi-square"].adjusted == 3 / 200


def test_a_law_that_depends_on_what_was_before_in_another_way_is_seen_by_the_bigrams_alone() -> None:
    """Both groups' tokens are even at every position; the second one's repeat the token before."""
    generator = np.random.default_rng(3)
    one = generator.integers(0, 2, (200, 6))
    two = np.repeat(generator.integers(0, 2, (200, 1)), 6, axis=1)
    bigram, position, mmd = compare(one, two, np.zeros(200, int))
    assert bigram.p_value == 1 / 200
    assert position.p_value is not None and position.p_value > 0.05
    assert mmd.p_value is not None and mmd.p_value > 0.05


def slow_chi2(contexts: Integers, tokens: Integers, second: Integers) -> float:
    """Pearson of each context's 2 x m table, by scipy; every cell is kept here."""
    total = 0.0
    for context in np.unique(contexts):
        chosen = contexts == context
        _, number = np.unique(tokens[chosen], return_inverse=True)
        table = np.zeros((2, number.max() + 1))
        np.add.at(table, (second[chosen], number), 1)
        if table.shape[1] > 1:
            total += float(chi2_contingency(table, correction=False).statistic)
    return total


def test_the_statistics_are_those_of_the_slow_computation() -> None:
    generator = np.random.default_rng(4)
    one, two = generator.integers(0, 3, (300, 4)), generator.integers(0, 3, (200, 4))
    prompts = np.concatenate([np.arange(300) % 2, np.arange(200) % 2])
    table, second = np.concatenate([one, two]), np.repeat([0, 1], [300, 200])
    bigram, position, mmd = two_sample_tests(table, second, prompts, permutations=1, seed=0)
    owner, after = np.repeat(prompts, 3), table[:, 1:].reshape(-1)
    flags = np.repeat(second, 3)
    assert bigram.statistic == pytest.approx(slow_chi2(owner * 10 + table[:, :-1].reshape(-1), after, flags))
    assert position.statistic == pytest.approx(slow_chi2(owner * 10 + np.tile(np.arange(3), 500), after, flags))
    kernel = (table[:, None, 1:] == table[None, :, 1:]).sum(axis=-1)
    slow = 0.0
    for prompt in (0, 1):
        signs = np.where(prompts == prompt, np.where(second == 1, 1.0, -1.0), 0.0)
        signs[signs > 0] /= (signs > 0).sum()
        signs[signs < 0] /= (signs < 0).sum()
        slow += 0.5**2 * signs @ kernel @ signs
    assert mmd.statistic == pytest.approx(slow)


def test_rare_tokens_become_one_cell_and_a_lonely_one_joins_the_smallest() -> None:
    """
    One context; expected in either group: 20, 10, 4 and 4, so the last two are a cell of 8.

    With 2 in place of the two 4s the rest is too rare by itself and joins the 10.
    """

    def of(counts_one: list[int], counts_two: list[int]) -> float | None:
        tokens = np.concatenate([np.repeat(np.arange(len(part)), part) for part in (counts_one, counts_two)])
        second = np.repeat([0, 1], [sum(counts_one), sum(counts_two)])
        table = np.stack([np.zeros_like(tokens), tokens], axis=1)
        return two_sample_tests(table, second, np.zeros(len(tokens), int), permutations=1, seed=0)[0].statistic

    expected = chi2_contingency([[22, 8, 8], [18, 12, 8]], correction=False).statistic
    assert of([22, 8, 6, 2], [18, 12, 2, 6]) == pytest.approx(expected)
    expected = chi2_contingency([[22, 10], [18, 14]], correction=False).statistic
    assert of([22, 8, 2], [18, 12, 2]) == pytest.approx(expected)


def test_a_context_without_two_cells_is_not_tested() -> None:
    tokens = np.zeros((40, 3), int)
    found = two_sample_tests(tokens, np.arange(40) % 2, np.zeros(40, int), permutations=9, seed=0)
    assert [item.name for item in found] == NAMES
    assert [(item.statistic, item.p_value) for item in found] == [(None, None), (None, None), (0.0, 1.0)]


def test_sequences_are_exchanged_with_those_of_their_own_prompt_only() -> None:
    """Each prompt always says the same word, and the groups have other shares of them: nothing can be told apart."""
    prompts = np.repeat([0, 1], 50)
    second = np.concatenate([np.arange(50) < 10, np.arange(50) < 40])
    tokens = np.repeat(prompts[:, None], 4, axis=1)
    found = two_sample_tests(tokens, second, prompts, permutations=99, seed=0)
    assert [item.p_value for item in found] == [None, None, 1.0]


def test_an_end_that_comes_too_early_is_found() -> None:
    generator = np.random.default_rng(5)
    one, two = generator.integers(0, 2, (200, 5)), generator.integers(0, 2, (200, 5))
    two[::4, 3:] = END
    assert {item.p_value for item in compare(one, two, np.zeros(200, int))} == {1 / 200}


def test_the_same_seed_gives_the_same_and_ids_do_not_matter() -> None:
    generator = np.random.default_rng(6)
    (one, prompts), (two, _) = drawn(generator, 100), drawn(generator, 100)
    found = compare(one, two, prompts)
    assert found == compare(one, two, prompts)
    assert found == compare(one + 2**40, two + 2**40, prompts + 5)
    assert found != compare(one, two, prompts, seed=2)


@pytest.mark.parametrize(
    ("tokens", "second", "prompts", "message"),
    [
        pytest.param([[1], [1]], [0, 1], [0, 0], "T at least 2", id="one-column"),
        pytest.param([[1, 1], [1, 1]], [0, 1], [0], "shapes", id="prompts"),
        pytest.param([[1, -2], [1, 1]], [0, 1], [0, 0], "from 0, or -1", id="below"),
        pytest.param([[1.0, 2.0], [1.0, 1.0]], [0, 1], [0, 0], "integers", id="floats"),
        pytest.param([[1, END, 1], [1, 1, 1]], [0, 1], [0, 0], "after the end", id="after-the-end"),
        pytest.param([[1, 1], [1, 1]], [0, 1], [0, 1], "both groups", id="one-group"),
        pytest.param(np.empty((0, 2), int), [], [], "both groups", id="nothing"),
    ],
)
def test_bad_input_is_refused(tokens: object, second: object, prompts: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        two_sample_tests(np.asarray(tokens), np.asarray(second), np.asarray(prompts), permutations=9, seed=0)


def test_at_least_one_exchange_is_needed() -> None:
    with pytest.raises(ValueError, match="permutations must be at least 1, got 0"):
        two_sample_tests([[1, 1], [1, 1]], [0, 1], [0, 0], permutations=0, seed=0)
