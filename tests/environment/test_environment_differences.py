"""What two environments must share is compared, and each difference is named with what it forbids."""

import copy
from typing import Any

import pytest

from draftproof.environment import describe_environment, differences, facts_of
from draftproof.environment.differences import MUST_MATCH

ENGINE = {
    "dtype": "bfloat16",
    "device": "cpu",
    "model": {
        "target": {"weights": "ab", "config": "cd", "tokenizer": "ef", "files": ["model.safetensors"]},
        "drafts": [{"weights": "gh", "config": "ij", "tokenizer": "ef"}],
    },
    "attention": "sdpa",
    "runtime": {"torch": "2.13.0", "threads": 2, "blas": "mkl"},
}


def environment(**changes: Any) -> dict[str, Any]:
    return {**describe_environment(), "engine": copy.deepcopy(ENGINE)} | changes


def test_an_environment_does_not_differ_from_itself() -> None:
    assert differences(environment(), environment()) == []


def test_what_changes_from_moment_to_moment_is_no_difference() -> None:
    moments = {"load_average": [9.0, 9.0, 9.0], "command": ["another"], "cpu_mhz": 1.0, "study_git_commit": "abc"}
    assert differences(environment(), environment(**moments)) == []


def test_every_fact_is_compared_or_known_to_change() -> None:
    compared = {name.partition(".")[0] for names in MUST_MATCH.values() for name in names}
    changing = {"cpu_mhz", "gpu_clocks", "load_average", "command", "study_git_commit", "absent"}
    assert describe_environment().keys() - compared == changing


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        pytest.param("cpu_model", "Another CPU", "machine", id="cpu"),
        pytest.param("cpu_flags", [], "machine", id="flags"),
        pytest.param("num_usable_cores", 1234, "machine", id="cores"),
        pytest.param("memory_bytes", 1 << 20, "machine", id="memory"),
        pytest.param("gpus", [{"name": "A GPU"}], "machine", id="gpu"),
        pytest.param("thread_variables", {"OMP_NUM_THREADS": "77"}, "machine", id="variables"),
        pytest.param("os", "Another 1.0", "software", id="os"),
        pytest.param("gpu_driver", "570", "software", id="driver"),
    ],
)
def test_each_difference_is_named_with_its_kind(name: str, value: Any, kind: str) -> None:
    here = environment()
    (found,) = differences(here, environment(**{name: value}))
    assert (found.name, found.kind, found.a, found.b) == (name, kind, here[name], value)
    assert str(found) == f"{name}: {here[name]} and {value}"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (("dtype",), "work"),
        (("model", "target", "weights"), "work"),
        (("model", "target", "tokenizer"), "work"),
        (("runtime", "threads"), "machine"),
        (("device",), "machine"),
        (("runtime", "torch"), "software"),
        (("runtime", "blas"), "software"),
        (("model", "drafts", "0", "weights"), "software"),
        (("attention",), "software"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else value,
)
def test_the_engines_own_facts_are_compared(path: tuple[str, ...], kind: str) -> None:
    other = environment()
    table = other["engine"]
    for part in path[:-1]:
        table = table[int(part)] if part.isdecimal() else table[part]
    table[path[-1]] = "another"
    (found,) = differences(environment(), other)
    assert (found.name, found.kind) == (f"engine.{'.'.join(path)}", kind)


def test_servers_are_compared_by_what_they_say_of_themselves() -> None:
    facts = {"server": "vllm", "version": "0.10", "model": "m", "max_len": 4096}
    one, other = (
        environment(engine={"target_only": facts, "speculative": {**facts, "version": version}, "launch": None})
        for version in ("0.10", "0.11")
    )
    (found,) = differences(one, other)
    assert (found.name, found.kind, found.b) == ("engine.speculative.version", "software", "0.11")
    (found,) = differences(one, environment(engine={"target_only": {**facts, "model": "n"}, "speculative": facts}))
    assert (found.name, found.kind) == ("engine.target_only.model", "work")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pass_shapes", {"widths": [1, 2]}),
        ("synchronisation", "torch.cuda.synchronize before each reading of the clock"),
    ],
)
def test_how_it_was_timed_is_compared(name: str, value: Any) -> None:
    how = {"pass_shapes": {"widths": [2]}, "synchronisation": "none needed"}
    (found,) = differences(environment(measurement=how), environment(measurement=how | {name: value}))
    assert (found.name, found.kind) == (f"measurement.{name}", "software")


def test_packages_are_named_one_by_one() -> None:
    here, other = environment(), environment()
    other["packages"] = {**here["packages"], "numpy": "0.0.1", "added-since": "1"}
    (found,) = differences(here, other)
    assert (found.name, found.b, found.kind) == ("packages.numpy", "0.0.1", "software")


def test_a_fact_that_an_older_version_did_not_record_is_passed_over_and_an_unknown_one_is_not() -> None:
    older = environment()
    del older["cpu_caches"]
    assert differences(older, environment()) == []
    assert [found.name for found in differences(environment(cpu_model=None), environment())] == ["cpu_model"]


def test_a_little_more_memory_after_a_restart_is_the_same_machine() -> None:
    assert differences(environment(memory_bytes=1_000_000), environment(memory_bytes=1_000_900)) == []


def test_work_comes_first() -> None:
    other = environment(os="another", cpu_model="another")
    other["engine"]["dtype"] = "float32"
    assert [found.kind for found in differences(environment(), other)] == ["work", "machine", "software"]


def test_facts_of_a_machine_are_those_that_stay() -> None:
    facts = facts_of(environment(), "machine")
    assert {"cpu_model", "num_usable_cores", "engine.runtime.threads"} <= facts.keys()
    assert not {"load_average", "packages", "command"} & facts.keys()
