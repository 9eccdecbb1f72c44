"""What a completion tells about each of its tokens."""

from dataclasses import replace

import numpy as np
import pytest

from draftproof.records import Completion, Round
from draftproof.verify.log import TokenLog, joined, outcomes_before


def item(proposed: int, accepted: int, emitted: int) -> Round:
    return Round(
        num_proposed=proposed, num_accepted=accepted, next_token=None, emitted=emitted, propose_ms=0.0, score_ms=0.0
    )


DONE = Completion(
    token_ids=(),
    text="",
    finish_reason="length",
    logprobs=None,
    rounds=(),
    speculation=None,
    chunks=(),
    num_prompt_tokens=1,
)


@pytest.mark.parametrize(
    ("rounds", "names"),
    [
        pytest.param([item(3, 1, 2)], ["start"] * 2, id="the-first"),
        pytest.param([item(3, 1, 2), item(3, 3, 4)], ["start"] * 2 + ["rejected"] * 4, id="after-a-rejection"),
        pytest.param([item(2, 2, 3), item(0, 0, 1)], ["start"] * 3 + ["accepted"], id="after-a-whole-draft"),
        pytest.param([item(0, 0, 1), item(1, 0, 1)], ["start", "plain"], id="after-a-plain-step"),
        pytest.param([], [], id="no-rounds"),
    ],
)
def test_each_token_knows_how_the_round_before_ended(rounds: list[Round], names: list[str]) -> None:
    assert outcomes_before(replace(DONE, rounds=tuple(rounds))) == names


def test_joined_blocks_keep_their_order_and_what_both_know() -> None:
    one = TokenLog(cells=np.array([0, 1]), laws=np.full((2, 2), 0.5), contexts=np.array([0, 1]), strata=["a", "b"])
    two = replace(one, cells=np.array([1, 1]), strata=["c", "d"])
    whole = joined([one, two])
    assert whole.cells.tolist() == [0, 1, 1, 1] and whole.strata == ["a", "b", "c", "d"]
    assert whole.laws.shape == (4, 2) and whole.sequences is None and whole.after is None
    known = [
        replace(one, after=["start", "start"], positions=np.arange(2)),
        replace(two, after=["x", "y"], positions=np.arange(2)),
    ]
    whole = joined(known)
    assert whole.after == ["start", "start", "x", "y"] and whole.positions is not None
    assert whole.positions.tolist() == [0, 1, 0, 1]
