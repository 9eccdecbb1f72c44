"""The SHA-256 of a model's files, where they can be reached. Loads no model, downloads nothing."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja", ".tiktoken")


def hash_models(names: Iterable[str]) -> dict[str, str]:
    """
    Return the SHA-256 of each model's files in hexadecimal, by the model's name.

    Parameters
    ----------
    names : iterable of str
        Folders, .gguf files, or names on the hub; what is not on this machine, or cannot be read, is left out.
    """
    found = {name: _hash(name) for name in names}
    return {name: digest for name, digest in found.items() if digest is not None}


def _hash(name: str) -> str | None:
    try:
        path = Path(name).expanduser()
        if path.is_file():
            return _digest(path)
        folder = path if path.is_dir() else _from_hub(name)
        if folder is None:
            return None
        files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
        lines = "".join(f"{file.name} {_digest(file)}\n" for file in files)
    except (OSError, RuntimeError):
        return None
    return hashlib.sha256(lines.encode()).hexdigest() if files else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from_hub(name: str) -> Path | None:
    """Return the folder of a model that was downloaded before."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
