"""A model is known by the content of its files, not by who saved it, and each content is read once."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from draftproof.engines.digest import describe_files, digest_of, sha256


def model(folder: Path, *, weights: bytes = b"one", tokenizer: str = "{}", **config: Any) -> Path:
    folder.mkdir()
    (folder / "model-00001-of-00002.safetensors").write_bytes(weights)
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"rest")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "README.md").write_text(folder.name)
    return folder


def test_the_same_content_has_the_same_hashes_wherever_it_lies(tmp_path: Path) -> None:
    one, two = (describe_files(model(tmp_path / name)) for name in ("one", "two"))
    assert one == two
    assert one["files"] == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "config.json", "tokenizer.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        pytest.param({"weights": b"two"}, "weights", id="weights"),
        pytest.param({"rope_theta": 1e6}, "config", id="config"),
        pytest.param({"tokenizer": '{"a": 1}'}, "tokenizer", id="tokenizer"),
    ],
)
def test_each_part_has_its_own_hash(tmp_path: Path, changes: dict[str, Any], differs: str) -> None:
    one, two = describe_files(model(tmp_path / "one")), describe_files(model(tmp_path / "two", **changes))
    assert [name for name in one if one[name] != two[name]] == [differs]


def test_who_saved_a_model_is_no_part_of_it(tmp_path: Path) -> None:
    one = describe_files(model(tmp_path / "one", transformers_version="1", _name_or_path="here"))
    assert one["config"] == describe_files(model(tmp_path / "two", transformers_version="2"))["config"]


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert describe_files(tmp_path) == {"weights": None, "config": None, "tokenizer": None, "files": []}


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    file_digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: read.append(file.name) or file_digest(file, kind))
    path = tmp_path / "weights"
    for content in (b"one", b"other"):
        path.write_bytes(content)
        assert {sha256(path) for _ in range(3)} == {hashlib.sha256(content).hexdigest()}
    assert read == [str(path)] * 2


def test_the_order_of_keys_changes_no_hash() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1}) != digest_of({"a": 1, "b": [3]})
