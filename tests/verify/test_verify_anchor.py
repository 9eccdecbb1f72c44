"""Two arms that agree may both be wrong: a few target-only outputs are held against the plain model."""

from typing import Any

import numpy as np
import pytest

from draftproof.engines.scripted import Script, ScriptedEngine, Table
from draftproof.measure.run import as_chat, interleave
from draftproof.proposers import PromptLookup
from draftproof.request import SamplingParams
from draftproof.verify.anchor import ANCHORS, FACTOR, ROUNDOFF, Anchor, anchor
from draftproof.verify.greedy import compare_greedy
from draftproof.workload.loaders import load_prompts
from support.scripted import SCRIPT, Restricted, write_prompts

Records = list[dict[str, Any]]
Measured = tuple[ScriptedEngine, Records, dict[str, list[int]]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    engine = ScriptedEngine(Script(**SCRIPT), proposer=PromptLookup(1, 1), num_speculative_tokens=3)
    prompts = load_prompts(str(write_prompts(tmp_path_factory.mktemp("anchor"))), None, 0)
    records: Records = []
    interleave(
        engine,
        prompts,
        SamplingParams(max_tokens=10, temperature=0.0),
        concurrency=1,
        repeat=0,
        skip=set(),
        save=records.append,
        advance=lambda count: None,
    )
    return engine, records, {prompt.id: engine.encode(as_chat(prompt)) for prompt in prompts}


def both_arms_with(records: Records, name: str, position: int, token_id: int) -> Records:
    return [
        record | {"token_ids": [*record["token_ids"][:position], token_id, *record["token_ids"][position + 1 :]]}
        if record["prompt_id"] == name
        else record
        for record in records
    ]


class Watched(Restricted):
    """Writes down what it was asked to score."""

    def __init__(self, inner: Any, **capabilities: Any) -> None:
        super().__init__(inner, **capabilities)
        self.scored: list[tuple[list[int], list[list[int]]]] = []

    def score(self, prompt_token_ids: Any, token_ids: Any) -> Any:
        self.scored.append((list(prompt_token_ids), [list(tail) for tail in token_ids]))
        return super().score(prompt_token_ids, token_ids)


def test_greedy_output_of_the_plain_model_is_at_its_best_everywhere(measured: Measured) -> None:
    engine, records, encoded = measured
    watched = Watched(engine)
    found = anchor(watched, records, encoded)
    assert found is not None and found.worst_regret == 0.0 and found.holds
    assert found.tokens == 10 * len(watched.scored)
    tokens = {record["prompt_id"]: record["token_ids"] for record in records if record["block"] == "A1"}
    # a few outputs, spread over the workload, each after its own prompt
    assert watched.scored == [(encoded[name], [tokens[name]]) for name in ("p0", "p2", "p4")]
    assert len(watched.scored) <= ANCHORS


def test_the_bound_is_what_rounding_of_the_dtype_explains(measured: Measured) -> None:
    engine, records, encoded = measured
    table = Table(Script(**SCRIPT))
    largest = 0.0
    for record in records:
        if record["block"] == "A1" and record["prompt_id"] in ("p0", "p2", "p4"):
            for at in range(10):
                logits = table.logits([*encoded[record["prompt_id"]], *record["token_ids"][:at]])
                largest = max(largest, float(np.abs(logits).max()))
    for dtype, roundoff in ROUNDOFF.items():
        found = anchor(Restricted(engine, details={"dtype": dtype}), records, encoded)
        assert found is not None and found.bound == pytest.approx(FACTOR * roundoff * largest)
    assert ROUNDOFF["bfloat16"] == np.finfo(np.float32).eps * 2**15


@pytest.mark.parametrize("position", [0, 5, 9])
def test_a_token_that_both_arms_share_and_the_plain_model_does_not_fails(measured: Measured, position: int) -> None:
    engine, records, encoded = measured
    spoiled = both_arms_with(records, "p2", position, 7)
    found = anchor(engine, spoiled, encoded)
    before = next(record["token_ids"] for record in records if record["prompt_id"] == "p2")[:position]
    logits = Table(Script(**SCRIPT)).logits([*encoded["p2"], *before])
    assert found is not None and not found.holds
    assert found.worst_regret >= float(logits.max() - logits[7]) - 1e-6 > found.bound
    result = compare_greedy(engine, spoiled, encoded, found)
    assert result.outcome == "FAIL" and result.divergences == [] and result.identical == 6
    assert (result.anchor_tokens, result.anchor_regret, result.anchor_bound) == (30, found.worst_regret, found.bound)


@pytest.mark.parametrize("claim", ["bitwise", "up_to_ties"])
@pytest.mark.parametrize(("regret", "outcome"), [(0.0, "PASS"), (0.5, "PASS"), (0.500001, "FAIL")])
def test_beyond_the_bound_is_a_fail_whatever_the_claim(
    measured: Measured, claim: str, regret: float, outcome: str
) -> None:
    engine, records, encoded = measured
    anchored = Anchor(tokens=30, worst_regret=regret, bound=0.5)
    found = compare_greedy(Restricted(engine, claim=claim), records, encoded, anchored)
    assert found.outcome == outcome


def test_an_anchor_that_holds_excuses_nothing(measured: Measured) -> None:
    engine, records, encoded = measured
    holds = Anchor(tokens=30, worst_regret=0.0, bound=0.5)
    again = [
        record | {"token_ids": record["token_ids"][:-1]} if record["block"] == "A2" else record for record in records
    ]
    assert compare_greedy(engine, again, encoded, holds).outcome == "FAIL"
    assert compare_greedy(engine, [], encoded, holds).outcome == "INCONCLUSIVE"


def test_what_cannot_be_scored_is_not_anchored(measured: Measured) -> None:
    engine, records, encoded = measured
    assert anchor(Restricted(engine, score=False), records, encoded) is None
    assert anchor(engine, [], encoded) is None
    assert anchor(engine, [record for record in records if record["block"] != "A1"], encoded) is None
    assert anchor(engine, [record | {"token_ids": []} for record in records], encoded) is None
    result = compare_greedy(engine, records, encoded)
    assert (result.anchor_tokens, result.anchor_regret, result.anchor_bound) == (None, None, None)


def test_only_the_first_repeat_is_scored_however_many_there_are(measured: Measured) -> None:
    engine, records, encoded = measured
    once, twice = Watched(engine), Watched(engine)
    again = [record | {"repeat": 1, "token_ids": [7] * 10} for record in records]
    assert anchor(once, records, encoded) == anchor(twice, [*records, *again], encoded)
    assert once.scored == twice.scored
