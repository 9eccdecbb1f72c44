"""Which files a model was loaded from: hashes of its weights, its configuration and its tokenizer."""

import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json"),
    *("special_tokens_map.json", "chat_template.jinja", "chat_template.json"),
)
# written by the library that saved the model, and no part of it
SAVED_BY = ("transformers_version", "_name_or_path", "dtype", "torch_dtype")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal; a file that has not changed is read once per process."""
    found = path.stat()
    return _digest(path, found.st_size, found.st_mtime_ns)


def describe_files(folder: Path) -> dict[str, Any]:
    """
    Return what identifies a model in a folder.

    Returns
    -------
    dict
        ``weights``: SHA-256 over the names and SHA-256 of the safetensors files; ``config``: over the canonical JSON of
        config.json without what only tells who saved it; ``tokenizer``: as ``weights``, over the tokenizer's files. None where
        there is no such file. ``files``: the names of the files that were hashed.
    """
    weights = sorted(folder.glob("*.safetensors"))
    tokenizer = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    config = folder / "config.json"
    return {
        "weights": _of_all(weights),
        "config": _of_values(config) if config.is_file() else None,
        "tokenizer": _of_all(tokenizer),
        "files": [path.name for path in (*weights, *([config] if config.is_file() else []), *tokenizer)],
    }


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value in canonical form."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@functools.lru_cache(maxsize=64)
def _digest(path: Path, size: int, changed_ns: int) -> str:
    """Hash a file's content; the other arguments tell one state of it from another, since a model is looked at several times."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_all(paths: Iterable[Path]) -> str | None:
    found = {path.name: sha256(path) for path in paths}
    return digest_of(found) if found else None


def _of_values(config: Path) -> str:
    values = json.loads(config.read_text(encoding="utf-8"))
    return digest_of({key: value for key, value in values.items() if key not in SAVED_BY})
