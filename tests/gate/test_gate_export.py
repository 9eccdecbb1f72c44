"""A rung as text for another engine: each target's names, what it cannot do, and what shells make of odd arguments."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftproof.errors import InputError, RefusedError
from draftproof.gate.commands import Parallel, server_of
from draftproof.gate.export import TARGETS, Approved, export
from draftproof.gate.rung import Rung
from support.other_words import other_words, translated
from support.toy_engines import noisy_copy, numbered_words
from support.toy_models import tiny_llama

PROMPT = "w11 w12 w13 w11 w12"
LAUNCH = [
    "vllm",
    "serve",
    "a/target",
    "--host",
    "{host}",
    "--port={port}",
    "--speculative-config",
    '{"method": "ngram"}',
]


def approved(
    *, engine: dict[str, Any] | None = None, speculation: dict[str, Any] | None = None, batch: int = 1
) -> Approved:
    rung = Rung(
        engine={"kind": "native", "target": "a/target", "dtype": "bfloat16", "device": "cpu", "max_len": "auto"}
        | (engine or {}),
        speculation={
            "proposer": "draft-model",
            "draft": "a/draft",
            "num_speculative_tokens": 5,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 4,
            "confidence_threshold": 0.0,
            "verification": "rejection",
        }
        | (speculation or {}),
        batch=batch,
        claim="bitwise",
    )
    return Approved(number=3, rung=rung, study_hash="5d" * 32, evidence_sha256="e1" * 32)


LOOKUP = {"proposer": "prompt-lookup", "draft": None}
SERVER = {"proposer": "server", "draft": None}


def launched(command: list[str] = LAUNCH, **engine: Any) -> Approved:
    table = {"kind": "openai_http", "server": "auto", "launch": {"speculative": command, "env": {}}} | engine
    return approved(engine=table, speculation=SERVER)


def run(text: str, folder: Path, **variables: str) -> list[str]:
    """The arguments that the script's program gets, by a stand-in for it on the path."""
    program = shlex.split(text.partition("exec ")[2].replace("\\\n", " "))[0]
    stand_in = folder / program
    stand_in.write_text('#!/bin/sh\nfor word in "$0" "$@"; do printf "%s\\0" "$word"; done\n', encoding="utf-8")
    stand_in.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin"} | variables
    done = subprocess.run(["sh", "-c", text], capture_output=True, env=environment, timeout=30, check=True, text=True)
    return done.stdout.split("\0")[1:-1]


@pytest.mark.parametrize(
    ("to", "rung", "words"),
    [
        pytest.param(
            "vllm",
            approved(engine={"max_len": 2048}, batch=4),
            "serve a/target --max-model-len 2048 --max-num-seqs 4 --dtype bfloat16",
            id="vllm",
        ),
        pytest.param(
            "sglang",
            approved(batch=2),
            "--model-path a/target --speculative-algorithm STANDALONE --speculative-draft-model-path a/draft "
            "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6 --max-running-requests 2",
            id="sglang",
        ),
        pytest.param(
            "sglang",
            approved(speculation=LOOKUP),
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 6",
            id="sglang-lookup",
        ),
        pytest.param(
            "llamacpp",
            approved(
                engine={"target": "a/t.gguf", "max_len": 512},
                speculation={"draft": "a/d.gguf", "confidence_threshold": 0.25},
                batch=2,
            ),
            "--model a/t.gguf --model-draft a/d.gguf --parallel 2 --ctx-size 1024 "
            "--spec-draft-n-max 5 --spec-draft-p-min 0.25",
            id="llamacpp",
        ),
        pytest.param(
            "llamacpp",
            approved(engine={"target": "a/t.gguf"}, speculation=LOOKUP),
            "--spec-type ngram-simple --spec-draft-n-max 5 --spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 5",
            id="llamacpp-lookup",
        ),
        pytest.param(
            "llamacpp",
            approved(engine={"target": "a/t.gguf"}, speculation=LOOKUP | {"num_speculative_tokens": 2}),
            "--spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 2",
            id="llamacpp-short-lookup",
        ),
    ],
)
def test_a_script_starts_the_server_with_the_rungs_settings(
    to: str, rung: Approved, words: str, tmp_path: Path
) -> None:
    text, told = export(to, rung, from_another_engine=True)
    given = run(text, tmp_path)
    assert all(word in given for word in words.split())
    pairs = zip(words.split(), words.split()[1:], strict=False)
    assert all(given[given.index(name) + 1] == value for name, value in pairs if name.startswith("--"))
    assert given[given.index("--host") + 1] == "127.0.0.1" and given[given.index("--port") + 1] == "8000"
    assert "5d" * 32 in text and "e1" * 32 in text
    assert told[0].startswith("NOT VERIFIED") and f"# {told[0]}" in text


@pytest.mark.parametrize(
    ("speculation", "config"),
    [
        pytest.param({}, {"method": "draft_model", "model": "a/draft"}, id="draft"),
        pytest.param(LOOKUP, {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4}, id="lookup"),
    ],
)
def test_vllm_gets_the_speculative_config(speculation: dict[str, Any], config: dict[str, Any], tmp_path: Path) -> None:
    text, _ = export("vllm", approved(speculation=speculation), from_another_engine=True)
    given = run(text, tmp_path)
    assert json.loads(given[given.index("--speculative-config") + 1]) == config | {"num_speculative_tokens": 5}


@pytest.mark.parametrize(
    "name", ["a b", "$(touch spoiled)", "it's", "`id`;&|<>", '"', "a\nb", "-x", "*", "# no", "{port}"]
)
@pytest.mark.parametrize("to", ["vllm", "sglang"])
def test_no_argument_means_anything_to_the_shell(to: str, name: str, tmp_path: Path) -> None:
    text, _ = export(to, approved(engine={"target": name}), from_another_engine=True)
    given = run(text, tmp_path, PORT="8123")
    assert name.replace("{port}", "8123") in given
    assert not (tmp_path / "spoiled").exists() and not Path("spoiled").exists()


def test_a_launched_servers_command_comes_back_as_the_study_ran_it(tmp_path: Path) -> None:
    text, told = export("vllm", launched(launch={"speculative": LAUNCH, "env": {"A": "b c"}}))
    assert told == [] and "NOT VERIFIED" not in text
    folder = tmp_path
    assert run(text, folder, HOST="10.0.0.1", PORT="9") == ["A=b c", *LAUNCH[:4], "10.0.0.1", "--port=9", *LAUNCH[6:]]


def test_a_cluster_changes_the_command_and_says_so(tmp_path: Path) -> None:
    text, told = export("vllm", launched(), parallel=Parallel(tensor=4, pipeline=2, nodes=2))
    given = run(text, tmp_path)
    assert given[-6:] == [
        "--tensor-parallel-size", "4", "--pipeline-parallel-size", "2", "--distributed-executor-backend", "ray",
    ]  # fmt: skip
    assert told == [line for line in told if line.startswith("CHANGED SINCE THE STUDY: 4 devices per layer")] != []


@pytest.mark.parametrize(
    ("to", "rung", "said"),
    [
        pytest.param(
            "vllm",
            approved(speculation={"proposer": "early-exit", "exit_layer": 4, "draft": None}),
            "proposer 'early-exit' does not run on 'vllm'; allowed: prompt-lookup, draft-model",
            id="early-exit",
        ),
        pytest.param(
            "sglang",
            approved(speculation={"proposer": "cross-tokenizer"}),
            "proposer 'cross-tokenizer' does not run on 'sglang'",
            id="cross-tokenizer",
        ),
        pytest.param(
            "hf",
            approved(speculation={"verification": "coupled"}),
            "verification 'coupled'.*allowed: rejection",
            id="coupled",
        ),
        pytest.param(
            "vllm",
            approved(speculation={"confidence_threshold": 0.5}),
            "'vllm' has no confidence_threshold",
            id="dynamic",
        ),
        pytest.param("hf", approved(batch=4), "one request at a time", id="batch"),
        pytest.param(
            "vllm",
            approved(engine={"dtype": "float64"}),
            "dtype 'float64' does not run on 'vllm'; allowed: bfloat16, float32",
            id="dtype",
        ),
        pytest.param(
            "llamacpp", approved(), "'llamacpp' does not load 'a/target'; allowed: a .gguf file", id="no-gguf"
        ),
        pytest.param("hf", approved(engine={"target": "a.gguf"}), "does not load 'a.gguf'", id="gguf"),
        pytest.param("vllm", approved(engine={"kind": "scripted"}), "scripted fake", id="scripted"),
        pytest.param("vllm", approved(speculation={"num_speculative_tokens": "auto"}), "no fixed K", id="no-k"),
        pytest.param("tgi", approved(), "'tgi' cannot be exported to; allowed: vllm, sglang, llamacpp, hf", id="tgi"),
        pytest.param(
            "sglang", launched(), "a command for 'vllm', which has no meaning for 'sglang'", id="other-server"
        ),
        pytest.param("vllm", launched(launch=None, base_url="http://a"), "arguments are not known", id="attached"),
    ],
)
def test_what_a_target_cannot_do_is_refused_by_name(to: str, rung: Approved, said: str) -> None:
    with pytest.raises(InputError, match=said):
        export(to, rung, from_another_engine=True)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        pytest.param({"tensor": 0}, "--tensor-parallel 0: allowed 1 or more", id="zero"),
        pytest.param({"tensor": 2, "nodes": 3}, "cannot be shared by 3 nodes evenly", id="uneven"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(layout: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Parallel(**layout)


def test_a_layout_is_vllms_alone_and_is_set_once() -> None:
    with pytest.raises(InputError, match="only vllm takes one"):
        export("sglang", approved(), parallel=Parallel(tensor=2), from_another_engine=True)
    with pytest.raises(InputError, match="sets --tensor-parallel-size itself"):
        export("vllm", launched([*LAUNCH, "-tp", "2"]), parallel=Parallel(tensor=4))


@pytest.mark.parametrize("to", ["vllm", "sglang", "hf"])
def test_a_proof_of_our_engine_does_not_carry_over(to: str) -> None:
    with pytest.raises(RefusedError, match=r"does not carry over.*--from-another-engine") as refused:
        export(to, approved())
    assert refused.value.exit_code == 11


def test_what_transformers_ran_is_exported_to_transformers_as_verified() -> None:
    text, told = export("hf", approved(engine={"kind": "hf"}))
    assert told == [] and "NOT VERIFIED" not in text


@pytest.mark.parametrize(
    ("command", "server"),
    [
        pytest.param(["/opt/bin/vllm", "serve"], "vllm", id="vllm"),
        pytest.param(["python3", "-m", "sglang.launch_server"], "sglang", id="module"),
        pytest.param(["llama-server", "-m", "vllm"], "llamacpp", id="first-word-wins"),
        pytest.param(["mine", "--port", "1", "vllm"], "auto", id="unknown"),
    ],
)
def test_a_command_tells_its_server(command: list[str], server: str) -> None:
    assert server_of(command) == server


@pytest.mark.parametrize(
    "speculation",
    [
        pytest.param({"proposer": "prompt-lookup", "draft": None}, id="prompt-lookup"),
        pytest.param({"proposer": "draft-model"}, id="draft-model"),
        pytest.param({"proposer": "cross-tokenizer"}, id="cross-tokenizer"),
        pytest.param({"proposer": "early-exit", "draft": None, "exit_layer": 1}, id="early-exit"),
    ],
)
def test_the_python_generates_the_targets_greedy_tokens_by_the_approved_draft(
    speculation: dict[str, Any], tmp_path: Path
) -> None:
    target, draft, k = str(tmp_path / "t"), str(tmp_path / "it's d"), 3
    crosses = speculation["proposer"] == "cross-tokenizer"
    model = tiny_llama(0, torch.float32)
    helper = noisy_copy(model, 0.01)
    for folder, one, tokenizer in (
        (target, model, numbered_words()),
        (draft, translated(helper) if crosses else helper, other_words() if crosses else numbered_words()),
    ):
        one.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    engine = {"kind": "hf", "target": target, "dtype": "float32"}
    drafted = {"draft": draft} if speculation.get("draft", "") is not None else {}
    text, _ = export("hf", approved(engine=engine, speculation=speculation | drafted | {"num_speculative_tokens": k}))
    module: dict[str, Any] = {}
    exec(compile(text, "exported", "exec"), module)
    passes: list[int] = []

    def watch(one: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        # while an early exit drafts, the model has fewer layers
        if one.config.num_hidden_layers == model.config.num_hidden_layers:
            passes.append(kwargs["input_ids"].shape[1])

    module["model"].register_forward_hook(watch, with_kwargs=True)
    drafts: list[int] = []
    if drafted:
        assert module["draft"].name_or_path == draft
        module["draft"].register_forward_hook(lambda *_: drafts.append(1))
    plain = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    inputs = AutoTokenizer.from_pretrained(target)(PROMPT, return_tensors="pt")
    wanted = plain.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert module["generate"](PROMPT, max_new_tokens=12, do_sample=False).tolist() == wanted.tolist()
    widths = [width for width in passes[1:] if width > 1]
    assert max(widths) == k + 1
    if drafted:
        # nearly the target
        assert len(passes) < 12 and len(drafts) >= len(passes)


def test_every_target_has_a_row_of_the_documents_commands() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    named = re.search(r"`export ([^`]+)`", readme)
    assert named is not None and set(named[1].split("\\|")) == set(TARGETS)


def test_a_launched_servers_command_names_the_target_that_the_study_did() -> None:
    text, _ = export("vllm", launched(["vllm", "serve", "{target}", "--port", "{port}"], target="a/b c"))
    assert "'a/b c'" in text and "{target}" not in text
