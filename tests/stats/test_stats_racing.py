"""Arms are looked at a few times, dropped by the stated rule, and the best one is rarely among them."""

import numpy as np
import pytest

from draftproof.stats.interval import Interval
from draftproof.stats.racing import confidence_of_each, hopeless, looks
from draftproof.stats.ratio import paired_log_ratio


@pytest.mark.parametrize(
    ("count", "group", "expected"),
    [
        (1, 1, [1]),
        (4, 1, [4]),
        (24, 1, [4, 8, 16, 24]),
        (10, 3, [6, 9, 10]),
        (8, 16, [8]),
        (32, 8, [8, 16, 32]),
    ],
)
def test_looks_double_in_whole_groups_and_end_with_all(count: int, group: int, expected: list[int]) -> None:
    assert looks(count, group) == expected


def test_the_rule() -> None:
    arms = {
        "best": Interval(2.0, 1.8, 2.2),
        "near": Interval(1.7, 1.5, 1.9),
        "behind": Interval(1.4, 1.2, 1.7),
        "slow": Interval(0.8, 0.7, 0.9),
        "unknown": Interval(1.0, None, None),
    }
    dropped = hopeless(arms)
    assert set(dropped) == {"behind", "slow"}
    assert "best gives at least 1.800x" in dropped["behind"] and "slower than target-only" in dropped["slow"]
    assert hopeless({"only": Interval(1.0, None, None)}) == {} == hopeless({})


def test_the_best_arm_is_dropped_as_rarely_as_promised() -> None:
    """
    Five arms, 16 prompts, three looks, at 0.95 together; 200 races, in each the best arm leads by 2 %.

    The bound is 5 %; more than 20 losses in 200 have probability below 0.002 even if it were reached.
    """
    generator = np.random.default_rng(7)
    centres = np.log([1.3, 1.27, 1.2, 1.1, 0.95])
    when = looks(16)
    each = confidence_of_each(0.95, 5, len(when))
    lost = 0
    for _ in range(200):
        ratios = centres[:, None] + 0.1 * generator.standard_normal((5, 16))
        left = dict(enumerate(ratios))
        for size in when:
            found = {str(arm): paired_log_ratio(values[:size], each, 0).interval for arm, values in left.items()}
            for name in hopeless(found):
                del left[int(name)]
        lost += 0 not in left
    assert lost <= 20
