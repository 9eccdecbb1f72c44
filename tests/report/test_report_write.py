"""All files are written whole into the study's folder."""

from pathlib import Path

import pytest
from report_evidence import full, make_requests, partial

from draftproof.errors import OutputError
from draftproof.report.write import write_reports


def test_every_report_is_written(tmp_path: Path) -> None:
    page = write_reports(full(), tmp_path, make_requests())
    assert page == tmp_path / "report.html"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["junit.xml", "report.html", "summary.md"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_second_report_replaces_the_first(tmp_path: Path) -> None:
    write_reports(full(), tmp_path, None)
    assert "INCONCLUSIVE: stopped" in write_reports(partial(), tmp_path, None).read_text(encoding="utf-8")


def test_a_missing_folder_is_made_and_an_impossible_one_is_one_error(tmp_path: Path) -> None:
    assert write_reports(full(), tmp_path / "new" / "folder", None).exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_reports(full(), tmp_path / "file", None)
