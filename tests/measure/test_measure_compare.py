import pytest

from draftproof.measure.compare import compare_arms, summarise_acceptance
from draftproof.measure.times import inter_chunk_gaps, inter_token_gaps
from draftproof.measure.times import time_per_output_token as tpot


def line(block, latency, prompt="p", category="code"):
    return {
        "block": block, "prompt_id": prompt, "category": category, "repeat": 0, "concurrency": 1,
        "latency_ms": latency, "chunks": [[1, latency / 2], [3, latency]],
    }  # fmt: skip


def test_a_chunk_of_three_tokens_is_three_tokens():
    record = {"chunks": [[1, 1000.0], [3, 1030.0], [3, 1060.0]]}
    assert inter_token_gaps(record) == pytest.approx([10.0] * 6)
    assert inter_chunk_gaps(record) == [30.0, 30.0]
    assert tpot(record) == pytest.approx(10.0)


def item(proposed, accepted, emitted):
    kind = "target" if not proposed else "bonus" if accepted == proposed else "correction"
    return {"num_proposed": proposed, "num_accepted": accepted, "emitted": emitted, "next_token": kind}


def test_acceptance_counts_draft_tokens_only():
    found = summarise_acceptance([item(4, 0, 1), item(4, 1, 2), item(2, 2, 3), item(0, 0, 1)], 4)
    assert (found.proposed, found.accepted, found.rate) == (10, 3, 0.3)
    assert (found.corrections, found.bonuses, found.accepted_per_round, found.emitted_per_round) == (2, 1, 1.0, 1.75)
    assert found.by_position == [pytest.approx(2 / 3), pytest.approx(1 / 3), 0, 0]
    assert found.by_position_conditional == [pytest.approx(2 / 3), 0.5, None, None]


def test_effects_are_paired_per_prompt():
    records = [
        line(block, time * scale, f"p{scale}", category)
        for scale, category in ((1, "code"), (10, "code"), (100, "chat"))
        for block, time in (("A1", 200.0), ("B", 100.0 + scale / 100), ("A2", 200.0))
    ]
    found = compare_arms(records, 0.95, 1.0)
    assert found.overall.n == 3 and found.overall.speedup.estimate == pytest.approx(2.0, rel=0.01)
    assert found.by_category["chat"].speedup.low is None
    assert found.overall.itl_ratio.estimate == pytest.approx(0.5, rel=0.01)
