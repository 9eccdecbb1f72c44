"""The page holds every value, loads nothing, and cannot be broken by what it quotes."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from report_evidence import HOSTILE, full, halfway, make_requests, partial

from draftproof.evidence import Evidence
from draftproof.report.html import render_html

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects tags, attributes, ids and text; refuses tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_values_of_every_section_appear() -> None:
    text = Page(render_html(full(), make_requests())).text
    for value in (
        "KEEP_TARGET_ONLY",
        "leave speculative decoding off",
        "exploratory",
        "because a study",
        "95% interval 1.400 to 1.600",
        "1.712x",
        "bitwise_same_batch",
        "batched alike",
        "23 of 24",
        "How the differences were judged",
        "ties: 1 in 900 tokens",
        "0.01670",
        "0.4321",
        "after a rejection",
        "accept too much",
        "1.500x (1.400x to 1.600x)",
        "400.0 (397.0 to 403.0)",
        "30.03",
        "1,802",
        "538.0 MiB",
        "61.9 %",
        "76.5 %",
        "2.381 (2.100 to 2.700)",
        "3.063 (2.800 to 3.300)",
        "Not the same everywhere: ADOPT for a study; INCONCLUSIVE for chat.",
        "ab" * 32,
        "2026-11-30T06:00:00Z",
        "policy.min_speedup",
        "cpu.cores",
        "251.5",
        "no limit but a study",
        "What was not measured and may not be claimed",
        "Cost model, 1 at a time",
        "predicted 1.400x (1.300x to 1.500x), measured 1.500x (1.400x to 1.600x); they agree within 10 %",
        "most is lost to draft time",
        "fastest by prediction: k = 4, 1.500x (1.400x to 1.600x), extrapolated",
    ):
        assert value in text, value
    assert "not estimable" in text
    assert "not measured" in text  # peak memory


def test_the_sections_come_in_the_order_of_a_decision() -> None:
    page = render_html(full(), make_requests())
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "Decision matrix",
        "Verdict by category and by concurrency",
        "Is the output the target&#39;s?".replace("&#39;", "'"),
        "Is it faster, and at what cost?",
        "Plots",
        "Prompts",
        "Study plan",
        "Environment",
        "How to reproduce it",
        "Findings of the check before the run",
        "What was not measured and may not be claimed",
    ]


def test_plots_are_svg_that_parses_with_ids_of_their_own() -> None:
    page = render_html(full(), make_requests())
    plots = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(plots) == 8
    for plot in plots:
        ElementTree.fromstring(plot)
    ids = [value for name, value in Page(page).attributes if name == "id"]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("evidence", [full(), full(HOSTILE), partial(), halfway()])
def test_tags_close_and_nothing_is_loaded(evidence: Evidence) -> None:
    rendered = render_html(evidence, make_requests(HOSTILE))
    page = Page(rendered)
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "action", "style"):
            assert "//" not in (value or "")
        assert not name.startswith("on")
    assert "@import" not in rendered
    assert not re.search(r"url\((?!#)", rendered)
    outside = {value for name, value in page.attributes if "://" in (value or "") and not name.startswith("xmlns")}
    assert outside == set()


def test_hostile_text_is_shown_and_not_run() -> None:
    rendered = render_html(full(HOSTILE), make_requests(HOSTILE + "\ud800"))
    assert "<script" not in rendered
    assert "\x1b" not in rendered
    assert "because <script>" in Page(rendered).text
    assert "out of memory <script>" in Page(rendered).text
    rendered.encode("utf-8")


def test_what_was_not_measured_reads_so() -> None:
    text = Page(render_html(partial(), None)).text
    # matrix, two groups, greedy, sampled, controls, effect, arms, acceptance, seven plots, prompts, environment
    assert text.count("not measured") == 18 + 1  # and the heading of the limits
    assert "INCONCLUSIVE" in text


def test_a_study_that_stopped_between_the_arms_shows_the_first() -> None:
    text = Page(render_html(halfway(), make_requests()[:1])).text
    assert "400.0 (397.0 to 403.0)" in text
    for title, following in (("Where the time went", "Acceptance"), ("Throughput and memory", "Where the time went")):
        assert "not measured" in text.split(title)[1].split(following)[0]
    assert "no claim about greedy output" in text


def test_the_same_evidence_gives_the_same_page() -> None:
    assert render_html(full(), make_requests()) == render_html(full(), make_requests())


def test_the_page_says_how_to_reproduce_it() -> None:
    command = ["draftproof", "run", "my study.toml", "--out", "mine"]
    recorded = full().model_copy(update={"environment": {"command": command}})
    text = Page(render_html(recorded, None)).text
    assert "draftproof rerun evidence.json" in text and "draftproof run 'my study.toml' --out mine" in text
    assert "draftproof rerun evidence.json" in Page(render_html(partial(), None)).text


def test_both_colour_schemes_and_paper_are_styled() -> None:
    page = render_html(partial(), None)
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert 'name="viewport"' in page
