import dataclasses

import pytest

from draftproof.stats.interval import Interval


def test_an_interval_cannot_be_changed_after_it_was_computed() -> None:
    interval = Interval(estimate=1.0, low=0.5, high=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        interval.low = 0.9  # type: ignore[misc]
    assert (interval.estimate, interval.low, interval.high) == (1.0, 0.5, None)
