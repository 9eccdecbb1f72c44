"""Greedy arms are compared token for token, and a difference is measured under the target."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from draftproof.engines.base import EngineProtocol
from draftproof.engines.scripted import Script, ScriptedEngine, Table
from draftproof.measure.run import as_chat, interleave
from draftproof.proposers import PromptLookup
from draftproof.request import SamplingParams
from draftproof.verify.greedy import compare_greedy
from draftproof.workload.loaders import load_prompts
from support.scripted import SCRIPT, Restricted, write_prompts

Records = list[dict[str, Any]]
Measured = tuple[ScriptedEngine, Records, dict[str, list[int]]]


def measure(folder: Path, *, concurrency: int = 1, **script: Any) -> Measured:
    engine = ScriptedEngine(
        Script(**{**SCRIPT, **script}),
        proposer=PromptLookup(1, 1),
        num_speculative_tokens=3,
        max_batch=concurrency,
    )
    prompts = load_prompts(str(write_prompts(folder)), None, 0)
    records: Records = []
    interleave(
        engine,
        prompts,
        SamplingParams(max_tokens=10, temperature=0.0),
        concurrency=concurrency,
        repeat=0,
        skip=set(),
        save=records.append,
        advance=lambda count: None,
    )
    return engine, records, {prompt.id: engine.encode(as_chat(prompt)) for prompt in prompts}


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    return measure(tmp_path)


def edited(records: Records, edit: Callable[[list[int]], list[int]], block: str = "B", name: str = "p2") -> Records:
    return [
        record | {"token_ids": edit(record["token_ids"])}
        if (record["prompt_id"], record["block"]) == (name, block)
        else record
        for record in records
    ]


def other_at(position: int) -> Callable[[list[int]], list[int]]:
    """Change one token, and those after it too, as happens once the sequences differ."""
    return lambda tokens: [*tokens[:position], *((token + 1) % 4096 for token in tokens[position:])]


def claiming(engine: EngineProtocol, claim: str) -> EngineProtocol:
    return Restricted(engine, claim=claim)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_equal_arms_pass(tmp_path: Path, concurrency: int) -> None:
    engine, records, encoded = measure(tmp_path, concurrency=concurrency)
    found = compare_greedy(engine, records, encoded)
    assert (found.outcome, found.prompts, found.identical, found.tokens) == ("PASS", 6, 6, 60)
    assert found.divergences == []
    assert (found.repeatability_prompts, found.repeatability_identical) == (6, 6)


@pytest.mark.parametrize("position", [0, 4, 9])
def test_the_first_differing_token_is_measured_under_the_target(measured: Measured, position: int) -> None:
    engine, records, encoded = measured
    spoiled = edited(records, other_at(position))
    found = compare_greedy(engine, spoiled, encoded)
    (one,) = found.divergences
    tokens = {(r["prompt_id"], r["block"]): r["token_ids"] for r in spoiled}
    assert (one.prompt_id, one.category, one.position) == ("p2", "list", position)
    assert one.target_only_token == tokens["p2", "A1"][position]
    assert one.speculative_token == tokens["p2", "B"][position]
    # the target's own logits, read from the table after the prompt and what the arms share
    logits = Table(Script(**SCRIPT)).logits([*encoded["p2"], *tokens["p2", "A1"][:position]])
    assert one.regret == pytest.approx(float(logits.max() - logits[one.speculative_token]), abs=1e-6)
    assert one.regret is not None and one.regret > 0
    assert (found.prompts, found.identical, found.tokens) == (6, 5, 60)


@pytest.mark.parametrize(
    ("claim", "outcome", "note"),
    [
        ("bitwise", "FAIL", "a defect"),
        ("bitwise_same_batch", "FAIL", "a defect"),
        ("up_to_ties", "FAIL", ""),
        ("lossy", "INCONCLUSIVE", ""),
    ],
)
def test_a_token_that_no_rounding_explains_fails_unless_the_engine_says_that_it_is_lossy(
    measured: Measured, claim: str, outcome: str, note: str
) -> None:
    engine, records, encoded = measured
    found = compare_greedy(claiming(engine, claim), edited(records, other_at(3)), encoded)
    (one,) = found.divergences
    assert found.outcome == outcome and note in one.note
    # the passes that were run give the target's token: so whoever wrote another one did not take it from them
    assert (one.kind, one.cause, one.explained) == ("DEFECT", "a defect of the speculation", False)


def test_sampled_requests_have_no_regret_and_their_differences_stay_open(measured: Measured) -> None:
    engine, records, encoded = measured
    found = compare_greedy(claiming(engine, "up_to_ties"), edited(records, other_at(3)), encoded, most_likely=False)
    (one,) = found.divergences
    assert found.outcome == "INCONCLUSIVE" and found.triage is None
    assert (one.kind, one.cause, one.regret) == (None, "not explained", None)


def test_the_rate_that_a_run_could_have_seen_is_of_different_prompts(measured: Measured) -> None:
    """At that rate a run without a difference has probability 0.05; repeats of a prompt add nothing."""
    engine, records, encoded = measured
    tokens = sum(len(item["token_ids"]) for item in records if item["block"] == "A1")
    again = [item | {"repeat": 1} for item in records]
    for rows in (records, [*records, *again]):
        rate = compare_greedy(engine, rows, encoded).smallest_rate
        assert rate is not None and (1 - rate) ** tokens == pytest.approx(0.05)
    assert compare_greedy(engine, [], encoded).smallest_rate is None


@pytest.mark.parametrize("claim", ["bitwise", "up_to_ties"])
def test_equal_arms_pass_whatever_the_claim(measured: Measured, claim: str) -> None:
    engine, records, encoded = measured
    assert compare_greedy(claiming(engine, claim), records, encoded).outcome == "PASS"


@pytest.mark.parametrize(("claim", "outcome"), [("bitwise", "FAIL"), ("up_to_ties", "INCONCLUSIVE")])
def test_a_target_that_does_not_repeat_itself_is_no_reference(measured: Measured, claim: str, outcome: str) -> None:
    engine, records, encoded = measured
    found = compare_greedy(claiming(engine, claim), edited(records, other_at(3), block="A2"), encoded)
    assert found.outcome == outcome and found.divergences == []
    assert (found.repeatability_prompts, found.repeatability_identical) == (6, 5)


def test_a_speculative_arm_that_ends_early_differs_where_it_ends(measured: Measured) -> None:
    engine, records, encoded = measured
    found = compare_greedy(engine, edited(records, lambda tokens: tokens[:6]), encoded)
    (one,) = found.divergences
    assert found.outcome == "FAIL"
    # no token was given there, so that there is nothing to regret
    assert (one.position, one.speculative_token, one.regret) == (6, None, None)
    assert one.target_only_token is not None


def test_a_speculative_arm_that_goes_on_differs_where_the_target_ended(measured: Measured) -> None:
    engine, records, encoded = measured
    found = compare_greedy(engine, edited(records, lambda tokens: [*tokens, 7]), encoded)
    (one,) = found.divergences
    assert found.outcome == "FAIL"
    assert (one.position, one.target_only_token, one.speculative_token) == (10, None, 7)
    assert one.regret is not None and one.regret > 0


def test_an_engine_that_cannot_score_gives_no_regret(measured: Measured) -> None:
    engine, records, encoded = measured
    found = compare_greedy(Restricted(engine, score=False), edited(records, other_at(3)), encoded)
    assert found.outcome == "FAIL" and found.divergences[0].regret is None


@pytest.mark.parametrize("left", [(), ("A1",), ("B",), ("A2", "B")], ids=["nothing", "A1", "B", "A2-and-B"])
@pytest.mark.parametrize("claim", ["bitwise", "up_to_ties"])
def test_without_a_pair_nothing_is_shown(measured: Measured, left: Sequence[str], claim: str) -> None:
    engine, records, encoded = measured
    some = [record for record in records if record["block"] in left]
    found = compare_greedy(claiming(engine, claim), some, encoded)
    assert (found.outcome, found.prompts, found.tokens) == ("INCONCLUSIVE", 0, 0)


def test_every_repeat_and_concurrency_is_a_pair_of_its_own(measured: Measured) -> None:
    engine, records, encoded = measured
    again = [record | {"repeat": 1} for record in edited(records, other_at(5))]
    wider = [record | {"concurrency": 2} for record in edited(records, other_at(7), name="p4")]
    found = compare_greedy(engine, [*records, *again, *wider], encoded)
    assert (found.prompts, found.identical, found.tokens) == (18, 16, 180)
    assert [(one.prompt_id, one.position) for one in found.divergences] == [("p2", 5), ("p4", 7)]


def test_a_wrong_block_is_found_at_the_token_where_it_first_mattered(tmp_path: Path) -> None:
    """End to end: the engine itself gives wrong tokens, and each has a regret under the table."""
    engine, records, encoded = measure(tmp_path, defect="block")
    found = compare_greedy(engine, records, encoded)
    assert found.outcome == "FAIL" and found.identical < found.prompts
    tokens = {(r["prompt_id"], r["block"]): r["token_ids"] for r in records}
    for one in found.divergences:
        a, b = tokens[one.prompt_id, "A1"], tokens[one.prompt_id, "B"]
        assert a[: one.position] == b[: one.position] and a[one.position] != b[one.position]
        assert one.regret is not None and one.regret > 0
