"""
Successive elimination: which arms of a comparison cannot be the best any more.

Knows intervals. The arms are looked at a few times, at sizes fixed beforehand, and every interval is wide enough to hold at all
looks together; so the best arm is dropped with at most the chance that the intervals leave.
"""

from collections.abc import Mapping

from draftproof.stats.interval import Interval

FIRST_LOOK = 4


def looks(num_prompts: int, group: int = 1) -> list[int]:
    """
    Return after how many prompts the arms are looked at: 4, 8, 16 and so on, in whole groups, and at the end.

    Parameters
    ----------
    num_prompts : int, 1 or more
    group : int, 1 or more
        Prompts that run together.

    Examples
    --------
    >>> looks(24)
    [4, 8, 16, 24]
    >>> looks(10, group=3)
    [6, 9, 10]
    """
    found, size = [], FIRST_LOOK
    while size < num_prompts:
        whole = -(-size // group) * group
        if whole < num_prompts and whole not in found:
            found.append(whole)
        size *= 2
    return [*found, num_prompts]


def confidence_of_each(confidence: float, num_arms: int, num_looks: int) -> float:
    """Return the confidence that each interval needs so that all hold together with ``confidence`` (union bound)."""
    return 1.0 - (1.0 - confidence) / (num_arms * num_looks)


def hopeless(speedups: Mapping[str, Interval]) -> dict[str, str]:
    """
    Return the arms to drop, and why.

    Parameters
    ----------
    speedups : mapping of arm to Interval
        Baseline time over the arm's time, with simultaneous limits.

    Notes
    -----
    An arm is dropped when its upper limit is below 1, or below the highest lower limit. An arm without limits stays.
    Source: Even-Dar, Mannor, Mansour, "Action elimination and stopping conditions for the multi-armed bandit and reinforcement
    learning problems", 2006; Maron, Moore, "Hoeffding races", 1994. With other intervals than theirs.
    """
    lows = {name: item.low for name, item in speedups.items() if item.low is not None}
    best = max(lows, key=lambda name: lows[name], default=None)
    dropped = {}
    for name, item in speedups.items():
        if item.high is None:
            continue
        if item.high < 1.0:
            dropped[name] = f"at most {item.high:.3f}x: slower than target-only"
        elif best is not None and item.high < lows[best]:
            dropped[name] = f"at most {item.high:.3f}x, and {best} gives at least {lows[best]:.3f}x"
    return dropped
