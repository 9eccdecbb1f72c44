"""The package is laid out as docs/architecture.md says, and importing it is cheap."""

import re
import subprocess
import sys
from pathlib import Path

import draftproof

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "draftproof"


def folders_of(document: str) -> set[Path]:
    """Folders named in the fenced tree with a line ``src/draftproof/``: a line's first word, if it ends in a slash."""
    blocks: list[str] = re.findall(r"^```[^\n]*\n(.*?)^```", document, flags=re.MULTILINE | re.DOTALL)
    trees = [block for block in blocks if re.search(r"^[│├└─ ]*src/draftproof/", block, flags=re.MULTILINE)]
    assert len(trees) == 1, "docs/architecture.md needs one fenced tree with a line that begins with src/draftproof/"
    found: set[Path] = set()
    above: list[tuple[int, Path]] = []
    for line in trees[0].splitlines():
        entry = re.match(r"(?P<indent>[│├└─\s]*)(?P<word>\S+)", line)
        if entry is None or not entry["word"].endswith("/"):
            continue
        depth = len(entry["indent"])
        above = [parent for parent in above if parent[0] < depth]
        path = (above[-1][1] if above else Path()) / entry["word"]
        above.append((depth, path))
        found.add(path)
    return found


def documented() -> set[Path]:
    return folders_of((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def test_the_tree_is_read_with_its_indentation() -> None:
    tree = (
        "```\nsrc/draftproof/\n  errors.py and/ or\n  decoding/   tokens\n    proposers/  base\n  gate/\ntests/\n```\n"
    )
    names = {path.as_posix() for path in folders_of(tree)}
    assert names == {
        "src/draftproof",
        "src/draftproof/decoding",
        "src/draftproof/decoding/proposers",
        "src/draftproof/gate",
        "tests",
    }


def test_every_documented_folder_exists() -> None:
    assert [path.as_posix() for path in sorted(documented()) if not (ROOT / path).is_dir()] == []


def test_every_package_folder_is_documented() -> None:
    packages = {path.parent.relative_to(ROOT) for path in PACKAGE.rglob("__init__.py")}
    assert [path.as_posix() for path in sorted(packages - documented())] == []


def test_the_public_names_are_sorted_and_importable() -> None:
    assert draftproof.__all__ == sorted(draftproof.__all__)
    for name in draftproof.__all__:
        assert getattr(draftproof, name) is not None


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import draftproof, sys; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
