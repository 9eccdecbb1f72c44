"""One study, several loads: a verdict for each category at each concurrency, and arrival by itself."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from draftproof.errors import PlanError
from draftproof.report.html import render_html
from draftproof.report.junit import render_junit
from draftproof.report.markdown import render_markdown
from draftproof.report.terminal import print_report
from draftproof.study.plan import parse_plan
from draftproof.study.run import run_study
from support.scripted import COLOURS, SCRIPT, WITHOUT_SAMPLED, Silent, make_plan, study_values

# a pass costs 4 ms for each of its positions: with three drafted tokens little at one request, much at eight
BUSY = {**SCRIPT, "plain_ms": 40.0, "block_ms": 44.0, "position_ms": 4.0}


def mixed_prompts(folder: Path) -> Path:
    """Eight prompts that repeat themselves, so that lookup finds something, and eight that never do."""
    path = folder / "mixed.jsonl"
    lines = []
    for number in range(8):
        turn = number % len(COLOURS)
        text = " ".join([*COLOURS[turn:], *COLOURS[:turn]] * 2 + [f"end{number}"] * 2 + [COLOURS[turn]])
        lines.append({"id": f"c{number}", "category": "copying", "prompt": text})
        text = " ".join(f"word{number}{place}" for place in range(12))
        lines.append({"id": f"p{number}", "category": "prose", "prompt": text})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_yes_for_copying_at_one_and_no_for_prose_at_eight_from_one_study(tmp_path: Path) -> None:
    """B98: speculation that wins alone and loses in a batch, by category, and shown so."""
    values = study_values(
        tmp_path, script=BUSY, speculation={"num_speculative_tokens": 3},
        workload={"prompts": str(mixed_prompts(tmp_path)), "concurrency": [1, 8], "max_tokens": 12}, **WITHOUT_SAMPLED,
    )  # fmt: skip
    evidence, records = run_study(parse_plan(values, "test"), tmp_path / "out", resume=False, progress=Silent())
    cells = evidence.decision.by_cell
    assert set(cells) == {"copying", "prose"} and all(set(row) == {"1", "8"} for row in cells.values())
    assert (cells["copying"]["1"], cells["prose"]["8"]) == ("ADOPT", "KEEP_TARGET_ONLY"), evidence.comparison
    text = io.StringIO()
    print_report(evidence, Console(file=text, width=120))
    said = text.getvalue()
    table = said[said.index("By category and concurrency") :]
    copying, prose = (next(line for line in table.splitlines() if name in line) for name in ("copying", "prose"))
    assert copying.index("ADOPT") < len(copying) / 2 and "1 at a time" in table
    assert prose.index("KEEP_TARGET_ONLY") > 0 and prose.rstrip(" │|").endswith("KEEP_TARGET_ONLY")
    page = render_html(evidence, records)
    assert "Category by concurrency" in page and "Both arms at each load" in page
    head = page[page.index("<header>") : page.index("</header>")]
    for shown in (head, said[: said.index("Reasons")].replace("\n", " "), render_markdown(evidence)):
        assert "Not the same everywhere" in shown
    cases = render_junit(evidence)
    assert 'name="copying at 1"' in cases and "KEEP_TARGET_ONLY: speed-up" in cases


def test_requests_that_arrive_by_themselves_are_a_study_too(tmp_path: Path) -> None:
    tables = {
        "workload": {"concurrency": [2], "arrival": {"rate_per_s": 4.0, "seed": 7, "requests_per_block": 3}},
        "measure": {"goodput": {"ttft_ms": 1000.0, "latency_ms": 400.0}},
        **WITHOUT_SAMPLED,
    }
    progress = Silent()
    plan = make_plan(tmp_path, count=12, **tables)
    evidence, records = run_study(plan, tmp_path / "out", resume=False, progress=progress)
    assert progress.stages[1] == "A/B/A, 4 a second, 2 at a time, repeat 1"
    assert evidence.comparison is not None and evidence.comparison.load == "open" and evidence.arms is not None
    assert evidence.comparison.overall.method == "student_t over blocks of arrivals"
    assert {record["group"] for record in records} == {0, 1, 2, 3}
    latency = evidence.arms.target_only.latency
    assert (latency.n, latency.prompts, latency.p50.estimate) == (24, 4, None)
    assert any("24 requests of the target-only arm (4 blocks of arrivals)" in line for line in evidence.limits)
    target, speculative = evidence.arms.target_only, evidence.arms.speculative
    assert (
        speculative is not None and target.throughput.goodput is not None and speculative.throughput.goodput is not None
    )
    # less waiting: more requests in time
    assert (target.throughput.goodput.share or 0) < (speculative.throughput.goodput.share or 0) <= 1
    assert any("Requests arrived at 4 a second on average (Poisson, seed 7)" in line for line in evidence.limits)
    again, _ = run_study(plan, tmp_path / "again", resume=False, progress=Silent())
    # what else the host did is its own
    quiet = {"noise": None}
    assert again.comparison is not None
    assert again.comparison.model_copy(update=quiet) == evidence.comparison.model_copy(update=quiet)


def test_an_engine_that_runs_one_call_at_a_time_refuses_arrival(tmp_path: Path) -> None:
    values = {
        "name": "x", "engine": {"kind": "hf"}, "workload": {"arrival": {"rate_per_s": 1.0}},
        "policy": {"min_claim": "up_to_ties"},
    }  # fmt: skip
    with pytest.raises(PlanError, match=r"remove workload\.arrival"):
        parse_plan(values, "test")


@pytest.mark.parametrize("table", [{}, {"rate_per_s": 0}, {"rate_per_s": 1, "requests_per_block": 1}, {"rate": 1}])
def test_an_arrival_that_is_none_is_refused(tmp_path: Path, table: dict[str, float]) -> None:
    with pytest.raises(PlanError, match=r"workload\.arrival\.\w+"):
        make_plan(tmp_path, workload={"arrival": table})
