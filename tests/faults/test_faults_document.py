"""docs/faults.md names tests that exist, and every fault that a test here names is in it."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
TEXT = (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(\w+/\w+\.py)(?:::(\w+))?`", TEXT)
    assert len(named) > 80
    for path, name in named:
        assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8") or not name, f"{path} has no {name}"


def test_every_fault_that_a_test_names_is_in_the_document() -> None:
    listed = set(re.findall(r"\bB\d+\b", TEXT))
    for path in Path(__file__).parent.glob("test_*.py"):
        missing = set(re.findall(r"\bB\d+\b", path.read_text(encoding="utf-8"))) - listed
        assert not missing, f"{path.name} names {sorted(missing)}"
