"""
``draftproof run``: plan, lock, check, baseline, smoke, verify, compare, decide. Ends with an `Evidence`; draws nothing.

Everything measured is appended to ``requests.jsonl`` as it comes, so a run that was stopped can be read and resumed.
"""

import hashlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch

from draftproof import __version__
from draftproof import evidence as ev
from draftproof.engines.native import Engine
from draftproof.environment import describe_environment, peak_rss_bytes, write_probe
from draftproof.errors import OutputError, PlanError
from draftproof.gate.decide import decide
from draftproof.measure.compare import compare_arms, summarise_arm
from draftproof.measure.run import as_chat, interleave
from draftproof.proposers import DraftModel, PromptLookup, Proposer
from draftproof.request import SamplingParams
from draftproof.study.plan import Plan
from draftproof.verify.greedy import compare_greedy
from draftproof.verify.sampled import SampledDesign, verify_sampled
from draftproof.workload.loaders import load_prompts


class Progress(Protocol):
    """Where a run says what it is doing."""

    def say(self, message: str) -> None:
        """Say one line."""
        ...

    def start(self, title: str, total: int) -> Callable[[int], None]:
        """Begin a bar of ``total`` steps and return what advances it."""
        ...


def open_study(plan: Plan, out: Path, resume: bool) -> ev.Study:
    """
    Hash the plan (SHA-256 of its canonical JSON) and see that the folder is free for it; writes nothing yet.

    Raises
    ------
    OutputError
        The folder already holds a study and ``resume`` is false.
    PlanError
        The folder's study has another plan.
    """
    values = plan.model_dump(mode="json")
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    write_probe(out)
    path = out / "lock.json"
    if path.exists():
        if not resume:
            raise OutputError(f"{out} already holds a study; use --resume to go on with it, or another --out")
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            stored_hash, locked_at = str(stored["hash"]), str(stored["locked_at"])
        except (ValueError, KeyError, TypeError):
            raise PlanError(f"{path} is not a lock of a study; choose another --out") from None
        if stored_hash != digest:
            raise PlanError(
                f"{out} was locked with another plan ({stored_hash[:12]}); a changed plan needs another --out"
            )
    else:
        locked_at = datetime.now(UTC).isoformat(timespec="seconds")
    return ev.Study(name=plan.name, hash=digest, locked_at=locked_at, plan=values)


def run_study(plan: Plan, out: Path, *, resume: bool, progress: Progress) -> tuple[ev.Evidence, list[dict[str, Any]]]:
    """
    Run a study and write ``evidence.json``.

    Returns
    -------
    Evidence, list of request records
    """
    prompts = load_prompts(plan.workload.prompts, plan.workload.limit, plan.workload.seed)
    study = open_study(plan, out, resume)
    complete = out / "evidence.json"
    if resume and complete.exists():
        evidence = ev.load(complete)
        if evidence.study.hash == study.hash and evidence.draftproof_version == __version__:
            progress.say(f"{out} holds this study, complete; showing it")
            return evidence, read_records(out / "requests.jsonl")
    if plan.engine.threads != "auto":
        torch.set_num_threads(plan.engine.threads)
    engine = Engine.from_pretrained(
        plan.engine.target,
        proposer=_proposer(plan),
        dtype=plan.engine.dtype,
        device=plan.engine.device,
        progress=progress.say,
        num_speculative_tokens=plan.speculation.num_speculative_tokens,
        max_batch=max(plan.workload.concurrency),
        max_len=1024 if plan.engine.max_len == "auto" else plan.engine.max_len,
        numerics=plan.engine.numerics,
    )
    encoded = {prompt.id: engine.encode(as_chat(prompt)) for prompt in prompts}
    design = _design(engine, plan) if plan.sampled.enabled else None
    if not (out / "lock.json").exists():
        locked = {"hash": study.hash, "locked_at": study.locked_at, "plan": study.plan}
        ev.write_whole(out / "lock.json", json.dumps(locked, indent=2) + "\n")
    params = SamplingParams(max_tokens=plan.workload.max_tokens, **plan.sampling.model_dump())
    environment = {**describe_environment(), "engine": engine.capabilities.details}
    check = [
        {"finding": "claim of the engine", "result": engine.capabilities.claim, "why": engine.capabilities.claim_basis},
        {
            "finding": "longest prompt",
            "result": f"{max(map(len, encoded.values()))} tokens",
            "why": f"the context limit is {engine.max_len}",
        },
    ]

    advance = progress.start("warm-up", plan.measure.warmup_requests)
    for index in range(plan.measure.warmup_requests):
        engine.generate([as_chat(prompts[index % len(prompts)])], params, speculate=index % 2 == 1)
        advance(1)
    repeated = _repeatability(engine, plan, prompts, params, progress)

    stored = out / "requests.jsonl"
    records = read_records(stored)
    with stored.open("a", encoding="utf-8") as file:

        def save(record: dict[str, Any]) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
            records.append(record)

        for repeat in range(plan.measure.repeats):
            for concurrency in plan.workload.concurrency:
                done = {(r["prompt_id"], r["repeat"], r["concurrency"]) for r in records if r["block"] == "A2"}
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

    greedy = compare_greedy(engine, usable, encoded, repeated) if params.is_greedy else None
    sampled: ev.SampledResult | None = None
    controls: list[ev.ControlResult] = []
    if design and stopped is None:
        total = design.sequences + 3 * design.control_sequences
        sampled, controls = verify_sampled(engine, design, progress.start("sampled check and controls", total))
    claim: Any = engine.capabilities.claim if greedy and greedy.outcome == "PASS" else "none"
    basis = engine.capabilities.claim_basis if claim != "none" else "greedy output was not shown to be the same"
    equivalence = ev.Equivalence(greedy=greedy, sampled=sampled, controls=controls, claim=claim, claim_basis=basis)

    parts = engine.memory()
    target_bytes = (parts["target_weights"] or 0) + (parts["target_cache"] or 0)
    draft_bytes = (parts["draft_weights"] or 0) + (parts["draft_cache"] or 0)
    comparison = compare_arms(usable, plan.policy.confidence, (target_bytes + draft_bytes) / target_bytes)
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
    )
    ev.save(evidence, out / "evidence.json")
    return evidence, records


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read ``requests.jsonl``; a last line cut by a kill is dropped from the file too, so that appending is safe."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    # a group is complete once its A2 is stored
    whole = {(r["prompt_id"], r["repeat"], r["concurrency"]) for r in records if r["block"] == "A2"}
    records = [r for r in records if (r["prompt_id"], r["repeat"], r["concurrency"]) in whole]
    ev.write_whole(path, "".join(json.dumps(record) + "\n" for record in records))
    return records


def limits(plan: Plan, arms: ev.Arms | None, equivalence: ev.Equivalence, num_prompts: int) -> list[str]:
    """Say in plain words what was not measured and may not be claimed."""
    said = [
        f"Measured on {num_prompts} prompts of at most {plan.workload.max_tokens} tokens; other workloads may differ.",
        f"Measured at {', '.join(map(str, plan.workload.concurrency))} request(s) at a time; other loads may differ.",
        "One machine, one process; energy, open-loop arrival and other devices were not measured.",
        "Peak resident memory is the process's and covers both arms; weights and caches are counted per arm.",
    ]
    if arms and arms.target_only.latency.p95.estimate is None:
        said.append(f"p95 and p99 latency are not estimable from {arms.target_only.latency.n} requests per arm.")
    if equivalence.greedy is None:
        said.append("Greedy identity was not checked, since the measured runs sample.")
    if equivalence.sampled is None:
        said.append("The sampled law was not checked.")
    else:
        said.append(
            f"The sampled law was checked on one fixed prompt with {len(plan.sampled.words)} allowed tokens at temperature "
            f"{plan.sampled.temperature:g}; top-k, top-p and other prompts were not."
        )
        said.append("The sampled check ran in passes wider than the bitwise class, which changes rounding only.")
    return said


def _repeatability(
    engine: Engine, plan: Plan, prompts: Any, params: SamplingParams, progress: Progress
) -> tuple[int, int]:
    chosen = prompts[: plan.measure.repeatability_prompts]
    advance = progress.start("target-only repeatability", len(chosen))
    same = 0
    for prompt in chosen:
        runs = [engine.generate([as_chat(prompt)], params, speculate=False)[0].token_ids for _ in range(2)]
        same += runs[0] == runs[1]
        advance(1)
    return len(chosen), same


def _smoke(records: list[dict[str, Any]]) -> str | None:
    """Check that the path ran: no errors, and every round adds up. It proves nothing more."""
    for record in records:
        where = f"prompt '{record['prompt_id']}', {record['arm']}"
        if record["error"]:
            return f"smoke: {where}: {record['error']}"
        if sum(item["emitted"] for item in record["rounds"]) != len(record["token_ids"]):
            return f"smoke: {where}: its rounds do not add up to its tokens"
    return None


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


def _proposer(plan: Plan) -> Proposer:
    if plan.speculation.proposer == "draft-model":
        return DraftModel(plan.speculation.draft or "")
    return PromptLookup(plan.speculation.prompt_lookup_min, plan.speculation.prompt_lookup_max)


def _design(engine: Engine, plan: Plan) -> SampledDesign:
    values = plan.sampled.model_dump(exclude={"enabled", "prompt", "words"})
    allowed = []
    for word in plan.sampled.words:
        token_ids = engine.encode(word)
        if len(token_ids) != 1:
            raise PlanError(
                f"sampled.words: {word!r} is {len(token_ids)} tokens in this tokenizer; choose one-token words"
            )
        allowed.append(token_ids[0])
    return SampledDesign(
        prompt_token_ids=tuple(engine.encode(plan.sampled.prompt)), allowed_token_ids=tuple(allowed), **values
    )


def _write_rounds(path: Path, records: list[dict[str, Any]]) -> None:
    lines = [
        json.dumps(
            {key: record[key] for key in ("prompt_id", "block", "repeat", "concurrency")} | {"round": number, **item}
        )
        for record in records
        for number, item in enumerate(record["rounds"])
    ]
    ev.write_whole(path, "".join(line + "\n" for line in lines))
