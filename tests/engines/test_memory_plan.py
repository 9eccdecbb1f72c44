"""What is planned before loading is what the loaded engine holds, and a plan that does not fit loads nothing."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, LlamaConfig, MambaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from draftproof import Engine
from draftproof.engines import available, convert, memory_plan
from draftproof.engines.available import Available, available_memory
from draftproof.engines.load import load_empty
from draftproof.engines.memory_plan import MemoryPlan, plan_memory
from draftproof.engines.resolve import resolve
from draftproof.errors import InputError, ModelError
from draftproof.proposers import DraftModel
from support.toy_engines import numbered_words

pytestmark = pytest.mark.usefixtures("short_self_test")

# sizes that no layout's blocks divide
VOCAB = 70
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 40,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
LLAMA = LlamaConfig(**SIZES, num_key_value_heads=2)
FAMILIES = {
    "llama": LLAMA,
    "llama, tied": LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True, attention_bias=True),
    "gemma 3, mixed windows": Gemma3TextConfig(
        **SIZES,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=8,
        sliding_window_pattern=2,
        query_pre_attn_scalar=16,
    ),
    "gpt-2": GPT2Config(vocab_size=VOCAB, n_embd=40, n_layer=3, n_head=4, n_positions=48),
}
OPTIONS = {"num_speculative_tokens": 3, "max_batch": 2, "max_len": 60}
GIB = 2**30


def silent(_: str) -> None:
    return None


def save(config, folder: Path) -> str:
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    numbered_words(VOCAB).save_pretrained(folder)
    return str(folder)


def planned(target: str, *drafts: str, dtype: str = "bfloat16") -> MemoryPlan:
    empty = [load_empty(name, dtype=dtype, progress=silent) for name in (target, *drafts)]
    return plan_memory(empty[0], [(draft, 1) for draft in empty[1:]], device="cpu", **OPTIONS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_plan_is_what_the_loaded_engine_holds(tmp_path: Path, family: str, dtype: str) -> None:
    name = save(FAMILIES[family], tmp_path)
    engine = Engine.from_pretrained(name, dtype=dtype, **OPTIONS)
    assert planned(name, dtype=dtype).parts == engine.memory()
    assert engine.memory()["draft_weights"] is None


def test_a_draft_has_its_own_weights_and_cache_in_the_plan(tmp_path: Path) -> None:
    target, draft = save(LLAMA, tmp_path / "target"), save(FAMILIES["gpt-2"], tmp_path / "draft")
    engine = Engine.from_pretrained(target, proposer=DraftModel(draft), **OPTIONS)
    assert planned(target, draft).parts == engine.memory()
    assert all(engine.memory().values())


def test_the_plan_grows_with_the_batch_and_the_length() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LLAMA).eval()

    def cache(max_batch: int, max_len: int) -> int | None:
        options = {"num_speculative_tokens": 3, "max_batch": max_batch, "max_len": max_len}
        return plan_memory(model, [], device="cpu", **options).parts["target_cache"]

    # keys and values: layers x slots x key heads x (columns + 4 of a block for padding) x head size x 4 bytes
    assert cache(5, 300) == 2 * 3 * 5 * 2 * (300 + 4) * 10 * 4
    assert cache(5, 10**9) == cache(5, 2048)


def test_a_layer_that_reads_values_stops_the_pass_and_not_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LLAMA).eval()
    whole = plan_memory(model, [], device="cpu", **OPTIONS).parts
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, hidden: hidden * hidden.sum().item())
    assert plan_memory(model, [], device="cpu", **OPTIONS).parts == whole


def test_what_does_not_fit_is_refused_before_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = save(LLAMA, tmp_path)
    monkeypatch.setattr(memory_plan, "available_memory", lambda device: Available(1000, "left"))
    monkeypatch.setattr("draftproof.engines.native.load_model", lambda *given, **options: pytest.fail("it was loaded"))
    with pytest.raises(ModelError, match=r"target weights .* target cache .* lower max_batch or max_len") as refusal:
        Engine.from_pretrained(name, **OPTIONS)
    assert "\n" not in str(refusal.value) and name in str(refusal.value)
    with pytest.raises(InputError, match="max_batch = 0"):
        Engine.from_pretrained(name, max_batch=0)


def test_a_model_that_cannot_be_rolled_back_is_refused_without_its_weights(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, architectures=["MambaForCausalLM"])
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(ModelError, match="rolled back by length"):
        planned(str(tmp_path))


def test_a_plan_fits_up_to_the_last_byte() -> None:
    parts = {"target_weights": 70, "target_cache": 20, "draft_weights": None, "draft_cache": None}
    exact = MemoryPlan(parts=parts, working=10, available=Available(100, "left"))
    assert exact.total == 100 and exact.fits
    assert not MemoryPlan(parts=parts, working=11, available=Available(100, "left")).fits


def test_a_conversion_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_tensor("token_embd.weight", torch.zeros(2**10, 2**10).numpy())
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(convert, "available_memory", lambda device: Available(2**22, "left"))
    with pytest.raises(ModelError, match=r"needs 8 MiB to be converted, and 4 MiB are left"):
        resolve(str(tmp_path / "tiny.gguf"), silent)


def group(folder: Path, names: tuple[str, str, str], limit: str, used: int, reclaimable: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {reclaimable}\n")


@pytest.mark.parametrize(
    ("names", "line", "top"),
    [
        pytest.param(available.VERSION_2, "0::/a/b", ".", id="version-2"),
        pytest.param(available.VERSION_1, "4:memory:/a/b", "memory", id="version-1"),
    ],
)
def test_a_container_leaves_the_least_of_its_groups_limits(tmp_path: Path, names, line: str, top: str) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text(f"3:cpu:/a/b\n{line}\n")
    group(root / top / "a" / "b", names, str(9 * GIB), 2 * GIB, GIB)
    group(root / top / "a", names, str(5 * GIB), 4 * GIB, 0)
    group(root / top, names, "max", 4 * GIB, 0)
    assert list(available._container_rooms(root, own)) == [8 * GIB, GIB]
    assert list(available._container_rooms(root, tmp_path / "nothing")) == []


def test_the_container_counts_where_it_leaves_less_than_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "_container_rooms", lambda: iter([7 * 2**10, 2**60]))
    assert available_memory("cpu") == Available(7 * 2**10, "left under the container's limit")
    monkeypatch.setattr(available, "_container_rooms", lambda: iter([]))
    assert available_memory("cpu").whose == "available on this machine"


def test_a_device_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"device 'nowhere' cannot be used: .* try 'cpu'"):
        available_memory("nowhere")
