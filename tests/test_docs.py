"""What the documents say of the code is what the code says."""

import re
import runpy
import shlex
from pathlib import Path

import typer.main
import yaml

from draftproof.cli.main import app
from draftproof.engines.http.dialects import DIALECTS
from draftproof.evidence import EXIT_CODES, OUTCOME_CODES
from draftproof.study.reproduction import RERUN_CODES

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


def test_the_exit_codes_on_the_page_for_ci_are_those_of_the_commands() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    codes = [int(code) for code in rows[0][1:]]
    for row, expected in zip(rows[2:5], (EXIT_CODES, OUTCOME_CODES, RERUN_CODES), strict=True):
        assert {name: code for name, code in zip(row[1:], codes, strict=True) if name} == expected


def test_the_jobs_on_the_page_for_ci_are_yaml_and_call_what_there_is() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    jobs = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    steps = [step for job in jobs for step in _steps(yaml.safe_load(job))]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    called = []
    for line in (part for step in steps for part in step.get("run", "").split("&&") if "draftproof " in part):
        program, name, *rest = shlex.split(line)
        if program == "draftproof":
            called.append(name)
            known = {option for parameter in commands[name].params for option in parameter.opts}
            assert [word for word in rest if word.startswith("--") and word not in known] == []
    assert called == ["run", "decide", "report", "rerun"]


def _steps(job: dict[str, dict[str, dict[str, list[dict[str, str]]]]] | list[dict[str, str]]) -> list[dict[str, str]]:
    return job if isinstance(job, list) else job["jobs"]["study"]["steps"]
