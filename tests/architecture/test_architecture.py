"""The package is laid out as docs/architecture.md says, and importing it is cheap."""

import re
import subprocess
import sys
from pathlib import Path

import draftproof

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "draftproof"


def entries_of(document: str) -> set[Path]:
    """What the fenced tree with a line ``src/draftproof/`` names: each line's first word, below the folder it is indented under."""
    blocks: list[str] = re.findall(r"^```[^\n]*\n(.*?)^```", document, flags=re.MULTILINE | re.DOTALL)
    trees = [block for block in blocks if re.search(r"^src/draftproof/", block, flags=re.MULTILINE)]
    assert len(trees) == 1, "docs/architecture.md needs one fenced tree with a line that begins with src/draftproof/"
    found: set[Path] = set()
    above: list[tuple[int, Path]] = []
    for line in trees[0].splitlines():
        word = line.split()[0]
        depth = len(line) - len(line.lstrip())
        above = [parent for parent in above if parent[0] < depth]
        path = (above[-1][1] if above else Path()) / word
        found.add(path)
        if word.endswith("/"):
            above.append((depth, path))
    return found


def test_the_tree_is_read_with_its_indentation() -> None:
    tree = "```\nsrc/draftproof/\n  errors.py and/ or\n  decoding/   tokens\n    proposers/  base\n      base.py\n  gate/\n```\n"
    assert {path.as_posix() for path in entries_of(tree)} == {
        "src/draftproof",
        "src/draftproof/errors.py",
        "src/draftproof/decoding",
        "src/draftproof/decoding/proposers",
        "src/draftproof/decoding/proposers/base.py",
        "src/draftproof/gate",
    }


def test_the_tree_names_what_there_is() -> None:
    documented = entries_of((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    real = {path for path in PACKAGE.rglob("*") if not {"__pycache__", "__init__.py", "py.typed"} & set(path.parts)}
    there = {path.relative_to(ROOT) for path in [PACKAGE, *real]}
    assert sorted(there - documented) == [], "add these to the tree in docs/architecture.md"
    assert sorted(documented - there) == [], "these are in the tree of docs/architecture.md, and do not exist"


def test_the_public_names_are_sorted_and_importable() -> None:
    assert draftproof.__all__ == sorted(draftproof.__all__)
    for name in draftproof.__all__:
        assert getattr(draftproof, name) is not None


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import draftproof, sys; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
