"""A sweep names the arm that is fastest in time, stops those that cannot be, and goes on after a kill."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from draftproof.engines.scripted import ScriptedEngine
from draftproof.errors import InputError, PlanError
from draftproof.study.arms import SweepPlan, arms_of, sweep_plan
from draftproof.study.plan import parse_plan
from draftproof.study.sweep import run_sweep
from draftproof.study.sweep_result import SweepResult, load_sweep
from support.repeating import SCRIPT, write_repeating
from support.scripted import WITHOUT_SAMPLED, Silent, Stopping, json_lines, make_plan

COUNT = 12


def plan_of(folder: Path, k: tuple[int, ...] = (1, 4, 8), batch: tuple[int, ...] = (1,), **script: Any) -> SweepPlan:
    study = make_plan(
        folder,
        script={**SCRIPT, "position_ms": 4.0, "draft_ms": 3.0, **script},
        speculation={"num_speculative_tokens": 5, "prompt_lookup_max": 1},
        workload={"prompts": str(write_repeating(folder, COUNT)), "max_tokens": 24},
        **WITHOUT_SAMPLED,
    )
    return sweep_plan(study, k, (), batch)


def told(result: SweepResult) -> list[Any]:
    """What it says of each arm and batch; the virtual clock of an engine that was started again rounds differently."""
    arms = [
        (arm.prompts, arm.acceptance_rate, arm.dropped, round(arm.speedup.estimate or 0.0, 9)) for arm in result.arms
    ]
    return [*arms, *((best.num_speculative_tokens, best.not_told_apart) for best in result.recommended)]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepPlan, SweepResult, Silent]:
    folder, progress = tmp_path_factory.mktemp("swept"), Silent()
    plan = plan_of(folder, batch=(1, 3))
    return folder / "out", plan, run_sweep(plan, folder / "out", resume=False, progress=progress), progress


def test_the_fastest_arm_is_named_not_the_one_that_accepts_most(
    swept: tuple[Path, SweepPlan, SweepResult, Silent],
) -> None:
    """The clock is without noise, so that the order of the arms is that of their true times on these prompts."""
    result = swept[2]
    for best, batch in zip(result.recommended, (1, 3), strict=True):
        mine = {arm.num_speculative_tokens: arm for arm in result.arms if arm.batch == batch}
        estimates = {k: arm.speedup.estimate or 0.0 for k, arm in mine.items()}
        rates = {k: arm.acceptance_rate or 0.0 for k, arm in mine.items()}
        assert best.num_speculative_tokens == max(estimates, key=lambda k: estimates[k]) == 4
        assert max(rates, key=lambda k: rates[k]) == 1 and best.best_by_acceptance == "prompt-lookup k=1"
        assert best.speedup.low is not None and best.shown_faster == (best.speedup.low > 1.0)


def test_the_lines_for_the_next_study_are_a_study(swept: tuple[Path, SweepPlan, SweepResult, Silent]) -> None:
    import tomllib

    lines = swept[2].recommended[1].study_lines
    assert lines is not None
    read = parse_plan({"name": "next", "engine": {"kind": "scripted"}, **tomllib.loads(lines)}, "test")
    assert read.speculation.num_speculative_tokens == 4 and read.speculation.prompt_lookup_max == 1
    assert read.workload.concurrency == (3,)


def test_every_group_is_paired_on_the_same_prompts_and_interleaved(
    swept: tuple[Path, SweepPlan, SweepResult, Silent],
) -> None:
    out, _, result, progress = swept
    for number, k in enumerate((1, 4, 8)):
        records = json_lines(out / f"{number:02d}-prompt-lookup-k{k}.jsonl")
        counts = Counter((record["prompt_id"], record["concurrency"]) for record in records)
        assert set(counts.values()) == {3}
        for arm in result.arms:
            if arm.num_speculative_tokens == k:
                assert sum(level == arm.batch for _, level in counts) == arm.prompts
    assert progress.steps == progress.totals
    assert progress.totals["sweep, 1 at a time"] == 3 * COUNT
    assert "no verdict" in result.note and result.study.plan["sweep"]["batch"] == [1, 3]


def test_an_arm_with_another_proposer_leaves_out_what_only_the_studys_own_reads() -> None:
    looked_up = {"num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
    study = parse_plan({"name": "any", "speculation": looked_up}, "test")
    first, second = arms_of(sweep_plan(study, (2,), ("prompt-lookup", "early-exit:4"), (1,)))
    assert (first.plan.speculation.prompt_lookup_min, first.plan.speculation.prompt_lookup_max) == (2, 3)
    assert (second.plan.speculation.prompt_lookup_min, second.plan.speculation.prompt_lookup_max) == (1, 4)
    assert "prompt_lookup" not in second.lines(1) and second.plan.speculation.exit_layer == 4


def test_the_arms_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    generate = ScriptedEngine.generate

    def recorded(self: ScriptedEngine, *rest: Any, **options: Any) -> Any:
        order.append(self.num_speculative_tokens)
        return generate(self, *rest, **options)

    monkeypatch.setattr(ScriptedEngine, "generate", recorded)
    plan = plan_of(tmp_path, (1, 4))
    run_sweep(plan, tmp_path / "out", resume=False, progress=Silent())
    assert order[4:16] == [1, 1, 1, 4, 4, 4] * 2


def test_a_hopeless_arm_is_stopped_at_the_first_look_and_says_why(tmp_path: Path) -> None:
    """Where a drafted token costs three steps, k = 8 is far below 1 after 4 prompts."""
    progress = Silent()
    result = run_sweep(plan_of(tmp_path, (1, 8), draft_ms=120.0), tmp_path / "out", resume=False, progress=progress)
    slow = result.arms[1]
    assert slow.prompts < COUNT and slow.dropped is not None and "slower than target-only" in slow.dropped
    assert any(line.startswith("dropped prompt-lookup k=8, 1 at a time, after ") for line in progress.said)
    assert progress.steps == progress.totals
    best = result.recommended[0]
    assert (best.proposer, best.study_lines, best.shown_faster) == (None, None, False)


def test_an_arm_that_fails_is_dropped_with_its_error(tmp_path: Path) -> None:
    result = run_sweep(plan_of(tmp_path, (1,), defect="not-finite"), tmp_path / "out", resume=False, progress=Silent())
    assert result.arms[0].dropped is not None and "not finite" in result.arms[0].dropped
    assert result.recommended[0].proposer is None


@pytest.mark.parametrize(
    ("stage", "after"),
    [
        pytest.param("warm-up", 1, id="warm-up"),
        pytest.param("sweep, 1", 8, id="inside-a-look"),
        pytest.param("sweep, 3", 9, id="second-batch"),
    ],
)
def test_a_sweep_that_was_stopped_ends_as_one_that_was_not(
    tmp_path: Path, swept: tuple[Path, SweepPlan, SweepResult, Silent], stage: str, after: int
) -> None:
    out, (_, plan, whole, _) = tmp_path / "out", swept
    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, out, resume=False, progress=Stopping(stage, after))
    before = {path.name: path.read_bytes() for path in out.glob("*.jsonl")}
    assert not (out / "sweep.json").exists()
    result = run_sweep(plan, out, resume=True, progress=Silent())
    assert told(result) == told(whole)
    for name, content in before.items():
        # what was stored is kept as it was, and nothing is there twice
        assert (out / name).read_bytes().startswith(content)
        counts = Counter((r["prompt_id"], r["block"], r["concurrency"]) for r in json_lines(out / name))
        assert set(counts.values()) == {1}


def test_a_line_that_a_kill_has_cut_is_measured_again(
    tmp_path: Path, swept: tuple[Path, SweepPlan, SweepResult, Silent]
) -> None:
    out, (source, plan, whole, _) = tmp_path / "out", swept
    out.mkdir()
    for path in source.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    (out / "sweep.json").unlink()
    cut = out / "01-prompt-lookup-k4.jsonl"
    cut.write_bytes(cut.read_bytes()[:-40])
    assert told(run_sweep(plan, out, resume=True, progress=Silent())) == told(whole)


def test_a_finished_sweep_is_shown_and_another_one_refused(
    tmp_path: Path, swept: tuple[Path, SweepPlan, SweepResult, Silent]
) -> None:
    out, plan, result, _ = swept
    assert run_sweep(plan, out, resume=True, progress=Silent()) == result == load_sweep(out / "sweep.json")
    with pytest.raises(InputError, match="--resume"):
        run_sweep(plan, out, resume=False, progress=Silent())
    other = plan.model_copy(update={"sweep": plan.sweep.model_copy(update={"num_speculative_tokens": (1,)})})
    with pytest.raises(PlanError, match="another plan"):
        run_sweep(other, out, resume=True, progress=Silent())
    (tmp_path / "sweep.json").write_text(json.dumps({"arms": []}), encoding="utf-8")
    with pytest.raises(InputError, match="not a sweep of this version"):
        load_sweep(tmp_path / "sweep.json")


# --- the arms ---------------------------------------------------------------------------------------------------------

NATIVE = {"name": "n", "speculation": {"proposer": "draft-model", "draft": "d", "confidence_threshold": 0.3}}


def test_proposers_are_named_as_a_study_names_them() -> None:
    names = ("prompt-lookup", "early-exit:10", "draft-model", "draft-model:a/b:c", "cross-tokenizer:x")
    arms = arms_of(sweep_plan(parse_plan(NATIVE, "n"), (2, 4), names, (1,)))
    assert [arm.name for arm in arms[:3]] == ["prompt-lookup k=2", "prompt-lookup k=4", "early-exit:10 k=2"]
    tables = [arm.plan.speculation for arm in arms[::2]]
    assert [(t.proposer, t.draft, t.exit_layer, t.confidence_threshold) for t in tables] == [
        ("prompt-lookup", None, None, 0.0),
        ("early-exit", None, 10, 0.3),
        ("draft-model", "d", None, 0.3),
        ("draft-model", "a/b:c", None, 0.3),
        ("cross-tokenizer", "x", None, 0.3),
    ]


def test_without_proposers_the_studys_own_is_swept() -> None:
    assert sweep_plan(parse_plan(NATIVE, "n"), (2,), (), (1,)).sweep.proposers == ("draft-model:d",)
    own = {"name": "n", "speculation": {"proposer": "early-exit", "exit_layer": 3}}
    assert sweep_plan(parse_plan(own, "n"), (2,), (), (1,)).sweep.proposers == ("early-exit:3",)


@pytest.mark.parametrize(
    ("k", "proposers", "batch", "said"),
    [
        ((0,), (), (1,), "num_speculative_tokens"),
        ((16,), (), (1,), "num_speculative_tokens"),
        ((2, 2), (), (1,), "one is named twice"),
        ((), (), (1,), "at least 1 item"),
        ((2,), (), (0,), "concurrency"),
        ((2,), ("colour",), (1,), "'speculation.proposer' = 'colour'"),
        ((2,), ("early-exit",), (1,), "'exit_layer' goes with proposer 'early-exit'"),
        ((2,), ("early-exit:x",), (1,), "exit_layer"),
        ((2,), ("prompt-lookup:3",), (1,), "nothing goes behind the colon"),
    ],
)
def test_what_cannot_be_swept_is_one_line(k: Any, proposers: Any, batch: Any, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        sweep_plan(parse_plan(NATIVE, "n"), k, proposers, batch)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_proposer_that_the_engine_does_not_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="'early-exit' does not run on engine 'scripted'"):
        sweep_plan(make_plan(tmp_path), (2,), ("early-exit:2",), (1,))
