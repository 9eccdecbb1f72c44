"""
``draftproof run``: plan, lock, check, baseline, smoke, verify, compare, decide. Ends with an `Evidence`; draws nothing.

Everything measured is appended to ``requests.jsonl`` as it comes, so a run that was stopped can be read and resumed.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from draftproof import __version__
from draftproof import evidence as ev
from draftproof.gate.decide import decide
from draftproof.measure.arms import summarise_arms
from draftproof.measure.arrival import Arrival
from draftproof.measure.compare import compare_arms
from draftproof.measure.gauge import Gauge
from draftproof.measure.predict import with_prediction
from draftproof.measure.run import as_chat
from draftproof.study.both_arms import run_both_arms
from draftproof.study.conditions import conditions, lasting
from draftproof.study.judge import judge_output, registered
from draftproof.study.limits import limits
from draftproof.study.lock import alone, append_planned, open_study, write_lock
from draftproof.study.plan import Plan
from draftproof.study.progress import Progress
from draftproof.study.records import read_records
from draftproof.study.sampled import sampled_check
from draftproof.study.setup import encode_prompts, open_engine
from draftproof.workload.loaders import load_prompts
from draftproof.workload.prompts import WorkloadPrompt


def run_study(plan: Plan, out: Path, *, resume: bool, progress: Progress) -> tuple[ev.Evidence, list[dict[str, Any]]]:
    """
    Run a study and write ``evidence.json``.

    Returns
    -------
    Evidence, list of request records

    Raises
    ------
    DraftproofError
        The plan, its prompts, its models or the folder cannot be used, or writing failed; what was stored stays.
    """
    prompts = load_prompts(plan.workload.prompts, plan.workload.limit, plan.workload.seed)
    with alone(out), ExitStack() as opened:
        return _run(plan, prompts, out, resume, progress, opened)


def _run(
    plan: Plan, prompts: Sequence[WorkloadPrompt], out: Path, resume: bool, progress: Progress, opened: ExitStack
) -> tuple[ev.Evidence, list[dict[str, Any]]]:
    study = open_study(plan, prompts, out, resume)
    complete = out / "evidence.json"
    if resume and complete.exists():
        evidence = ev.load(complete)
        if evidence.study.hash == study.hash and evidence.draftproof_version == __version__:
            progress.say(f"{out} holds this study, complete; showing it")
            return evidence, read_records(out / "requests.jsonl", prompts)
    if resume and not (out / "lock.json").exists():
        progress.say(f"{out} holds no study yet; beginning one")
    gauge = Gauge()
    engine = open_engine(plan, progress)
    opened.callback(engine.close)
    encoded = encode_prompts(engine.encode, prompts)
    check = sampled_check(engine, plan)
    capabilities = engine.capabilities
    environment = conditions(plan, capabilities, out)
    loaded = {
        "draftproof": __version__,
        "threads": torch.get_num_threads(),
        "max_len": capabilities.max_len,
        "claim": capabilities.claim,
        "engine": capabilities.details,
        "machine": lasting(environment),
        "registration": registered(engine, plan, check),
    }
    write_lock(study, out, loaded)
    findings = [
        {"finding": "claim of the engine", "result": capabilities.claim, "why": capabilities.claim_basis},
        {
            "finding": "longest prompt",
            "result": f"{max(map(len, encoded.values()))} tokens",
            "why": f"the context limit is {capabilities.max_len}",
        },
    ]

    advance = progress.start("warm-up", plan.measure.warmup_requests)
    for index in range(plan.measure.warmup_requests):
        engine.generate([as_chat(prompts[index % len(prompts)])], plan.params, speculate=index % 2 == 1)
        advance(1)

    table = plan.workload.arrival
    arrival = None if table is None else Arrival(**table.model_dump())
    stored, repeats = out / "requests.jsonl", plan.measure.repeats
    with gauge.opened(capabilities.details.get("device")):
        records = run_both_arms(engine, plan, prompts, stored, progress, repeats=repeats, arrival=arrival, gauge=gauge)
    _write_rounds(out / "rounds.jsonl", records)
    stopped = _smoke(records)
    usable = [record for record in records if not record["error"]]

    judged = None if stopped else check
    equivalence = judge_output(engine, plan, usable, encoded, judged, progress, partial(append_planned, out))

    parts, drafted = engine.memory(), plan.speculation.num_speculative_tokens
    comparison = compare_arms(usable, plan.policy.confidence, _memory_ratio(parts))
    comparison = with_prediction(comparison, usable, drafted, plan.policy.confidence)
    goodput_limits = plan.measure.goodput.model_dump(exclude_none=True)
    arms = summarise_arms(usable, parts, drafted, gauge, goodput_limits, plan.policy.confidence)
    decision = decide(arms=arms, equivalence=equivalence, comparison=comparison, policy=plan.policy, stopped=stopped)
    evidence = ev.Evidence(
        draftproof_version=__version__,
        study=study,
        environment=environment,
        check=findings,
        arms=arms,
        equivalence=equivalence,
        comparison=comparison,
        decision=decision,
        limits=limits(plan, arms, equivalence, len(prompts)),
        stopped=stopped,
    )
    ev.save(evidence, out / "evidence.json")
    return evidence, records


def _smoke(records: list[dict[str, Any]]) -> str | None:
    """Check that the path ran: no errors, and every round adds up. It proves nothing more."""
    for record in records:
        where = f"prompt '{record['prompt_id']}', {record['arm']}"
        if record["error"]:
            return f"smoke: {where}: {record['error']}"
        if record["rounds"] and sum(item["emitted"] for item in record["rounds"]) != len(record["token_ids"]):
            return f"smoke: {where}: its rounds do not add up to its tokens"
    return None


def _memory_ratio(parts: dict[str, int | None]) -> float | None:
    """Return (target + draft) / target, or None where the engine reports no weights."""
    if not parts["target_weights"]:
        return None
    target = parts["target_weights"] + (parts["target_cache"] or 0)
    return (target + (parts["draft_weights"] or 0) + (parts["draft_cache"] or 0)) / target


def _write_rounds(path: Path, records: list[dict[str, Any]]) -> None:
    lines = [
        json.dumps(
            {key: record[key] for key in ("prompt_id", "block", "repeat", "concurrency")} | {"round": number, **item}
        )
        for record in records
        for number, item in enumerate(record["rounds"])
    ]
    ev.write_whole(path, "".join(line + "\n" for line in lines))
