"""A study file is read whole, or refused in one line that says what was wrong and what is allowed."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from draftproof.errors import InputError, PlanError
from draftproof.study.plan import EnginePlan, Plan, parse_plan
from draftproof.study.study_file import load_plan

TABLES = ("engine", "speculation", "workload", "sampling", "measure", "sampled", "policy")


def refused(values: dict[str, Any], error: type[InputError] = PlanError) -> str:
    with pytest.raises(error) as caught:
        parse_plan({"name": "x", **values}, "study.toml")
    message = str(caught.value)
    assert "\n" not in message
    return message


def accepted(values: dict[str, Any]) -> Plan:
    return parse_plan({"name": "x", **values}, "study.toml")


def test_a_name_is_enough() -> None:
    plan = parse_plan({"name": "x"}, "study.toml")
    assert plan == Plan(name="x")
    assert plan.engine.kind == "native" and plan.speculation.proposer == "prompt-lookup"


def test_the_shipped_demo_is_a_plan_that_changes_no_more_than_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "demo.toml"
    path.write_text(files("draftproof.study").joinpath("demo.toml").read_text(encoding="utf-8"), encoding="utf-8")
    plan = load_plan(path)
    assert plan.name == "demo" and plan.engine.kind == "native" and plan.engine.target == "smollm2-135m-instruct"
    assert plan.workload.prompts == "demo" and plan.sampled == Plan(name="x").sampled
    assert plan.sampled.enabled and plan.policy.require_sampled


def test_the_plan_in_a_lock_can_be_read_back() -> None:
    plan = accepted({"engine": {"kind": "scripted", "script": {"seed": 3}}, "workload": {"concurrency": [1, 4]}})
    assert Plan.model_validate(plan.model_dump(mode="json")) == plan


@pytest.mark.parametrize("table", TABLES)
def test_an_unknown_key_is_refused_by_its_place(table: str) -> None:
    message = refused({table: {"colour": 1}})
    assert f"'{table}.colour' is not a known key" in message
    assert message.startswith("study study.toml: ") and "docs/study.md explains each key" in message
    # and the keys of that very table are told
    known = {"measure": "repeats", "policy": "min_claim", "sampled": "delta", "sampling": "top_k", "workload": "limit"}
    told = message.partition("allowed are ")[2].partition(";")[0].split(", ")
    assert known.get(table, {"engine": "target", "speculation": "draft"}.get(table)) in told


def test_unknown_keys_are_refused_at_the_top_and_in_the_script() -> None:
    assert "'colour' is not a known key, allowed are schema_version, name, engine," in refused({"colour": 1})
    assert "'engine.script.colour'" in refused({"engine": {"kind": "scripted", "script": {"colour": 1}}})


def test_a_missing_name_is_said() -> None:
    with pytest.raises(PlanError, match="'name' is missing"):
        parse_plan({}, "study.toml")


def test_several_mistakes_are_all_named() -> None:
    message = refused({"colour": 1, "speculation": {"num_speculative_tokens": 99}, "workload": {"max_tokens": 0}})
    assert all(name in message for name in ("'colour'", "'speculation.num_speculative_tokens' = 99", "max_tokens"))


@pytest.mark.parametrize(
    ("table", "key", "value", "allowed"),
    [
        pytest.param("engine", "kind", "vllm", "'native', 'hf', 'scripted' or 'openai_http'", id="kind"),
        pytest.param("engine", "dtype", "float16", "'bfloat16', 'float32' or 'float64'", id="dtype"),
        pytest.param("engine", "threads", 2.5, "'auto'", id="threads"),
        pytest.param("engine", "threads", 0, "greater than or equal to 1", id="no-thread"),
        pytest.param("engine", "max_len", "big", "'auto'", id="max-len"),
        pytest.param("engine", "max_len", 1, "greater than or equal to 2", id="max-len-1"),
        pytest.param("engine", "numerics", "exact", "'bitwise' or 'fast'", id="numerics"),
        pytest.param(
            "speculation",
            "proposer",
            "eagle",
            "'prompt-lookup', 'draft-model', 'cross-tokenizer', 'early-exit' or 'server'",
            id="proposer",
        ),
        pytest.param("speculation", "exit_layer", 0, "greater than or equal to 1", id="exit-layer"),
        pytest.param("speculation", "confidence_threshold", 1.0, "less than 1", id="sure"),
        pytest.param("speculation", "confidence_threshold", -0.1, "greater than or equal to 0", id="negative"),
        pytest.param("speculation", "verification", "typical", "'rejection' or 'coupled'", id="verification"),
        pytest.param("speculation", "num_speculative_tokens", 0, "greater than or equal to 1", id="k-0"),
        pytest.param("speculation", "num_speculative_tokens", 16, "less than or equal to 15", id="k-16"),
        pytest.param("speculation", "num_speculative_tokens", 99, "less than or equal to 15", id="k-99"),
        pytest.param("speculation", "prompt_lookup_min", 0, "greater than or equal to 1", id="lookup-min"),
        pytest.param("speculation", "prompt_lookup_max", 0, "greater than or equal to 1", id="lookup-max"),
        pytest.param("workload", "limit", 0, "greater than or equal to 1", id="limit"),
        pytest.param("workload", "max_tokens", 0, "greater than or equal to 1", id="max-tokens"),
        pytest.param("workload", "seed", -1, "greater than or equal to 0", id="workload-seed"),
        pytest.param("workload", "concurrency", [], "one or more different whole numbers from 1 up", id="none-at-once"),
        pytest.param("workload", "concurrency", [0], "from 1 up", id="zero-at-once"),
        pytest.param("workload", "concurrency", [2, 2], "different", id="twice-the-same"),
        pytest.param("workload", "concurrency", 2, "give a list, such as [1, 4]", id="not-a-list"),
        pytest.param("sampled", "words", [" red"], "two or more different", id="one-word"),
        pytest.param("sampled", "words", [], "two or more different", id="no-words"),
        pytest.param("sampled", "words", [" red", " red"], "two or more different", id="a-word-twice"),
        pytest.param("sampled", "seed", 10**12 + 1, "less than or equal to", id="huge-seed"),
        pytest.param("sampling", "temperature", -0.1, "greater than or equal to 0", id="cold"),
        pytest.param("sampling", "temperature", 100.1, "less than or equal to 100", id="hot"),
        pytest.param("sampling", "temperature", float("nan"), "less than or equal to 100", id="nan"),
        pytest.param("sampling", "top_k", -1, "greater than or equal to 0", id="top-k"),
        pytest.param("sampling", "top_p", 0.0, "greater than 0", id="top-p-0"),
        pytest.param("sampling", "top_p", 1.1, "less than or equal to 1", id="top-p-above-1"),
        pytest.param("measure", "warmup_requests", -1, "greater than or equal to 0", id="warm-up"),
        pytest.param("measure", "repeats", 0, "greater than or equal to 1", id="repeats"),
        pytest.param("sampled", "sequences", 99, "greater than or equal to 100", id="sequences"),
        pytest.param("sampled", "control_sequences", 49, "greater than or equal to 50", id="control-sequences"),
        pytest.param("sampled", "tokens", 1, "greater than or equal to 2", id="tokens-1"),
        pytest.param("sampled", "tokens", 65, "less than or equal to 64", id="tokens-65"),
        pytest.param("sampled", "batch", 0, "greater than or equal to 1", id="batch"),
        pytest.param("sampled", "temperature", 0.0, "greater than 0", id="greedy-sampled"),
        pytest.param("sampled", "delta", 0.0, "greater than 0", id="delta-0"),
        pytest.param("sampled", "delta", 1.0, "less than 1", id="delta-1"),
        pytest.param("sampled", "delta_stratum", 1.0, "less than 1", id="delta-stratum"),
        pytest.param("sampled", "alpha_fail", 0.5, "less than 0.5", id="alpha-fail"),
        pytest.param("sampled", "alpha_eq", 0.0, "greater than 0", id="alpha-eq"),
        pytest.param("sampled", "min_stratum_tokens", 0, "greater than or equal to 1", id="stratum"),
        pytest.param("policy", "min_claim", "lossy", "'bitwise', 'bitwise_same_batch' or 'up_to_ties'", id="claim"),
        pytest.param("policy", "confidence", 1.0, "less than 1", id="confidence"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_was_got_and_what_is_allowed(
    table: str, key: str, value: Any, allowed: str
) -> None:
    message = refused({table: {key: value}})
    assert f"'{table}.{key}" in message and repr(value) in message and allowed in message


@pytest.mark.parametrize("value", [1, 15])
def test_the_ends_of_the_range_of_drafted_tokens_are_allowed(value: int) -> None:
    assert accepted({"speculation": {"num_speculative_tokens": value}}).speculation.num_speculative_tokens == value


@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param({"noise": -1}, "script.noise = -1.0: allowed 0 or more", id="noise"),
        pytest.param({"spread": float("nan")}, "script.spread = nan: allowed 0 or more", id="nan"),
        pytest.param({"copying": float("inf")}, "script.copying = inf", id="infinity"),
        pytest.param({"target_bytes": 0}, "script.target_bytes = 0: allowed 1 or more", id="bytes"),
        pytest.param({"plain_ms": 0}, "script.plain_ms = 0.0: allowed above 0", id="plain"),
        pytest.param({"block_ms": -1}, "script.block_ms = -1.0: allowed above 0", id="block"),
        pytest.param({"prefill_ms": float("inf")}, "script.prefill_ms = inf: allowed above 0", id="prefill"),
        pytest.param({"defect": "other"}, "'none', 'block' or 'not-finite'", id="defect"),
    ],
)
def test_a_script_that_makes_no_sense_is_refused(script: dict[str, Any], said: str) -> None:
    assert said in refused({"engine": {"kind": "scripted", "script": script}}, InputError)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        pytest.param("native", "script", {"seed": 1}, id="native-script"),
        pytest.param("hf", "script", {"seed": 1}, id="hf-script"),
        pytest.param("hf", "numerics", "fast", id="hf-numerics"),
        pytest.param("scripted", "target", "some/model", id="scripted-target"),
        pytest.param("scripted", "dtype", "float32", id="scripted-dtype"),
        pytest.param("scripted", "device", "cuda", id="scripted-device"),
        pytest.param("scripted", "threads", 2, id="scripted-threads"),
        pytest.param("scripted", "numerics", "fast", id="scripted-numerics"),
    ],
)
def test_a_key_that_means_nothing_to_the_engine_is_refused(kind: str, key: str, value: Any) -> None:
    assert f"'{key}' has no meaning for kind '{kind}'; remove it" in refused({"engine": {"kind": kind, key: value}})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        pytest.param("native", {"threads": 2, "numerics": "fast", "dtype": "float64", "max_len": 64}, id="native"),
        pytest.param("hf", {"threads": 2, "dtype": "float32", "target": "some/model", "device": "cuda"}, id="hf"),
        pytest.param("scripted", {"max_len": 64, "script": {"seed": 1}}, id="scripted"),
    ],
)
def test_what_means_something_to_the_engine_is_taken(kind: str, values: dict[str, Any]) -> None:
    plan = accepted({"engine": {"kind": kind, **values}, "policy": {"min_claim": "up_to_ties"}})
    assert plan.engine == EnginePlan.model_validate({"kind": kind, **values})
    assert plan.engine.max_len == values.get("max_len", "auto")


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        pytest.param({"speculation": {"proposer": "draft-model"}}, "needs 'draft'", id="no-draft"),
        pytest.param({"speculation": {"proposer": "cross-tokenizer"}}, "needs 'draft'", id="no-cross-draft"),
        pytest.param({"speculation": {"draft": "a"}}, "'draft' is only for proposer 'draft-model'", id="idle-draft"),
        pytest.param(
            {"speculation": {"proposer": "early-exit", "exit_layer": 3, "draft": "a"}},
            "'draft' is only for proposer 'draft-model'",
            id="early-exit-draft",
        ),
        pytest.param({"speculation": {"proposer": "early-exit"}}, "'exit_layer' goes with", id="no-exit-layer"),
        pytest.param({"speculation": {"exit_layer": 3}}, "'exit_layer' goes with", id="idle-exit-layer"),
        pytest.param({"speculation": {"confidence_threshold": 0.5}}, "prompt lookup has none", id="sure-lookup"),
        pytest.param(
            {"speculation": {"proposer": "early-exit", "exit_layer": 3, "prompt_lookup_max": 2}},
            "'prompt_lookup_max' has no meaning for proposer 'early-exit'; remove it",
            id="idle-lookup",
        ),
        pytest.param({"engine": {"kind": "hf"}}, 'can claim "up_to_ties" at most', id="hf-claim"),
        pytest.param({"speculation": {"prompt_lookup_min": 5}}, "above 'prompt_lookup_max'", id="min-above-max"),
        pytest.param(
            {
                "engine": {"kind": "hf"},
                "speculation": {"proposer": "draft-model", "draft": "a", "confidence_threshold": 0.5},
            },
            "drafts without 'confidence_threshold'",
            id="hf-sure-draft",
        ),
        pytest.param(
            {"engine": {"kind": "hf"}, "speculation": {"proposer": "server"}},
            "'server' does not run on engine 'hf'; allowed: prompt-lookup, draft-model, cross-tokenizer, early-exit",
            id="hf-server",
        ),
        pytest.param(
            {"engine": {"kind": "scripted"}, "speculation": {"proposer": "draft-model", "draft": "a"}},
            "'draft-model' does not run on engine 'scripted'; allowed: prompt-lookup",
            id="scripted-draft-model",
        ),
        *(
            pytest.param(
                {"engine": {"kind": kind}, "speculation": {"verification": "coupled"}},
                f"'coupled' does not run on engine '{kind}'; allowed: rejection",
                id=f"{kind}-coupled",
            )
            for kind in ("hf", "scripted")
        ),
        pytest.param(
            {"engine": {"kind": "hf"}, "speculation": {"prompt_lookup_min": 2}},
            "set prompt_lookup_min = 1",
            id="hf-lookup",
        ),
        pytest.param(
            {"engine": {"kind": "hf"}, "workload": {"concurrency": [1, 2]}}, "set concurrency = [1]", id="hf-batch"
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(tables: dict[str, Any], said: str) -> None:
    assert said in refused(tables)


@pytest.mark.parametrize("proposer", ["draft-model", "cross-tokenizer"])
def test_the_native_engine_takes_a_draft_model_the_coupled_rule_and_several_at_once(proposer: str) -> None:
    speculation = {"proposer": proposer, "draft": "a", "verification": "coupled"}
    plan = accepted({"speculation": speculation, "workload": {"concurrency": [4, 1]}})
    assert plan.speculation.draft == "a" and plan.speculation.verification == "coupled"
    assert plan.workload.concurrency == (4, 1)


@pytest.mark.parametrize(
    "speculation",
    [
        {"proposer": "draft-model", "draft": "a"},
        {"proposer": "cross-tokenizer", "draft": "a"},
        {"proposer": "early-exit", "exit_layer": 3},
    ],
)
def test_transformers_takes_the_drafts_that_our_engine_takes(speculation: dict[str, Any]) -> None:
    plan = accepted({"engine": {"kind": "hf"}, "speculation": speculation, "policy": {"min_claim": "up_to_ties"}})
    assert plan.speculation.model_dump(include=set(speculation)) == speculation


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot read study .*absent\.toml"):
        load_plan(tmp_path / "absent.toml")
    with pytest.raises(PlanError, match="cannot read study"):
        load_plan(tmp_path)
    for content in (b"name = [", b"\xff\xfe", b"name = 'a'\nname = 'b'\n"):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(PlanError, match=r"bad\.toml is not TOML") as caught:
            load_plan(tmp_path / "bad.toml")
        assert "\n" not in str(caught.value)


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder / "study.toml"


def test_a_study_lays_its_keys_over_those_of_its_base(tmp_path: Path) -> None:
    below = 'name = "below"\n[engine]\nkind = "hf"\nmax_len = 64\n[workload]\nconcurrency = [1, 2]\nlimit = 3'
    above = 'base = "other.toml"\nname = "above"\n[engine]\nkind = "native"\n[workload]\nconcurrency = [4]'
    plan = load_plan(written(tmp_path, other=below, study=above))
    assert (plan.name, plan.engine.kind, plan.engine.max_len) == ("above", "native", 64)
    assert (plan.workload.concurrency, plan.workload.limit) == ((4,), 3)


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ('"study.toml"', "is its own base"),
        ('"absent.toml"', r"cannot read study .*absent\.toml"),
        ("3", "base = 3: give the path of another study"),
    ],
)
def test_a_base_that_cannot_be_read_is_refused(tmp_path: Path, base: str, said: str) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        load_plan(written(tmp_path, study=f"base = {base}"))
    assert "\n" not in str(caught.value)


def test_the_shipped_study_differs_between_its_engines_in_nothing_else() -> None:
    folder = Path(__file__).parent.parent.parent / "studies"
    plans = {kind: load_plan(folder / f"{kind}.toml").model_dump() for kind in ("native", "hf", "vllm")}
    for plan in plans.values():
        engine, speculation = plan.pop("engine"), plan.pop("speculation")
        assert (engine["target"], engine["dtype"]) == ("smollm2-135m-instruct", "bfloat16")
        assert (speculation["num_speculative_tokens"], speculation["prompt_lookup_max"]) == (5, 4)
    assert plans["native"] == plans["hf"] == plans["vllm"]


def test_the_shipped_servers_differ_in_speculation_alone() -> None:
    launch = load_plan(Path(__file__).parent.parent.parent / "studies" / "vllm.toml").engine.launch
    assert launch is not None
    same = len(launch.target_only)
    assert launch.speculative[:same] == launch.target_only
    assert launch.speculative[same::2] == ("--per-request-spec-decode-metrics", "--speculative-config")
