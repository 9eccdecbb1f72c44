import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, chi2_contingency

from draftproof.stats.goodness import Chi2Result
from draftproof.stats.independence import conditional_independence

LAWS = np.random.default_rng(1).dirichlet(np.full(6, 0.8), size=3)


def drawn(generator: np.random.Generator, per_context: int, wrong: float = 0.0) -> tuple[NDArray[np.int64], ...]:
    """Contexts, cells and two groups; in the second group a share ``wrong`` of the tokens is another context's."""
    contexts = np.repeat(np.arange(3), per_context)
    groups = generator.integers(0, 2, size=contexts.size)
    source = np.where((groups == 1) & (generator.random(contexts.size) < wrong), (contexts + 1) % 3, contexts)
    edges = np.cumsum(LAWS[source], axis=1)
    cells = (generator.random(contexts.size)[:, None] >= edges).sum(axis=1).clip(max=5)
    return contexts, cells, groups


def test_a_table_without_rare_cells_is_that_of_scipy() -> None:
    table = np.array([[30, 20, 50], [25, 35, 40]])
    groups, cells = np.repeat([0, 1], 100), np.concatenate([np.repeat([0, 1, 2], row) for row in table])
    result = conditional_independence(np.zeros(200, int), cells, groups, np.tile([0.3, 0.3, 0.4], (200, 1)))
    reference = chi2_contingency(table, correction=False)
    assert (result.df, result.tokens) == (2, 200)
    assert result.statistic == pytest.approx(reference.statistic) and result.p_value == pytest.approx(reference.pvalue)


def test_independent_tokens_are_flagged_as_often_as_alpha_says() -> None:
    """2,000 runs with rare cells to be merged, alpha = .05; binomial band, 1e-5 on each side, for a rate of .04 to .06."""
    generator = np.random.default_rng(2)
    count = 0
    for _ in range(2000):
        contexts, cells, groups = drawn(generator, 150)
        p_value = conditional_independence(contexts, cells, groups, LAWS[contexts]).p_value
        assert p_value is not None
        count += p_value <= 0.05
    assert binom.ppf(1e-5, 2000, 0.04) <= count <= binom.ppf(1 - 1e-5, 2000, 0.06)


def test_a_law_that_depends_on_what_went_before_is_found() -> None:
    """A stale cache after a rejection: a third of the tokens of one group have another context's law. Seed fixed."""
    contexts, cells, groups = drawn(np.random.default_rng(3), 1000, wrong=0.33)
    p_value = conditional_independence(contexts, cells, groups, LAWS[contexts]).p_value
    assert p_value is not None and p_value < 1e-6


def test_too_few_tokens_give_no_number() -> None:
    nothing = Chi2Result(statistic=None, df=0, p_value=None)
    assert conditional_independence([], [], [], np.ones((0, 2))) == nothing
    assert conditional_independence([0, 0], [0, 1], ["a", "b"], np.full((2, 2), 0.5)) == nothing
    one_group = (np.zeros(50, int), np.tile([0, 1], 25), ["a"] * 50, np.full((50, 2), 0.5))
    assert conditional_independence(*one_group) == nothing


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes must be"):
        conditional_independence([0], [0], [0, 1], [[1.0]])
