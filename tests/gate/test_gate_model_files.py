"""A model is hashed where its files are, and is left out where they are not."""

import hashlib
from pathlib import Path

import pytest

from draftproof.engines.digest import describe_files
from draftproof.gate.model_files import hash_models


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text('{"layers": 2}', encoding="utf-8")
    return tmp_path


def test_a_folder_is_hashed_as_a_study_does_it(folder: Path) -> None:
    before = hash_models([str(folder)])
    assert before == {str(folder): describe_files(folder)} and before[str(folder)]["weights"] is not None
    (folder / "config.json").write_text('{"layers": 3}', encoding="utf-8")
    after = hash_models([str(folder)])
    assert {part for part in before[str(folder)] if after[str(folder)][part] != before[str(folder)][part]} == {"config"}


def test_a_file_is_hashed_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    assert hash_models([str(file)]) == {str(file): {"file": hashlib.sha256(b"weights").hexdigest()}}


def test_what_cannot_be_reached_is_left_out(folder: Path) -> None:
    (folder / "config.json").write_text("{", encoding="utf-8")
    names = [str(folder), str(folder / "none"), "nobody/has-this", "smollm2-135m-instruct", "a b//c", "~nobody-/x"]
    assert hash_models(names) == {}
