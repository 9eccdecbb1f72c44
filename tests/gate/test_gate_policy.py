"""A policy file is read whole or refused with a readable reason."""

from pathlib import Path

import pytest

from draftproof.errors import PlanError
from draftproof.gate.policy import Policy, load_policy


def written(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load_policy(written(tmp_path, "")) == Policy()


@pytest.mark.parametrize("head", ["", "[policy]\n"])
def test_keys_may_stand_at_top_level_or_in_a_table(tmp_path: Path, head: str) -> None:
    policy = load_policy(written(tmp_path, head + 'min_speedup = 1.3\nmin_claim = "bitwise"\n'))
    assert policy == Policy(min_speedup=1.3, min_claim="bitwise")


@pytest.mark.parametrize("head", ["", "[policy]\n"])
def test_an_unknown_key_is_refused_by_name_with_the_allowed_ones(tmp_path: Path, head: str) -> None:
    with pytest.raises(PlanError, match="min_speedpu") as refused:
        load_policy(written(tmp_path, head + "min_speedpu = 1.3\n"))
    assert "min_accepted_per_round" in str(refused.value)


@pytest.mark.parametrize("name", ["max_itl_ratio", "max_icl_ratio", "max_p95_latency_ratio", "max_memory_ratio"])
def test_a_limit_can_be_switched_off(tmp_path: Path, name: str) -> None:
    assert getattr(load_policy(written(tmp_path, f'{name} = "off"\n')), name) is None


def test_what_is_neither_a_number_nor_off_is_told_both(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="'max_itl_ratio' = 'never': give a number, or \"off\""):
        load_policy(written(tmp_path, 'max_itl_ratio = "never"\n'))


@pytest.mark.parametrize("head", ["", "policy."])
def test_operating_cost_is_a_table_of_its_own(tmp_path: Path, head: str) -> None:
    text = f'[{head}cost]\ngpu_hours_per_month = 720\ngpu_hour_worth = 2.5\nstore_per_month = 30\nunit = "EUR"\n'
    cost = load_policy(written(tmp_path, text)).cost
    assert cost is not None and (cost.total, cost.unit) == (30.0, "EUR")
    assert cost.saved(1.25) == pytest.approx(720 * 0.2 * 2.5)


@pytest.mark.parametrize(
    "line",
    [
        'max_itl_ratio = "never"',
        "cost = { gpu_hours_per_month = 720 }",
        "cost = { gpu_hours_per_month = 720, gpu_hour_worth = 2.5, build_per_month = -1 }",
        "min_speedup = 0",
        "max_itl_ratio = -1.0",
        "max_peak_memory_bytes = 0",
        "min_accepted_per_round = -0.1",
        'min_claim = "lossy"',
        "max_aa_spread = 1.0",
        "confidence = 0.5",
        "confidence = 1.0",
        'require_sampled = "perhaps"',
    ],
)
def test_a_value_out_of_range_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(PlanError, match=line.split()[0]):
        load_policy(written(tmp_path, line + "\n"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"absent\.toml"):
        load_policy(tmp_path / "absent.toml")


@pytest.mark.parametrize("content", [b"min_speedup = ", b"\xff\xfe"])
def test_what_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(content)
    with pytest.raises(PlanError, match="not TOML"):
        load_policy(path)
