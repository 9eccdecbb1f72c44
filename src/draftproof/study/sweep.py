"""
``draftproof sweep``: every proposer and k on the same prompts, hopeless arms stopped early, the fastest named.

It explores. The arm that it names was chosen because it looked best here, so it must pass a study of its own.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from draftproof import __version__
from draftproof import evidence as ev
from draftproof.engines.base import EngineProtocol
from draftproof.engines.native import Engine
from draftproof.engines.scripted import ScriptedEngine
from draftproof.measure.compare import cells_of, compare_arms, summarise_acceptance
from draftproof.measure.run import Advance, as_chat, interleave
from draftproof.request import SamplingParams
from draftproof.stats.interval import Interval
from draftproof.stats.racing import confidence_of_each, hopeless, looks
from draftproof.study.arms import Arm, SweepPlan, arms_of
from draftproof.study.conditions import conditions
from draftproof.study.lock import alone, open_study, write_lock
from draftproof.study.progress import Progress
from draftproof.study.records import appending, groups_of, read_records
from draftproof.study.setup import make_proposer, open_engine
from draftproof.study.sweep_result import SweepResult, SweptArm, load_sweep, recommend
from draftproof.workload.loaders import load_prompts
from draftproof.workload.prompts import WorkloadPrompt

Records = list[dict[str, Any]]


def run_sweep(plan: SweepPlan, out: Path, *, resume: bool, progress: Progress) -> SweepResult:
    """
    Run a sweep and write ``sweep.json``; every measured group is appended to the arm's own ``.jsonl`` as it comes.

    Raises
    ------
    DraftproofError
        The plan, its prompts, its models or the folder cannot be used, or writing failed; what was stored stays.
    """
    prompts = list(load_prompts(plan.workload.prompts, plan.workload.limit, plan.workload.seed))
    # a set often lies category by category, and the first look must be at a sample of all
    random.Random(plan.workload.seed).shuffle(prompts)
    with alone(out):
        return _sweep(plan, prompts, out, resume, progress)


def _sweep(
    plan: SweepPlan, prompts: Sequence[WorkloadPrompt], out: Path, resume: bool, progress: Progress
) -> SweepResult:
    study = open_study(plan, prompts, out, resume)
    complete = out / "sweep.json"
    if resume and complete.exists():
        progress.say(f"{out} holds this sweep, complete; showing it")
        return load_sweep(complete)
    arms = arms_of(plan)
    engines = open_arms(arms, progress)
    for prompt in prompts:
        engines[0].encode(as_chat(prompt))
    details = [engine.capabilities for engine in engines]
    loaded = {
        "draftproof": __version__,
        "threads": torch.get_num_threads(),
        "arms": {
            arm.name: {"claim": one.claim, "max_len": one.max_len} for arm, one in zip(arms, details, strict=True)
        },
    }
    write_lock(study, out, loaded)
    advance = progress.start("warm-up", plan.measure.warmup_requests * len(arms))
    for engine in engines:
        for index in range(plan.measure.warmup_requests):
            engine.generate([as_chat(prompts[index % len(prompts)])], plan.params, speculate=index % 2 == 1)
            advance(1)
    paths = [
        out / f"{number:02d}-{arm.proposer.partition(':')[0]}-k{arm.num_speculative_tokens}.jsonl"
        for number, arm in enumerate(arms)
    ]
    records = [read_records(path, prompts) for path in paths]
    swept: list[SweptArm] = []
    for batch in plan.sweep.batch:
        dropped = _race(plan, arms, engines, paths, records, batch, prompts, progress)
        swept += [
            _swept(plan, arm, batch, mine, dropped.get(arm.name)) for arm, mine in zip(arms, records, strict=True)
        ]
    result = SweepResult(
        draftproof_version=__version__,
        study=study,
        environment=conditions(plan, details[0], out),
        rule=rule(plan, len(arms), len(prompts)),
        arms=swept,
        recommended=[recommend([item for item in swept if item.batch == batch], arms) for batch in plan.sweep.batch],
    )
    ev.write_whole(complete, result.model_dump_json(indent=2) + "\n")
    return result


def open_arms(arms: Sequence[Arm], progress: Progress) -> list[EngineProtocol]:
    """
    Make an engine for each arm; the target is loaded once, and once more for each further draft model.

    Raises
    ------
    ModelError, InputError
        A model is missing or cannot be used, or a value does not fit it.
    """
    loaded: dict[str | None, EngineProtocol] = {}
    engines: list[EngineProtocol] = []
    for arm in arms:
        drafts = arm.proposer if arm.plan.speculation.draft else None
        own, base = loaded.get(drafts), next(iter(loaded.values()), None)
        if drafts and isinstance(own, Engine | ScriptedEngine):
            engine: EngineProtocol = own.with_speculation(arm.num_speculative_tokens)
        elif not drafts and isinstance(base, Engine | ScriptedEngine):
            engine = base.with_speculation(arm.num_speculative_tokens, make_proposer(arm.plan))
        else:
            engine = open_engine(arm.plan, progress)
        loaded.setdefault(drafts, engine)
        engines.append(engine)
    return engines


def _race(
    plan: SweepPlan,
    arms: Sequence[Arm],
    engines: Sequence[EngineProtocol],
    paths: Sequence[Path],
    records: Sequence[Records],
    batch: int,
    prompts: Sequence[WorkloadPrompt],
    progress: Progress,
) -> dict[str, str]:
    """Measure at one batch, group by group, every arm that is left on the same group; return why which arms were dropped."""
    dropped: dict[str, str] = {}
    when = looks(len(prompts), batch)
    each = confidence_of_each(plan.policy.confidence, len(arms), len(when))
    advance = progress.start(f"sweep, {batch} at a time", len(arms) * len(prompts))
    for begin, end in zip([0, *when], when, strict=False):
        for start in range(begin, end, batch):
            group = prompts[start : min(start + batch, end)]
            for arm, engine, path, mine in zip(arms, engines, paths, records, strict=True):
                if arm.name not in dropped:
                    _measure(engine, group, plan.params, path, mine, batch, advance)
        seen = {prompt.id for prompt in prompts[:end]}
        left = {
            arm.name: [item for item in mine if item["concurrency"] == batch and item["prompt_id"] in seen]
            for arm, mine in zip(arms, records, strict=True)
            if arm.name not in dropped
        }
        for name, why in _hopeless(left, each).items():
            dropped[name] = f"after {end} prompts: {why}"
            progress.say(f"dropped {name}, {batch} at a time, {dropped[name]}")
            advance(len(prompts) - end)
    return dropped


def _measure(
    engine: EngineProtocol,
    group: Sequence[WorkloadPrompt],
    params: SamplingParams,
    path: Path,
    records: Records,
    batch: int,
    advance: Advance,
) -> None:
    done = groups_of(records)
    with appending(path, records) as save:
        interleave(engine, group, params, concurrency=batch, repeat=0, skip=done, save=save, advance=advance)


def _hopeless(left: dict[str, Records], confidence: float) -> dict[str, str]:
    failed, speedups = {}, {}
    for name, records in left.items():
        error = next((item["error"] for item in records if item["error"]), None)
        if error:
            failed[name] = f"failed: {error}"
        else:
            found = compare_arms(records, confidence, None).overall.speedup
            speedups[name] = Interval(found.estimate, found.low, found.high)
    return failed | hopeless(speedups)


def rule(plan: SweepPlan, num_arms: int, num_prompts: int) -> str:
    """Say when an arm is dropped."""
    counts = sorted({count for batch in plan.sweep.batch for count in looks(num_prompts, batch)})
    return (
        f"After {', '.join(map(str, counts))} prompts (in whole groups) an arm is dropped when the upper limit of its speed-up lies "
        f"below 1 or below the highest lower limit; the {plan.policy.confidence * 100:g} % are shared among {num_arms} arms and all "
        "looks at one batch."
    )


def _swept(plan: SweepPlan, arm: Arm, batch: int, records: Records, dropped: str | None) -> SweptArm:
    mine = [record for record in records if record["concurrency"] == batch and not record["error"]]
    effect = compare_arms(mine, plan.policy.confidence, None).overall
    rounds = [item for cell in cells_of(mine) for item in cell["B"]["rounds"]]
    acceptance = summarise_acceptance(rounds, arm.num_speculative_tokens) if rounds else None
    return SweptArm(
        proposer=arm.proposer,
        num_speculative_tokens=arm.num_speculative_tokens,
        batch=batch,
        prompts=effect.n,
        speedup=effect.speedup,
        aa=effect.aa,
        acceptance_rate=acceptance.rate if acceptance else None,
        accepted_per_round=acceptance.accepted_per_round if acceptance else None,
        dropped=dropped,
    )
