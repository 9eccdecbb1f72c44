"""Which files a model has on this machine now, as hashes. Loads no model, downloads and converts nothing."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from draftproof.engines.digest import describe_files, sha256


def hash_models(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """
    Return the SHA-256 of each model's files by the model's name, in parts as `engines.digest.describe_files` gives them.

    Parameters
    ----------
    names : iterable of str
        As a study names its models. A .gguf file has the one part ``file``; what is not on this machine, or cannot be read,
        is left out, and so is the demo model, whose file the version of draftproof fixes.
    """
    found = {name: _hash(name) for name in names}
    return {name: parts for name, parts in found.items() if parts}


def _hash(name: str) -> dict[str, Any]:
    try:
        path = Path(name).expanduser()
        if path.is_file():
            return {"file": sha256(path)}
        folder = path if path.is_dir() else _from_hub(name)
        return {} if folder is None else describe_files(folder)
    except (OSError, RuntimeError, json.JSONDecodeError):
        return {}


def _from_hub(name: str) -> Path | None:
    """Return the folder of a model that was downloaded before."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
