"""Bad input of every kind, to every command: one line that says what was wrong, exit code 2, and no file more or less."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.command_line import Call, exit_code
from support.scripted import WITHOUT_SAMPLED, write_study
from support.toy_engines import numbered_words
from support.toy_models import tiny_llama
from support.toy_tokenizers import byte_level, spelt_words

Refused = Callable[..., str]
SCRIPTED = 'name = "x"\n[engine]\nkind = "scripted"\n'


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def refused(tmp_path: Path, short_self_test: None, draftproof: Call) -> Refused:
    """Run the command line in this process and return its one line."""

    def call(*arguments: object) -> str:
        before = content(tmp_path)
        code, _, said = draftproof(*arguments)
        assert code == 2 and said.startswith("draftproof: ") and said.count("\n") == 1, said
        assert content(tmp_path) == before
        return said

    return call


def save(model, tokenizer, folder: Path) -> Path:
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders: two models that differ in their tokenizer, one that shares no token with them, and what is no model."""
    folder = tmp_path_factory.mktemp("models")
    for name, tokenizer in {"words": numbered_words(), "spelt": spelt_words(), "bytes": byte_level("")}.items():
        save(tiny_llama(0, torch.float32, vocab=len(tokenizer)), tokenizer, folder / name)
    for name, lost in {
        "weightless": "model.safetensors",
        "speechless": "tokenizer*",
        "configless": "config.json",
    }.items():
        shutil.copytree(folder / "words", folder / name)
        for path in (folder / name).glob(lost):
            path.unlink()
    shutil.copytree(folder / "words", folder / "cut")
    weights = folder / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    shutil.copytree(folder / "weightless", folder / "pickled")
    (folder / "pickled" / "pytorch_model.bin").write_bytes(b"x")
    (folder / "empty.gguf").write_bytes(b"")
    (folder / "note.txt").write_text("x")
    return folder


# --- what stands in the study ------------------------------------------------------------------------------------------

IN_THE_STUDY = {
    "unknown table": ("[colour]\n", "'colour' is not a known key, allowed are schema_version, name, engine"),
    "unknown key of the script": ("[engine.script]\ncolour = 1\n", "not a known key, allowed are seed, spread"),
    "script that is no table": ("[engine]\nscript = 3\n", "'engine.script' = 3: should be a table"),
    "table that is none": ("engine = 3\n", "'engine' = 3: should be a table"),
    "true for a number": ("[speculation]\nnum_speculative_tokens = true\n", "= True: should be a valid integer"),
    "text for a number": ("[policy]\nmin_speedup = '2'\n", "= '2': should be a valid number"),
    "true in a list": ("[workload]\nconcurrency = [true]\n", "'workload.concurrency.0' = True"),
    "true for a number or auto": ("[engine]\nthreads = true\n", "or should be 'auto'"),
    "number for a truth value": ("[policy]\nrequire_sampled = 1\n", "should be a valid boolean"),
    "infinity": ("[policy]\nmin_speedup = inf\n", "should be a finite number"),
    "name of another type": ("name = 3\n", "'name' = 3: should be a valid string"),
    "words that are a text": ("[sampled]\nwords = ' red'\n", "should be a list"),
    "empty word": ("[sampled]\nwords = ['', ' red']\n", "none of them empty"),
    "empty sampled prompt": ("[sampled]\nprompt = ''\n", "give one text"),
    "key with a line end": ('[engine]\n"col\\nour" = 1\n', "'engine.col our' is not a known key"),
    "prompts that are a folder": ("[workload]\nprompts = './'\n", "unknown prompt set './': allowed are demo or"),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_THE_STUDY)
def test_a_value_that_cannot_be_used(name: str, tmp_path: Path, refused: Refused) -> None:
    text, said = IN_THE_STUDY[name]
    study = tmp_path / "study.toml"
    study.write_text(("" if text.startswith("name") else 'name = "x"\n') + text)
    assert said in refused("run", study, "--out", tmp_path / "new" / "out")
    assert said in refused("check", study)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param('name = "caf\u00e9"'.encode("latin-1"), "is not TOML: it is not UTF-8 (byte 11)", id="latin-1"),
        pytest.param('name = "x"'.encode("utf-16"), "is not TOML: it is not UTF-8 (byte 0)", id="utf-16"),
        pytest.param(bytes(range(256)), "is not TOML", id="binary"),
        pytest.param(b"", "'name' is missing", id="empty"),
        pytest.param(None, "Is a directory", id="folder"),
    ],
)
def test_a_study_that_is_no_text(given: bytes | None, said: str, tmp_path: Path, refused: Refused) -> None:
    study = tmp_path / "study.toml"
    if given is None:
        study.mkdir()
    else:
        study.write_bytes(given)
    assert said in refused("run", study, "--out", tmp_path / "out")
    assert said in refused("check", study)


# --- what the study names ----------------------------------------------------------------------------------------------

PROMPTS = {
    "blank": ("\n \n", "is empty; give it at least one line"),
    "malformed": ('{"id": 1, "category": "a", "prompt": "w05"}\n{"id": 2, \n', "line 2: not valid JSON"),
    "too long": (json.dumps({"id": "far", "category": "a", "prompt": "w05 " * 2000}), "prompt 'far': a prompt has 2000 tokens"),
    "absent": (None, "does not exist; check the path"),
}  # fmt: skip
MODELS = {
    "missing": ("target = '/no/such'", "", "is not a folder: allowed are smollm2-135m-instruct, a folder"),
    "with a line end": ('target = "/a\\nb"', "", "model '/a b' is not a folder"),
    "no gguf": ("target = 'MODELS/none.gguf'", "", "does not exist; check the path"),
    "empty gguf": ("target = 'MODELS/empty.gguf'", "", "cannot be loaded"),
    "a text": ("target = 'MODELS/note.txt'", "", "is not a folder"),
    "no weights": ("target = 'MODELS/weightless'", "", "no *.safetensors file; give a complete folder"),
    "cut weights": ("target = 'MODELS/cut'", "", "cannot be loaded"),
    "no tokenizer": ("target = 'MODELS/speechless'", "", "cannot be loaded"),
    "no config": ("target = 'MODELS/configless'", "", "has no config.json; give a folder written by save_pretrained"),
    "pickle": ("target = 'MODELS/pickled'", "", "only pickle weights, which can run code"),
    "unknown device": ("target = 'MODELS/words'\ndevice = 'gpu'", "", "device 'gpu' cannot be used"),
    "device without values": ("target = 'MODELS/words'\ndevice = 'meta'", "", "device 'meta' cannot be used"),
    "no such gpu": ("target = 'MODELS/words'\ndevice = 'cuda:7'", "", "device 'cuda:7' cannot be used"),
    "no memory": ("target = 'MODELS/words'\n[workload]\nconcurrency = [1000000]", "", "needs"),
    "missing draft": ("target = 'MODELS/words'", "proposer = 'draft-model'\ndraft = '/no/draft'", "model '/no/draft' is not"),
    "draft of another tokenizer": (
        "target = 'MODELS/words'", "proposer = 'draft-model'\ndraft = 'MODELS/spelt'", "has another tokenizer than"
    ),
    "draft that shares nothing": (
        "target = 'MODELS/words'", "proposer = 'cross-tokenizer'\ndraft = 'MODELS/bytes'", "shares 0 tokens"
    ),
    "too many layers": ("target = 'MODELS/words'", "proposer = 'early-exit'\nexit_layer = 99", "allowed 1 to 1 with"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_that_cannot_be_used(name: str, tmp_path: Path, refused: Refused) -> None:
    text, said = PROMPTS[name]
    path, study = tmp_path / "prompts.jsonl", tmp_path / "study.toml"
    if text is not None:
        path.write_text(text)
    study.write_text(f"{SCRIPTED}[workload]\nprompts = '{path}'\n")
    assert said in refused("run", study, "--out", tmp_path / "out")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_cannot_be_used(name: str, tmp_path: Path, refused: Refused, models: Path) -> None:
    engine, speculation, said = MODELS[name]
    study = tmp_path / "study.toml"
    tables = (
        f'name = "x"\n[sampled]\nenabled = false\n[speculation]\n{speculation}\n[engine]\ndtype = "float32"\n{engine}\n'
    )
    study.write_text(tables.replace("MODELS", str(models)))
    assert said in refused("run", study, "--out", tmp_path / "out")
    assert "is refused: " in refused("check", study)


@pytest.mark.parametrize(
    ("sampled", "said"),
    [
        pytest.param("words = ['w05 w06', 'w07']", "sampled.words: 'w05 w06' is 2 tokens", id="two-tokens"),
        pytest.param("words = ['zz', 'yy']", "'yy' is a token that another word has", id="unknown-words"),
        pytest.param(
            f"words = ['w05', 'w07']\nprompt = '{'w05 ' * 600}'", "sampled.prompt: a prompt has 600", id="long"
        ),
    ],
)
def test_a_sampled_check_that_cannot_be_made(
    sampled: str, said: str, tmp_path: Path, refused: Refused, models: Path
) -> None:
    prompts, study = tmp_path / "prompts.jsonl", tmp_path / "study.toml"
    prompts.write_text(json.dumps({"id": 1, "category": "a", "prompt": "w05"}))
    study.write_text(
        f'name = "x"\n[engine]\ntarget = "{models}/words"\ndtype = "float32"\n[workload]\nprompts = "{prompts}"\n'
        f"[sampled]\n{sampled}\n"
    )
    assert said in refused("run", study, "--out", tmp_path / "out")
    assert "is refused: sampled check; " in refused("check", study)


# --- where things are written and read ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was run."""
    folder = tmp_path_factory.mktemp("stored")
    exit_code("run", write_study(folder, **WITHOUT_SAMPLED), "--out", folder / "out")
    (folder / "policy.toml").write_text("min_speedup = 1.1\n")
    return folder


@pytest.mark.parametrize("where", ["file/out", "file", "/proc/nowhere"])
def test_an_output_folder_that_cannot_be_written(where: str, tmp_path: Path, stored: Path, refused: Refused) -> None:
    (tmp_path / "file").write_text("x")
    for call in (("run", stored / "study.toml"), ("demo",), ("report", stored / "out" / "evidence.json")):
        assert "cannot be written" in refused(*call, "--out", tmp_path / where)


@pytest.mark.parametrize("where", ["absent/copy.json", "folder", "file/copy.json", "/proc/copy.json"])
def test_a_copy_that_cannot_be_written_is_refused_before_anything_runs(
    where: str, tmp_path: Path, stored: Path, refused: Refused
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    study, copy = stored / "study.toml", ("--json", tmp_path / where)
    assert "cannot write" in refused("run", study, "--out", tmp_path / "out", *copy)
    assert "cannot write" in refused("demo", "--out", tmp_path / "out", *copy)
    assert "cannot write" in refused("check", study, *copy)
    assert "cannot write" in refused("decide", stored / "out" / "evidence.json", stored / "policy.toml", *copy)
    evidence, ladder = stored / "out" / "evidence.json", ("--ladder", tmp_path / "ladder.sqlite")
    assert "cannot write" in refused("verify", study, "--out", tmp_path / "out", *copy)
    assert "cannot write" in refused("verify", study, "--plan-only", *copy)
    assert "cannot write" in refused("compare", evidence, evidence, *copy)
    assert "cannot write" in refused("predict", evidence, *copy)
    assert "cannot write" in refused("sweep", study, "--out", tmp_path / "out", *copy)
    assert "cannot write" in refused("ladder", "promote", evidence, *ladder, *copy)
    for command in (("status",), ("rollback", "--reason", "slow"), ("history",)):
        assert "cannot write" in refused("ladder", *command, *ladder, *copy)


@pytest.mark.parametrize("command", ["run", "verify", "sweep"])
def test_a_copy_in_the_place_of_the_folder_is_refused(
    command: str, tmp_path: Path, stored: Path, refused: Refused
) -> None:
    out = tmp_path / "out"
    assert "it is the folder of --out" in refused(command, stored / "study.toml", "--out", out, "--json", out)


EVIDENCE = {
    "absent": (None, "cannot read"),
    "empty": (lambda text: "", "is not JSON"),
    "cut": (lambda text: text[: len(text) // 2], "is not JSON"),
    "a list": (lambda text: "[]", "is not evidence of schema version 1"),
    "too deep": (lambda text: "[" * 10**5, "is not JSON"),
    "another schema": (lambda text: text.replace('"schema_version": 1', '"schema_version": 2', 1), "'schema_version' = 2"),
    "an unknown key": (lambda text: text.replace("{", '{"colour": 1,', 1), "'colour' is not a known key"),
    "not a number": (lambda text: re.sub(r'"estimate": [0-9.]+', '"estimate": NaN', text, count=1), "it holds NaN"),
    "infinite": (lambda text: re.sub(r'"estimate": [0-9.]+', '"estimate": -Infinity', text, count=1), "it holds -Infinity"),
    "infinite once it is read": (lambda text: re.sub(r'"estimate": [0-9.]+', '"estimate": 1e999', text, count=1), "it holds 1e999"),
    "an unknown verdict": (lambda text: text.replace('"verdict": "ADOPT"', '"verdict": "MAYBE"'), "'decision.verdict' = 'MAYBE'"),
}  # fmt: skip


@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence_that_cannot_be_used(name: str, tmp_path: Path, stored: Path, refused: Refused) -> None:
    change, said = EVIDENCE[name]
    evidence = tmp_path / "evidence.json"
    if change:
        evidence.write_text(change((stored / "out" / "evidence.json").read_text()))
    assert said in refused("decide", evidence, stored / "policy.toml")
    assert said in refused("report", evidence)
    assert said in refused("report", evidence, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(None, "cannot read policy", id="absent"),
        pytest.param(b"min = [", "is not TOML", id="not-toml"),
        pytest.param("# caf\u00e9".encode("latin-1"), "it is not UTF-8", id="latin-1"),
        pytest.param(b"policy = 3", "policy", id="no-table"),
        pytest.param(b"min_speedup = nan", "min_speedup", id="nan"),
        pytest.param(b"[engine]\nkind = 'hf'", "'engine' is not a known key", id="a-study"),
        pytest.param(b"min_speedup = 2\n[policy]", "min_speedup would be ignored beside [policy]", id="twice"),
        pytest.param(b"confidence = 0.9", "confidence is 0.9, and the intervals of", id="other-intervals"),
    ],
)
def test_a_policy_that_cannot_be_used(
    text: bytes | None, said: str, tmp_path: Path, stored: Path, refused: Refused
) -> None:
    policy = tmp_path / "policy.toml"
    if text is not None:
        policy.write_bytes(text)
    assert said in refused("decide", stored / "out" / "evidence.json", policy)


@pytest.mark.parametrize("kind", ["cut", "folder"])
@pytest.mark.parametrize("name", ["lock.json", "evidence.json"])
def test_a_study_whose_files_are_spoilt_is_not_gone_on_with(
    name: str, kind: str, tmp_path: Path, stored: Path, refused: Refused
) -> None:
    shutil.copytree(stored / "out", tmp_path / "out")
    path = tmp_path / "out" / name
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(half)
    assert name in refused("run", stored / "study.toml", "--out", tmp_path / "out", "--resume")


def test_requests_that_are_a_folder(tmp_path: Path, stored: Path, refused: Refused) -> None:
    shutil.copytree(stored / "out", tmp_path / "out")
    (tmp_path / "out" / "requests.jsonl").unlink()
    (tmp_path / "out" / "requests.jsonl").mkdir()
    assert "requests.jsonl is not JSON lines" in refused("report", tmp_path / "out" / "evidence.json")
    assert "requests.jsonl: Is a directory" in refused(
        "run", stored / "study.toml", "--out", tmp_path / "out", "--resume"
    )
