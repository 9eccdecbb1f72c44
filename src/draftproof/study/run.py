"""
``draftproof run``: plan, lock, check, baseline, smoke, verify, compare, decide. Ends with an `Evidence`; draws nothing.

Everything measured is appended to ``requests.jsonl`` as it comes, so a run that was stopped can be read and resumed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from draftproof import __version__
from draftproof import evidence as ev
from draftproof.environment import describe_environment, peak_rss_bytes
from draftproof.gate.decide import decide
from draftproof.measure.compare import compare_arms, summarise_arm
from draftproof.measure.predict import with_prediction
from draftproof.measure.run import BLOCKS, as_chat, interleave
from draftproof.request import SamplingParams
from draftproof.study.append import append_record
from draftproof.study.limits import limits
from draftproof.study.lock import alone, open_study, write_lock
from draftproof.study.plan import Plan
from draftproof.study.progress import Progress
from draftproof.study.setup import open_engine, sampled_design
from draftproof.verify.anchor import anchor
from draftproof.verify.greedy import compare_greedy
from draftproof.verify.sampled import num_controls, verify_sampled
from draftproof.workload.loaders import load_prompts
from draftproof.workload.prompts import WorkloadPrompt

GROUP = ("prompt_id", "repeat", "concurrency")


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
    with alone(out):
        return _run(plan, prompts, out, resume, progress)


def _run(
    plan: Plan, prompts: Sequence[WorkloadPrompt], out: Path, resume: bool, progress: Progress
) -> tuple[ev.Evidence, list[dict[str, Any]]]:
    study = open_study(plan, prompts, out, resume)
    complete = out / "evidence.json"
    if resume and complete.exists():
        evidence = ev.load(complete)
        if evidence.study.hash == study.hash and evidence.draftproof_version == __version__:
            progress.say(f"{out} holds this study, complete; showing it")
            return evidence, read_records(out / "requests.jsonl")
    if resume and not (out / "lock.json").exists():
        progress.say(f"{out} holds no study yet; beginning one")
    if plan.engine.threads != "auto":
        torch.set_num_threads(plan.engine.threads)
    engine = open_engine(plan, progress)
    encoded = {prompt.id: engine.encode(as_chat(prompt)) for prompt in prompts}
    design = sampled_design(engine, plan)
    capabilities = engine.capabilities
    loaded = {
        "draftproof": __version__,
        "threads": torch.get_num_threads(),
        "max_len": capabilities.max_len,
        "claim": capabilities.claim,
        "engine": capabilities.details,
    }
    write_lock(study, out, loaded)
    params = SamplingParams(max_tokens=plan.workload.max_tokens, **plan.sampling.model_dump())
    environment = {**describe_environment(), "engine": capabilities.details}
    check = [
        {"finding": "claim of the engine", "result": capabilities.claim, "why": capabilities.claim_basis},
        {
            "finding": "longest prompt",
            "result": f"{max(map(len, encoded.values()))} tokens",
            "why": f"the context limit is {capabilities.max_len}",
        },
    ]

    advance = progress.start("warm-up", plan.measure.warmup_requests)
    for index in range(plan.measure.warmup_requests):
        engine.generate([as_chat(prompts[index % len(prompts)])], params, speculate=index % 2 == 1)
        advance(1)

    stored = out / "requests.jsonl"
    records = read_records(stored)
    with stored.open("ab", buffering=0) as file:

        def save(record: dict[str, Any]) -> None:
            append_record(file, record)
            records.append(record)

        for repeat in range(plan.measure.repeats):
            for concurrency in plan.workload.concurrency:
                done = {(r["prompt_id"], r["repeat"], r["concurrency"]) for r in records}
                advance = progress.start(f"A/B/A, {concurrency} at a time, repeat {repeat + 1}", len(prompts))
                interleave(
                    engine,
                    prompts,
                    params,
                    concurrency=concurrency,
                    repeat=repeat,
                    skip=done,
                    save=save,
                    advance=advance,
                )
    _write_rounds(out / "rounds.jsonl", records)
    stopped = _smoke(records)
    usable = [record for record in records if not record["error"]]

    same_tokens = params.is_greedy or plan.speculation.verification == "coupled"
    anchored = anchor(engine, usable, encoded) if params.is_greedy else None
    greedy = compare_greedy(engine, usable, encoded, anchored, most_likely=params.is_greedy) if same_tokens else None
    sampled: ev.SampledResult | None = None
    controls: list[ev.ControlResult] = []
    if design and stopped is None:
        total = design.sequences + num_controls(engine) * design.control_sequences
        sampled, controls = verify_sampled(engine, design, progress.start("sampled check and controls", total))
    claim: Any = capabilities.claim if greedy and greedy.outcome == "PASS" else "none"
    basis = capabilities.claim_basis if claim != "none" else "greedy output was not shown to be the same"
    equivalence = ev.Equivalence(greedy=greedy, sampled=sampled, controls=controls, claim=claim, claim_basis=basis)

    parts = engine.memory()
    comparison = compare_arms(usable, plan.policy.confidence, _memory_ratio(parts))
    comparison = with_prediction(comparison, usable, plan.speculation.num_speculative_tokens, plan.policy.confidence)
    arms = _arms(usable, parts, plan.speculation.num_speculative_tokens)
    decision = decide(arms=arms, equivalence=equivalence, comparison=comparison, policy=plan.policy, stopped=stopped)
    evidence = ev.Evidence(
        draftproof_version=__version__,
        study=study,
        environment=environment,
        check=check,
        arms=arms,
        equivalence=equivalence,
        comparison=comparison,
        decision=decision,
        limits=limits(plan, arms, equivalence, len(prompts)),
        stopped=stopped,
    )
    ev.save(evidence, out / "evidence.json")
    return evidence, records


def read_records(path: Path) -> list[dict[str, Any]]:
    """
    Read ``requests.jsonl``, and leave in the file only whole groups, so that appending is safe.

    A line that a kill has cut or that is no record is dropped, and its group is run again.
    """
    if not path.exists():
        return []
    records: list[dict[str, Any]] = []
    blocks: dict[tuple[Any, ...], list[str]] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line)
            blocks.setdefault(tuple(record[key] for key in GROUP), []).append(record["block"])
            records.append(record)
        except (ValueError, TypeError, KeyError):
            continue
    whole = {group for group, seen in blocks.items() if seen == [name for name, _ in BLOCKS]}
    records = [record for record in records if tuple(record[key] for key in GROUP) in whole]
    ev.write_whole(path, "".join(json.dumps(record) + "\n" for record in records))
    return records


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


def _arms(records: list[dict[str, Any]], parts: dict[str, int | None], num_draft_tokens: int) -> ev.Arms:
    def arm(name: str, memory: ev.Memory, count: int | None) -> ev.Arm:
        mine = [record for record in records if record["arm"] == name]
        return summarise_arm(mine, sum(record["busy_seconds"] for record in mine), memory, count)

    peak = peak_rss_bytes()
    alone = ev.Memory(weights=parts["target_weights"], caches=parts["target_cache"], peak_rss=peak)
    both = ev.Memory(
        weights=(parts["target_weights"] or 0) + (parts["draft_weights"] or 0),
        caches=(parts["target_cache"] or 0) + (parts["draft_cache"] or 0),
        peak_rss=peak,
    )
    return ev.Arms(target_only=arm("target_only", alone, None), speculative=arm("speculative", both, num_draft_tokens))


def _write_rounds(path: Path, records: list[dict[str, Any]]) -> None:
    lines = [
        json.dumps(
            {key: record[key] for key in ("prompt_id", "block", "repeat", "concurrency")} | {"round": number, **item}
        )
        for record in records
        for number, item in enumerate(record["rounds"])
    ]
    ev.write_whole(path, "".join(line + "\n" for line in lines))
