"""Puts the reports of a study into its folder. Renders nothing itself."""

from pathlib import Path
from typing import Any

from draftproof.environment import write_probe
from draftproof.evidence import Evidence, Verification, write_whole
from draftproof.report.html import render_html, render_verification
from draftproof.report.junit import render_junit
from draftproof.report.markdown import render_markdown, render_verification_markdown


def write_reports(evidence: Evidence, out: Path, requests: list[dict[str, Any]] | None) -> Path:
    """
    Write ``report.html``, ``junit.xml`` and ``summary.md`` into ``out``.

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
    write_whole(out / "summary.md", render_markdown(evidence))
    return html


def write_verification(verification: Verification, out: Path) -> Path:
    """Write ``report.html`` and ``summary.md`` of a verification as `write_reports` does, and return the page's path."""
    html = out / "report.html"
    write_whole(html, render_verification(verification))
    write_whole(out / "summary.md", render_verification_markdown(verification))
    return html
