"""Puts the reports of a study into its folder. Renders nothing itself."""

from pathlib import Path
from typing import Any

from draftproof.environment import write_probe
from draftproof.evidence import Evidence, Verification, write_whole
from draftproof.report.html import render_html, render_verification
from draftproof.report.junit import render_junit


def write_reports(evidence: Evidence, out: Path, requests: list[dict[str, Any]] | None) -> Path:
    """
    Write ``report.html`` and ``junit.xml`` into ``out``.

    Returns
    -------
    Path
        Of the HTML report.

    Raises
    ------
    OutputError
        The folder cannot be written.
    """
    write_probe(out)
    html = out / "report.html"
    write_whole(html, render_html(evidence, requests))
    write_whole(out / "junit.xml", render_junit(evidence))
    return html


def write_verification(verification: Verification, out: Path) -> Path:
    """Write ``report.html`` of a verification into ``out`` and return its path; raises as `write_reports` does."""
    html = out / "report.html"
    write_whole(html, render_verification(verification))
    return html
