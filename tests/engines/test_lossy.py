"""Lossy settings of each engine are named, wherever they are written; settings that only draft otherwise are not."""

import json
from typing import Any

import pytest
from transformers import GenerationConfig

from draftproof.engines.lossy import lossy_settings, settings_of
from draftproof.gate import commands
from draftproof.gate.commands import Settings
from draftproof.gate.rung import Rung

VLLM = ["vllm", "serve", "a/target", "--speculative-config"]
SGLANG = ["python3", "-m", "sglang.launch_server", "--speculative-algorithm", "EAGLE3"]


def vllm(**config: Any) -> list[str]:
    return [*VLLM, json.dumps({"method": "ngram", "num_speculative_tokens": 5, **config})]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        pytest.param(vllm(rejection_sample_method="fly"), "fly acceptance", id="vllm-fly"),
        pytest.param(vllm(rejection_sample_method="synthetic"), "synthetic acceptance", id="vllm-synthetic"),
        pytest.param(vllm(synthetic_acceptance_rates=[0.9, 0.5]), "synthetic acceptance", id="vllm-synthetic-rates"),
        pytest.param(vllm(synthetic_acceptance_length=2.5), "synthetic acceptance", id="vllm-synthetic-length"),
        pytest.param(
            [f"{VLLM[-1]}={json.dumps({'rejection_sample_method': 'fly'})}"], "fly acceptance", id="vllm-one-word"
        ),
        pytest.param(
            ["vllm", "--speculative-config.rejection_sample_method", "fly"], "fly acceptance", id="vllm-dotted"
        ),
        pytest.param(
            ["vllm", "-sc", json.dumps({"rejection_sample_method": "fly"})], "fly acceptance", id="vllm-short"
        ),
        pytest.param(
            ["vllm", "--spec-decoding-acceptance-method", "typical_acceptance_sampler"],
            "typical acceptance",
            id="old-vllm",
        ),
        pytest.param(
            ["sh", "-c", 'vllm serve --speculative-config \'{"rejection_sample_method": "fly"}\''],
            "fly acceptance",
            id="in-a-shell",
        ),
        pytest.param(
            [*SGLANG, "--speculative-accept-threshold-single", "0.9"],
            "acceptance threshold below 1",
            id="sglang-single",
        ),
        pytest.param(
            [*SGLANG, "--speculative-accept-threshold-acc=0.99"], "acceptance threshold below 1", id="sglang-acc"
        ),
        pytest.param(
            [*SGLANG, "--speculative-accept-threshold-acc", "nan"], "acceptance threshold below 1", id="sglang-nan"
        ),
        pytest.param(["env", "SGLANG_SIMULATE_ACC_LEN=3", *SGLANG], "synthetic acceptance", id="sglang-simulated"),
        pytest.param([*SGLANG, "--device", "cpu"], "greedy-only verification", id="sglang-cpu"),
        pytest.param(
            ["trtllm", "--use_relaxed_acceptance_for_thinking", "--relaxed_topk", "10"],
            "relaxed acceptance",
            id="trtllm",
        ),
        pytest.param(["medusa", "--posterior-threshold", "0.09"], "typical acceptance", id="medusa"),
    ],
)
def test_a_lossy_command_is_named(command: list[str], name: str) -> None:
    assert {found.name for found in lossy_settings(settings_of(command))} == {name}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(vllm(), id="vllm-default"),
        pytest.param(vllm(rejection_sample_method="standard", draft_sample_method="probabilistic"), id="vllm-standard"),
        pytest.param(vllm(rejection_sample_method="block", use_heterogeneous_vocab=True), id="vllm-block"),
        pytest.param(vllm(suffix_decoding_min_token_prob=0.1), id="vllm-suffix"),
        pytest.param([*SGLANG, "--speculative-accept-threshold-single", "1.0"], id="sglang-off"),
        pytest.param([*SGLANG, "--speculative-use-rejection-sampling", "--device", "cuda"], id="sglang-rejection"),
        pytest.param(["env", "SGLANG_SIMULATE_ACC_LEN=-1", *SGLANG], id="sglang-not-simulated"),
        pytest.param(["sglang", "--device", "cpu"], id="sglang-cpu-without-speculation"),
        pytest.param(["trtllm", "--use_relaxed_acceptance_for_thinking", "false"], id="trtllm-off"),
        pytest.param(["text-generation-launcher", "--speculate", "3"], id="tgi"),
        pytest.param(["llama-server", "--spec-draft-p-min", "0.5", "--spec-draft-p-split", "0.1"], id="llamacpp"),
        pytest.param([*VLLM, "{no json"], id="no-json"),
    ],
)
def test_what_only_drafts_otherwise_is_not_lossy(command: list[str]) -> None:
    assert lossy_settings(settings_of(command)) == []


def test_an_environment_and_a_servers_own_description_are_read_too() -> None:
    started = settings_of(SGLANG, {"SGLANG_SIMULATE_ACC_LEN": "2.5"})
    assert [str(found) for found in lossy_settings(started)] == ["synthetic acceptance (sglang_simulate_acc_len = 2.5)"]
    described = {"version": "0.5", "internal_states": [{"speculative_accept_threshold_single": 0.7}]}
    assert [found.value for found in lossy_settings(described)] == ["0.7"]


def test_greedy_only_verification_takes_nothing_from_greedy_requests() -> None:
    settings = settings_of([*SGLANG, "--device", "xpu"])
    assert lossy_settings(settings) != [] and lossy_settings(settings, samples=False) == []


@pytest.mark.parametrize(("weight", "count"), [(None, 0), (0.5, 1)])
def test_transformers_ensemble_weight_is_lossy(weight: float | None, count: int) -> None:
    config = GenerationConfig(
        num_assistant_tokens=5, assistant_confidence_threshold=0.4, assistant_ensemble_weight=weight
    )
    assert len(lossy_settings(config.to_dict())) == count


@pytest.mark.parametrize("proposer", ["prompt-lookup", "draft-model"])
@pytest.mark.parametrize("write", [commands.vllm, commands.sglang, commands.llamacpp])
def test_no_exported_command_is_lossy(write: Any, proposer: str) -> None:
    speculation = {"proposer": proposer, "draft": "a/draft", "num_speculative_tokens": 5}
    settings = Settings(
        Rung(engine={"kind": "native", "target": "a"}, speculation=speculation, batch=1, claim="bitwise")
    )
    table = {commands.vllm: commands.VLLM, commands.sglang: commands.SGLANG, commands.llamacpp: commands.LLAMACPP}[
        write
    ]
    text = write(settings, table[proposer](settings), [], commands.Parallel())
    assert "--speculative" in text or "--spec-type" in text
    assert lossy_settings(settings_of([text.partition("exec ")[2].replace("\\\n", " ")])) == []
