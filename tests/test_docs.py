"""What the documents say of the code is what the code says."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_reference_of_the_study_file_is_what_the_plan_reads() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "study_reference.py"))
    assert (ROOT / "docs" / "study.md").read_text(encoding="utf-8") == script["render"](), (
        "run: python scripts/study_reference.py"
    )
