"""A plan that is written as a study file reads as the same plan."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from draftproof.study.arms import sweep_plan
from draftproof.study.plan import Plan, parse_plan
from draftproof.study.study_file import as_study_file, load_plan
from support.scripted import make_plan

SERVED: dict[str, Any] = {
    "kind": "openai_http",
    "launch": {
        "target_only": ["serve", "--host", "{host}", "--port", "{port}"],
        "speculative": ["serve", "--host", "{host}", "--port", "{port}", "--config", '{"method": "ngram"}'],
        "env": {"A.B C": "x", "PLAIN": "1"},
        "together": False,
    },
}
PLANS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "limits that are off": {
        "policy": {"max_itl_ratio": "off", "max_memory_ratio": "off", "max_p95_latency_ratio": 1.0}
    },
    "numbers": {
        "measure": {"goodput": {"ttft_ms": 1e-5}},
        "sampled": {"alpha_fail": 1e-6},
        "sampling": {"temperature": 1e-7},
    },
    "costs": {"policy": {"cost": {"gpu_hours_per_month": 300, "gpu_hour_worth": 2.0, "unit": "\u20ac"}}},
    "texts": {"name": 'a "b" \\ \n\t\x7f \U0001f600', "sampled": {"prompt": ["a\nb", "\u2028"]}},
    "arrival": {"workload": {"arrival": {"rate_per_s": 4.0}, "concurrency": [1, 8], "limit": 3}},
    "servers": {"engine": SERVED, "speculation": {"proposer": "server"}, "policy": {"min_claim": "up_to_ties"}},
}


def read(text: str) -> Plan:
    return parse_plan(tomllib.loads(text), "test")


@pytest.mark.parametrize("name", PLANS)
def test_it_reads_as_the_same_plan(name: str) -> None:
    plan = parse_plan({"name": "x", **PLANS[name]}, "test")
    assert read(as_study_file(plan.model_dump(mode="json"))) == plan


def test_what_is_as_by_default_is_left_out() -> None:
    assert as_study_file(parse_plan({"name": "x"}, "test").model_dump(mode="json")) == 'name = "x"\n'


def test_a_script_keeps_what_it_does_and_a_sweep_leaves_its_study(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    swept = sweep_plan(plan, (1, 4), (), (1,))
    path = tmp_path / "again.toml"
    path.write_text(as_study_file(swept.model_dump(mode="json")), encoding="utf-8")
    assert load_plan(path) == plan
