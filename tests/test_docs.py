"""What the documents say of the code is what the code says."""

import runpy
from pathlib import Path

from draftproof.engines.http.dialects import DIALECTS

ROOT = Path(__file__).parent.parent


def test_the_reference_of_the_study_file_is_what_the_plan_reads() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "study_reference.py"))
    assert (ROOT / "docs" / "study.md").read_text(encoding="utf-8") == script["render"](), (
        "run: python scripts/study_reference.py"
    )


def test_the_table_of_servers_names_what_each_is_asked_and_counts() -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    for row in DIALECTS.values():
        names = [row.name, row.path, *row.counters.values(), *(row.switch_off or {})]
        assert [name for name in [*names, row.facts or row.name] if f"`{name}`" not in page] == []
