"""The Markdown summary holds what decides, and text of the study stays text in it. Parsed by a CommonMark parser."""

from itertools import pairwise

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from report_evidence import HOSTILE, effect, full, halfway, make_greedy, make_sampled, partial

from draftproof.evidence import Equivalence, Evidence, Study, Verification
from draftproof.report import words
from draftproof.report.markdown import render_markdown, render_verification_markdown

MARKED = [
    "| a | b |",
    "**bold** _it_ ~~no~~",
    "`code` $x$",
    "[link](http://x)",
    "<b>&amp;</b>",
    "- item",
    "1. item",
    "---",
]
INVISIBLE = "\u200b"


def parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def inlines(text: str) -> list[str]:
    """The text of every paragraph, item and cell, as a reader sees it."""
    found = []
    for token in parse(text):
        if token.type == "inline":
            assert {child.type for child in token.children or ()} <= {
                "text", "text_special", "strong_open", "strong_close", "code_inline",
            }  # fmt: skip
            found.append("".join(child.content for child in token.children or ()).replace(INVISIBLE, ""))
    return found


def tables(text: str) -> list[list[list[str]]]:
    found: list[list[list[str]]] = []
    tokens = parse(text)
    for before, token in pairwise(tokens):
        if before.type == "table_open":
            found.append([])
        if before.type == "tr_open":
            found[-1].append([])
        if before.type in ("th_open", "td_open"):
            found[-1][-1].append(token.content)
    return found


def verification(name: str = "a study", planted: str | None = None) -> Verification:
    equivalence = Equivalence(
        greedy=make_greedy(), sampled=make_sampled(), controls=[], claim="bitwise", claim_basis="measured"
    )
    return Verification(
        draftproof_version="0.1.0",
        study=Study(name=name, hash="ab" * 32, locked_at="2026-11-30T06:00:00Z", plan={}),
        environment={},
        planted=planted,
        registration="cd" * 32,
        equivalence=equivalence,
        outcome="FAIL" if planted else "PASS",
        reasons=[f"because {name}"],
        limits=[f"no limit but {name}"],
    )


def test_what_decides_is_there_in_the_order_of_a_decision() -> None:
    text = render_markdown(full())
    places = [
        text.index(part)
        for part in (
            "## KEEP_TARGET_ONLY: a study", "leave speculative decoding off",
            "Not the same everywhere: ADOPT for a study", f"> {words.UNREGISTERED}", "- because a study",
            "| criterion |", "| category |", "| requests at a time |", "- claim bitwise_same_batch:", "- greedy INCONCLUSIVE:",
            "<details>", "- no limit but a study", "</details>", "draftproof rerun evidence.json",
        )
    ]  # fmt: skip
    assert places == sorted(places)
    matrix, categories, loads = tables(text)
    assert matrix[1:] == [
        ["speed-up", "at least 1.050x", "1.500x", "95% interval 1.400 to 1.600", "pass"],
        ["memory", "at least 1.050x", "1.712x", "", "**miss**"],
        ["a study", "at least 1.050x", "not measured", "", "**not estimable**"],
    ]
    assert categories[1:] == [
        ["a study", "24", "1.500x (1.100x to 1.900x)", "ADOPT"],
        ["chat", "24", "not estimable", "INCONCLUSIVE"],
    ]
    assert loads[1:] == [["1", "24", "1.500x (1.400x to 1.600x)", "ADOPT"]]


def test_several_loads_are_crossed_with_the_categories() -> None:
    evidence = full()
    assert evidence.comparison is not None
    cells = {"chat": {"1": effect(1.4, 1.6), "8": effect(0.8, 1.0)}}
    decision = evidence.decision.model_copy(
        update={
            "by_concurrency": {"1": "ADOPT", "8": "KEEP_TARGET_ONLY"},
            "by_cell": {"chat": {"1": "ADOPT", "8": "KEEP_TARGET_ONLY"}, "copy": {"1": "ADOPT"}},
        }
    )
    comparison = evidence.comparison.model_copy(update={"by_cell": cells})
    crossed = tables(render_markdown(evidence.model_copy(update={"decision": decision, "comparison": comparison})))[-1]
    assert crossed == [
        ["category", "1 at a time", "8 at a time"],
        ["chat", "ADOPT 1.500x (1.400x to 1.600x)", "KEEP_TARGET_ONLY 0.900x (0.800x to 1.000x)"],
        ["copy", "not measured", "not measured"],
    ]


@pytest.mark.parametrize("text", [*MARKED, HOSTILE, "two\n\n# lines", "a_b _c_", "100 % = 1.05x", "\\|"])
def test_text_of_the_study_stays_text_wherever_it_stands(text: str) -> None:
    rendered = render_markdown(full(text))
    shown = " ".join(words.clean(text).split())
    found = inlines(rendered)
    for part in (f"KEEP_TARGET_ONLY: {shown}", f"because {shown}", f"no limit but {shown}"):
        assert part in found
    assert found.count(shown) == 2  # a criterion and a category, each alone in its cell
    assert all(len(row) == len(table[0]) for table in tables(rendered) for row in table)
    assert [token.content.strip() for token in parse(rendered) if token.type == "html_block"] == [
        "<details><summary>What was not measured and may not be claimed</summary>", "</details>",
    ]  # fmt: skip
    assert [token.tag for token in parse(rendered) if token.type == "heading_open"] == ["h2"]


@pytest.mark.parametrize("text", MARKED)
def test_a_line_that_is_all_markup_begins_no_block(text: str) -> None:
    evidence = full()
    decision = evidence.decision.model_copy(update={"reasons": [text]})
    assert text in inlines(render_markdown(evidence.model_copy(update={"decision": decision})))


def test_nobody_is_mentioned_and_no_issue_is_linked() -> None:
    text = render_markdown(full("@someone #12"))
    assert "@someone" not in text and "#12" not in text and f"@{INVISIBLE}someone #{INVISIBLE}12" in text


@pytest.mark.parametrize("evidence", [partial(), halfway()])
def test_a_study_that_stopped_says_what_it_lacks(evidence: Evidence) -> None:
    text = render_markdown(evidence)
    assert "## INCONCLUSIVE: stopped" in text and "not measured" in text and tables(text) == []


def test_a_verification_has_its_outcome_checks_and_limits() -> None:
    found = inlines(render_verification_markdown(verification("a | b")))
    assert found[0] == "PASS: a | b" and "because a | b" in found and "no limit but a | b" in found
    assert any(line.startswith("sampled PASS: ") for line in found)
    assert not any("on purpose" in line for line in found)


def test_a_planted_defect_is_named() -> None:
    text = render_verification_markdown(verification(planted="always accept"))
    assert "## FAIL" in text and "> 'always accept' was planted in the engine on purpose." in text
