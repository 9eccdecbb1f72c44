"""A model is hashed where its files are, and is left out where they are not."""

import hashlib
from pathlib import Path

import pytest

from draftproof.gate.model_files import hash_models


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("model.safetensors", "config.json", "README.md"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    return tmp_path


def test_the_hash_is_that_of_every_file_that_makes_the_model(folder: Path) -> None:
    before = hash_models([str(folder)])[str(folder)]
    listed = "".join(
        f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("config.json", "model.safetensors")
    )
    assert before == hashlib.sha256(listed.encode()).hexdigest()
    (folder / "README.md").write_text("other words", encoding="utf-8")
    assert hash_models([str(folder)])[str(folder)] == before
    (folder / "config.json").write_text("another model", encoding="utf-8")
    assert hash_models([str(folder)])[str(folder)] != before


def test_a_file_is_hashed_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    assert hash_models([str(file)]) == {str(file): hashlib.sha256(b"weights").hexdigest()}


def test_what_cannot_be_reached_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    names = [
        str(tmp_path / "empty"),
        str(tmp_path / "none"),
        "nobody/has-this",
        "smollm2-135m-instruct",
        "a b//c",
        "~nobody-/x",
    ]
    assert hash_models(names) == {}
