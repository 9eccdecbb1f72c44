"""What must be as it was is compared by name; what may differ is not."""

from typing import Any

import pytest

from draftproof.environment import describe_environment
from draftproof.gate.fingerprint import differences, fingerprint
from support.ladder import HERE, NEW_TORCH

THEN = fingerprint(HERE | {"models": {"a/target": {"weights": "then"}}}, "0.1.0")


@pytest.mark.parametrize(
    ("environment", "version", "names"),
    [
        pytest.param({}, "0.1.0", [], id="same"),
        pytest.param({"load_average": [9, 9, 9], "command": ["x"], "thread_variables": {"A": "1"}}, "0.1.0", [], id="load"),
        pytest.param({"memory_bytes": 1, "os": "another kernel"}, "0.1.0", [], id="kernel"),
        pytest.param({"gpu_driver": "580"}, "0.1.0", [], id="not-recorded-then"),
        pytest.param(NEW_TORCH, "0.1.0", ["packages.torch (2.13.0, now 2.14.0)"], id="torch"),
        pytest.param({}, "0.2.0", ["draftproof (0.1.0, now 0.2.0)"], id="engine"),
        pytest.param({"cpu_flags": ["avx2", "amx"]}, "0.1.0", ["cpu_flags (avx2, now avx2 amx)"], id="flags"),
        pytest.param({"packages": {}}, "0.1.0", ["packages.numpy (2.4.6, now None)", "packages.torch (2.13.0, now None)"], id="gone"),
        pytest.param({"models": {"a/target": {"weights": "now"}}}, "0.1.0", ["models.a/target.weights (then, now now)"], id="model"),
        pytest.param({"models": {"a/target": {"weights": None, "files": ["x"]}}}, "0.1.0", [], id="no-weights-now"),
        pytest.param({"models": {}}, "0.1.0", [], id="model-out-of-reach"),
        pytest.param({"models": {"b/target": {"weights": "now"}}}, "0.1.0", [], id="another-model"),
    ],
)  # fmt: skip
def test_differences_are_named_with_both_values(environment: dict[str, Any], version: str, names: list[str]) -> None:
    now = HERE | {"models": {"a/target": {"weights": "then"}}} | environment
    assert differences(THEN, fingerprint(now, version)) == names


def test_a_long_value_is_cut() -> None:
    then, now = (fingerprint(HERE | {"cpu_model": letter * 64}, "0.1.0") for letter in "ab")
    assert differences(then, now) == [f"cpu_model ({'a' * 37}..., now {'b' * 37}...)"]


def test_a_changed_driver_is_a_difference() -> None:
    then, now = (fingerprint(HERE | {"gpu_driver": driver}, "0.1.0") for driver in ("570", "580"))
    assert differences(then, now) == ["gpu_driver (570, now 580)"]


def test_this_machine_is_as_it_was_and_is_told_by_name() -> None:
    then, now = (fingerprint(describe_environment(), "0.1.0") for _ in range(2))
    assert differences(then, now) == [] and {"draftproof", "cpu_model", "packages.torch"} <= set(then)


@pytest.mark.parametrize("environment", [{}, {"packages": None, "models": 3}, {"models": {"a": "x"}}])
def test_an_environment_that_tells_nothing_is_no_error(environment: dict[str, Any]) -> None:
    assert fingerprint(environment, "0.1.0") == {"draftproof": "0.1.0"}
