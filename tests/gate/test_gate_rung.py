"""A rung is what one study measured, and it takes one step at a time."""

from typing import Any

import pytest

from draftproof.errors import InputError
from draftproof.gate.rung import Rung, misstep, read_rung
from support.ladder import make_evidence

DYNAMIC: dict[str, Any] = {"confidence_threshold": 0.4}


def rung(**study: Any) -> Rung:
    return read_rung(make_evidence(**study), None)


def test_a_rung_holds_what_a_server_needs_to_run_it() -> None:
    found = rung(batches=(4,))
    assert found.engine == {"kind": "native", "target": "a/target", "dtype": "bfloat16", "device": "cpu"}
    assert found.speculation["verification"] == "rejection" and found.speculation["proposer"] == "draft-model"
    assert (found.batch, found.claim, found.models) == (4, "bitwise", ("a/target", "a/draft"))
    assert Rung.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("study", "label", "dynamic"),
    [
        pytest.param({}, "batch 1, K 5", False, id="fixed"),
        pytest.param({"batches": (8,), "k": 3}, "batch 8, K 3", False, id="batch"),
        pytest.param(DYNAMIC, "batch 1, dynamic K up to 5", True, id="threshold"),
        pytest.param({"proposer": "server", "batches": (2,)}, "batch 2, the server's K", False, id="server"),
        pytest.param({"k": "dynamic"}, "batch 1, dynamic K", True, id="no-number"),
    ],
)
def test_a_rung_says_whether_k_is_fixed(study: dict[str, Any], label: str, dynamic: bool) -> None:
    assert (rung(**study).label, rung(**study).is_dynamic) == (label, dynamic)


def test_a_table_has_no_models() -> None:
    assert rung(engine={"kind": "scripted"}, draft=None).models == ()


def test_two_studies_of_one_configuration_share_a_key_whatever_they_claim() -> None:
    assert rung().key == rung().model_copy(update={"claim": "up_to_ties"}).key
    assert len({rung().key, rung(k=4).key, rung(batches=(2,)).key, rung(**DYNAMIC).key}) == 4


@pytest.mark.parametrize(
    ("batches", "concurrency", "said"),
    [
        pytest.param((1, 4), None, "measured concurrency 1, 4, and a rung has one", id="several"),
        pytest.param((1, 4), 2, "did not measure concurrency 2; allowed: 1, 4", id="another"),
    ],
)
def test_one_concurrency_is_chosen(batches: tuple[int, ...], concurrency: int | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_rung(make_evidence(batches=batches), concurrency)
    assert read_rung(make_evidence(batches=batches), 4).batch == 4


@pytest.mark.parametrize("lost", ["engine", "speculation", "workload"])
def test_a_plan_without_its_tables_has_no_rung(lost: str) -> None:
    evidence = make_evidence()
    plan = {name: table for name, table in evidence.study.plan.items() if name != lost}
    study = evidence.study.model_copy(update={"plan": plan})
    with pytest.raises(InputError, match="names no engine, K or concurrency"):
        read_rung(evidence.model_copy(update={"study": study}), None)


@pytest.mark.parametrize(
    ("below", "above", "said"),
    [
        pytest.param(None, {}, None, id="first"),
        pytest.param(None, {"batches": (16,), "k": 2}, None, id="first-any-batch-and-k"),
        pytest.param(None, DYNAMIC, "needs a verified rung with a fixed K", id="dynamic-first"),
        pytest.param({}, {"batches": (4,)}, None, id="batch"),
        pytest.param({"batches": (4,)}, {"batches": (1,)}, None, id="smaller-batch"),
        pytest.param({}, DYNAMIC, None, id="dynamic"),
        pytest.param({}, DYNAMIC | {"k": 8}, None, id="dynamic-up-to-another-k"),
        pytest.param({}, DYNAMIC | {"batches": (4,)}, "changes the batch and K at once", id="two-things"),
        pytest.param({}, {"k": 4}, "another fixed K", id="another-k"),
        pytest.param({}, {"k": 4, "batches": (4,)}, "another fixed K", id="another-k-and-batch"),
        pytest.param(DYNAMIC, DYNAMIC | {"batches": (4,)}, "dynamic K is the last step", id="beyond-dynamic"),
        pytest.param(DYNAMIC, {"batches": (4,)}, "dynamic K is the last step", id="fixed-on-dynamic"),
        pytest.param({}, {"engine": {"dtype": "float32"}, "batches": (4,)}, "it changes engine.dtype,", id="dtype"),
        pytest.param({}, {"draft": "b/draft"}, "it changes speculation.draft,", id="draft"),
        pytest.param({}, {"verification": "coupled", "new": 1}, "speculation.new, speculation.verification", id="more"),
    ],
)
def test_each_rung_takes_one_step(below: dict[str, Any] | None, above: dict[str, Any], said: str | None) -> None:
    why = misstep(None if below is None else rung(**below), rung(**above))
    assert why is None if said is None else why is not None and said in why
