"""A .gguf file as a folder of safetensors weights: converted once, kept in the cache, complete or not there at all."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader
from safetensors import SafetensorError
from transformers import AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

from draftproof.engines.available import available_memory
from draftproof.engines.foreign import CAUSAL_LM, one_line, quiet, translated
from draftproof.errors import ModelError, OutputError


def cache_folder(stem: str, sha256: str) -> Path:
    """Return where the conversion of a file with this hash is kept, whether it is there or not."""
    if chosen := os.environ.get("DRAFTPROOF_CACHE"):
        root = Path(chosen).expanduser()
    elif shared := os.environ.get("XDG_CACHE_HOME"):
        root = Path(shared) / "draftproof"
    else:
        root = Path.home() / ".cache" / "draftproof"
    return root / f"{stem}-{sha256[:12]}-transformers-{transformers.__version__}"


def convert(gguf: Path, folder: Path, name: str, progress: Callable[[str], None]) -> Path:
    """Write the model in `gguf` to `folder` in bfloat16; `folder` appears complete or not at all."""
    progress(f"converting {name} once, to {folder} (some tens of seconds)")
    start = time.monotonic()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder.parent) as scratch:
            with quiet():
                _require_room(gguf, name)
                model, tokenizer = _unpack(gguf, name)
                model.save_pretrained(scratch)
                tokenizer.save_pretrained(scratch)
            _publish(Path(scratch), folder)
    except (OSError, SafetensorError) as error:
        raise OutputError(
            f"model cache '{folder.parent}' cannot be written: {one_line(error)}; set DRAFTPROOF_CACHE to a folder "
            "that you may write to"
        ) from None
    progress(f"converted {name} in {time.monotonic() - start:.0f} s")
    return folder


def _require_room(gguf: Path, name: str) -> None:
    """Refuse a conversion that would not fit: two models in float32, by the file's table of tensors."""
    with translated(name):
        num_weights = sum(int(tensor.n_elements) for tensor in GGUFReader(gguf).tensors)
    needed, available = 8 * num_weights, available_memory("cpu")
    if needed > available.num_bytes:
        raise ModelError(
            f"model '{name}' needs {needed >> 20:,} MiB to be converted, and {available.num_bytes >> 20:,} MiB are "
            f"{available.whose}; convert it on a larger machine and give the folder"
        )


def _unpack(gguf: Path, name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model in `gguf` as a plain one: dense bfloat16 weights, and no trace of the packing in its config."""
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": gguf.parent,
        "gguf_file": gguf.name,
        "local_files_only": True,
        "trust_remote_code": False,
    }
    with translated(name):
        dense = CAUSAL_LM.from_pretrained(
            **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(**source)
        fields = {key: value for key, value in dense.config.to_dict().items() if key != "quantization_config"}
        plain = type(dense)(type(dense.config).from_dict(fields)).to(torch.bfloat16)
        plain.load_state_dict(dense.state_dict())
        plain.generation_config = dense.generation_config
    return plain, tokenizer


def _publish(unfinished: Path, folder: Path) -> None:
    """Rename `unfinished` to `folder`, unless another process has done the same first: its folder is as good."""
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
