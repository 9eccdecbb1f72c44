"""Whether whole sequences repeat as often as independent draws would."""

import numpy as np
from numpy.typing import ArrayLike

from draftproof.stats.score import ScoreResult, tilted_score_test


def duplicate_test(sequences: ArrayLike, probabilities: ArrayLike, prompts: ArrayLike) -> ScoreResult:
    """
    Test whether sequences are repeated as often as the target's law says.

    Parameters
    ----------
    sequences : array_like, shape (S,), integers
        Equal numbers mean equal sequences. In the order of their generation.
    probabilities : array_like, shape (S,)
        The target's probability of the whole sequence given its prompt, in ``[0, 1]``.
    prompts : array_like, shape (S,), integers
        Sequences of different prompts do not repeat each other.

    Returns
    -------
    ScoreResult
        ``z`` above 0: too many repeats, as from a fixed seed. ``None`` where no repeat was possible.

    Raises
    ------
    ValueError
        The shapes differ, or a probability is outside its interval.

    Notes
    -----
    A sequence repeats an earlier one of its prompt with a probability that is known before it is drawn: the sum of the
    probabilities of the different sequences seen so far. So the repeats minus those sums are a martingale, and
    `score.tilted_score_test` judges them. The expected rate of equal pairs is the sum of squared probabilities; this form
    needs only the probabilities of sequences that came. Derived here. Cost: O(S).
    Held by: tests/stats/test_stats_duplicates.py.
    """
    names, chances, groups = np.asarray(sequences), np.asarray(probabilities, dtype=np.float64), np.asarray(prompts)
    if names.ndim != 1 or not names.shape == chances.shape == groups.shape:
        raise ValueError(f"all three must have one shape (S,), got {names.shape}, {chances.shape} and {groups.shape}")
    if not ((chances >= 0.0) & (chances <= 1.0 + 1e-9)).all():
        raise ValueError("probabilities must be in the interval [0, 1]")
    seen: set[tuple[int, int]] = set()
    mass: dict[int, float] = {}
    expected, repeated = np.zeros(names.size), np.zeros(names.size, dtype=np.int64)
    for index, (name, chance, group) in enumerate(zip(names.tolist(), chances, groups.tolist(), strict=True)):
        expected[index] = min(1.0, mass.get(group, 0.0))
        repeated[index] = (group, name) in seen
        if not repeated[index]:
            seen.add((group, name))
            mass[group] = mass.get(group, 0.0) + float(chance)
    probs = np.stack([1.0 - expected, expected], axis=1)
    return tilted_score_test(np.broadcast_to([0.0, 1.0], probs.shape), probs, repeated)
