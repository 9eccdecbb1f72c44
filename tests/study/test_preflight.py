"""Each finding of the preflight: one status, one reason; what is refused stops the costly part."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof import Engine
from draftproof.engines import memory_plan
from draftproof.engines.available import Available
from draftproof.proposers import DraftModel
from draftproof.study import findings, preflight
from draftproof.study.plan import parse_plan
from draftproof.study.preflight import break_even_finding
from draftproof.study.preflight import preflight as run_preflight
from support.scripted import Silent, make_plan
from support.toy_engines import numbered_words
from support.toy_models import tiny_llama

pytestmark = pytest.mark.usefixtures("short_self_test")

PROMPTS = ["w03 w04 w05 w03 w04 w05 w03 w04", "w09 w08 w07 w09 w08 w07 w06 w09 w08 w07 w09 w08"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, seed in (("target", 3), ("draft", 4)):
        tiny_llama(seed, torch.float32).save_pretrained(folder / name)
        numbered_words().save_pretrained(folder / name)
    return folder


def native(models: Path, folder: Path, draft: str | None = "draft", **tables: dict[str, Any]):
    path = folder / "prompts.jsonl"
    lines = [{"id": f"p{index}", "category": "list", "prompt": text} for index, text in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    lookup = {} if "speculation" in tables else {"prompt_lookup_max": 2}
    drafting = {"proposer": "draft-model", "draft": str(models / draft)} if draft else lookup
    values: dict[str, Any] = {
        "name": "tiny",
        "engine": {"target": str(models / "target"), "dtype": "float32", "max_len": 128},
        "speculation": {**drafting, "num_speculative_tokens": 3},
        "workload": {"prompts": str(path), "max_tokens": 8},
        "policy": {"min_claim": "up_to_ties"},
        "sampled": {"enabled": False},
    }
    for name, table in tables.items():
        values[name] = {**values[name], **table}
    return parse_plan(values, "test")


def check(plan, progress: Silent | None = None) -> dict[str, findings.Finding]:
    found = run_preflight(plan, progress or Silent())
    assert len({item.finding for item in found}) == len(found) and all(item.why and item.result for item in found)
    return {item.finding: item for item in found}


def statuses(found: dict[str, findings.Finding]) -> dict[str, str]:
    return {name: item.status for name, item in found.items() if item.status != "fine"}


def test_a_study_with_a_draft_model_gets_every_finding(models: Path, tmp_path: Path) -> None:
    found = check(native(models, tmp_path))
    assert list(found) == [
        "target", "draft", "tokenizer", "special tokens", "vocabulary", "chat template", "context", "cache", "memory",
        "claim", "self-test", "costs", "break-even",
    ]  # fmt: skip
    assert statuses({name: item for name, item in found.items() if name != "break-even"}) == {}
    assert found["target"].result == "LlamaForCausalLM, 2 layers, float32"
    assert found["tokenizer"].result == "equal" and found["special tokens"].result == "ends: 1, 2"
    # a chat prompt ends with the template's own word
    assert found["context"].values == {"longest_prompt_tokens": 13, "max_tokens": 8, "limit_tokens": 128}
    assert found["self-test"].values["accepted"] == found["self-test"].values["proposed"] > 20
    costs, ratio = found["costs"].values, found["break-even"].values["cost_ratio"]
    assert min(costs.values()) > 0
    assert ratio == pytest.approx((costs["propose_ms"] + costs["score_ms"]) / costs["plain_ms"])


def test_the_planned_memory_is_the_finding(models: Path, tmp_path: Path) -> None:
    plan = native(models, tmp_path, workload={"concurrency": [1, 3]})
    engine = preflight.open_engine(plan, Silent())
    found = {item.finding: item for item in preflight.without_weights(plan, _prompts(plan), Silent())}
    planned = found["memory"].values
    assert {name: planned[f"{name}_bytes"] for name in engine.memory()} == engine.memory()


def spoil(folder: Path, **changes: Any) -> None:
    """Change a saved model: its tokenizer, its template or its configuration."""
    model, tokenizer = tiny_llama(4, torch.float32, vocab=changes.get("vocab", 64)), numbered_words()
    model.generation_config.eos_token_id = changes.get("eos", 2)
    if "limit" in changes:
        model.config.max_position_embeddings = changes["limit"]
    if "template" in changes:
        tokenizer.chat_template = changes["template"]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if "swap" in changes:
        file, (one, other) = folder / "tokenizer.json", changes["swap"]
        text = file.read_text(encoding="utf-8").replace(f'"w{one}": {one}', f'"w{one}": {other}')
        file.write_text(text.replace(f'"w{other}": {other}', f'"w{other}": {one}'), encoding="utf-8")


@pytest.mark.parametrize(
    ("role", "changes", "name", "status", "said"),
    [
        pytest.param(
            "draft", {"swap": (30, 31)}, "tokenizer", "refuse", "id 30 is 'w30' in one and 'w31'", id="tokenizer"
        ),
        pytest.param("draft", {"eos": 7}, "special tokens", "warn", "draft's ends are 1, 7", id="other-end"),
        pytest.param("draft", {"limit": 16}, "context", "warn", "beyond 16 tokens the draft", id="draft-limit"),
        pytest.param("draft", {"vocab": 80}, "vocabulary", "fine", "never proposed", id="draft-rows"),
        pytest.param("target", {"vocab": 80}, "vocabulary", "fine", "never proposed", id="target-rows"),
        pytest.param("target", {"vocab": 60}, "vocabulary", "warn", "from 60 on have no row", id="too-few-rows"),
        pytest.param("target", {"template": None}, "chat template", "refuse", "chat_template", id="no-template"),
        pytest.param("target", {"limit": 16}, "context", "warn", "ends at the limit, after 3 tokens", id="cut"),
        pytest.param("target", {"limit": 12}, "context", "refuse", "'p1' leaves no room", id="no-room"),
    ],
)
def test_what_stands_against_a_pair_is_named_without_loading(
    tmp_path: Path, role: str, changes: dict[str, Any], name: str, status: str, said: str
) -> None:
    for each in ("target", "draft"):
        spoil(tmp_path / each, **(changes if each == role else {}))
    plan = native(tmp_path, tmp_path)
    found = {item.finding: item for item in preflight.without_weights(plan, _prompts(plan), Silent())}
    assert found[name].status == status and said in found[name].why


def _prompts(plan):
    return preflight.load_prompts(plan.workload.prompts, None, 0)


def test_a_refusal_loads_nothing(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "available_memory", lambda device: Available(1000, "left"))
    progress = Silent()
    found = check(native(models, tmp_path), progress)
    assert statuses(found) == {"memory": "refuse"} and "lower max_batch or max_len" in found["memory"].why
    assert "claim" not in found and progress.said == []


@pytest.mark.parametrize(
    ("tables", "name"),
    [
        pytest.param({"engine": {"target": "/nowhere/model"}}, "target", id="target"),
        pytest.param({"speculation": {"draft": "/nowhere/model"}}, "draft", id="draft"),
    ],
)
def test_a_model_that_is_missing_is_the_only_refusal(models: Path, tmp_path: Path, tables, name: str) -> None:
    found = check(native(models, tmp_path, **tables))
    assert statuses(found) == {name: "refuse"} and "'/nowhere/model'" in found[name].why


def test_a_family_without_a_cache_by_length_is_refused(models: Path, tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2
    )
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    LlamaForCausalLM(config).save_pretrained(tmp_path / "target")
    numbered_words().save_pretrained(tmp_path / "target")
    found = check(native(tmp_path, tmp_path, draft=None))
    assert statuses(found) == {"cache": "refuse"} and "rotary frequencies" in found["cache"].why


def test_an_exit_layer_that_the_target_lacks_is_refused_on_loading(models: Path, tmp_path: Path) -> None:
    plan = native(models, tmp_path, draft=None, speculation={"proposer": "early-exit", "exit_layer": 9})
    assert statuses(check(plan)) == {"load": "refuse"}


def test_a_claim_below_the_policy_is_warned_of(models: Path, tmp_path: Path) -> None:
    tables = {"engine": {"numerics": "fast"}, "policy": {"min_claim": "bitwise"}}
    found = check(native(models, tmp_path, draft=None, **tables))
    assert found["claim"].status == "warn" and "min_claim 'bitwise'" in found["claim"].why
    assert found["tokenizer"].result == "not applicable" and found["costs"].result != "not measured"


def other_draft(self: Engine, max_len: int) -> Engine:
    """A defect: what drafts is not the target."""
    draft = DraftModel(tiny_llama(4, torch.float32))
    return Engine(
        tiny_llama(3, torch.float32), self.tokenizer, proposer=draft, num_speculative_tokens=3, max_len=max_len
    )


def test_a_target_that_rejects_itself_is_refused(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "with_own_draft", other_draft)
    found = check(native(models, tmp_path, draft=None))
    assert found["self-test"].status == "refuse" and "rounding explains" in found["self-test"].why


def test_a_rejection_that_rounding_explains_is_a_warning(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "with_own_draft", other_draft)
    monkeypatch.setattr("draftproof.study.trial.rounding_bound", lambda engine, largest: 1e9)
    found = check(native(models, tmp_path, draft=None))
    assert found["self-test"].status == "warn" and "rounding" in found["self-test"].why


def test_a_script_has_no_model_and_its_costs_are_its_own(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, script={"plain_ms": 20.0, "block_ms": 30.0})
    found = check(plan)
    assert statuses(found) == {} and found["memory"].result == found["self-test"].result == "not applicable"
    # the script's times, and what this process took besides
    assert found["costs"].values["plain_ms"] >= 20.0 and found["costs"].values["score_ms"] >= 30.0
    assert 0 < found["break-even"].values["acceptance"] < 1


def test_a_script_whose_blocks_never_pay_is_warned_of(tmp_path: Path) -> None:
    found = check(make_plan(tmp_path, script={"plain_ms": 20.0, "block_ms": 80.0}))
    assert statuses(found) == {"break-even": "warn"} and found["break-even"].result == "none up to 1"


def test_transformers_own_generate_has_no_rounds_and_no_store(models: Path, tmp_path: Path) -> None:
    found = check(native(models, tmp_path, draft=None, engine={"kind": "hf"}))
    assert statuses(found) == {}
    missing = {name for name, item in found.items() if item.result == "not applicable"}
    assert missing == {"tokenizer", "cache", "memory", "self-test", "costs", "break-even"}


@pytest.mark.parametrize(
    ("ratio", "status", "result"),
    [(0.9, "fine", "acceptance 0.00"), (1.5, "fine", "acceptance 0.37"), (3.01, "warn", "none up to 1")],
)
def test_break_even_says_what_the_costs_mean(ratio: float, status: str, result: str) -> None:
    found = break_even_finding(ratio, 2)
    assert (found.status, found.result) == (status, result)


def test_no_end_of_sequence_is_a_warning() -> None:
    tokenizer = numbered_words()
    tokenizer.eos_token = None
    model = tiny_llama()
    model.generation_config.eos_token_id = None
    assert findings.special_tokens(model, tokenizer, None, None).status == "warn"
