"""``draftproof verify``: is the output the target's? Plan, register, run both arms, judge. Times nothing."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from draftproof import __version__
from draftproof import evidence as ev
from draftproof.study.both_arms import run_both_arms
from draftproof.study.conditions import conditions
from draftproof.study.judge import judge_output, registered
from draftproof.study.limits import judged_limits
from draftproof.study.lock import alone, append_planned, open_study, write_lock
from draftproof.study.plan import Plan
from draftproof.study.progress import Progress
from draftproof.study.sampled import sampled_check, tell_plan
from draftproof.study.setup import encode_prompts, open_engine
from draftproof.verify.controls import Control
from draftproof.verify.worker import open_worker
from draftproof.workload.loaders import load_prompts


def verify_study(
    plan: Plan, out: Path, *, resume: bool, progress: Progress, plant: Control | None = None
) -> ev.Verification:
    """
    Check a study's output and write ``verification.json``.

    Parameters
    ----------
    plan : Plan
        Its measurement and its policy are not used.
    out : Path
        Folder for the lock, the requests and the result.
    resume : bool
        Go on with what is in the folder. The sampled check is drawn again, from the same seeds.
    progress : Progress
    plant : Control or None
        Put into the engine, to see it found.

    Raises
    ------
    DraftproofError
        The plan, its prompts, its models or the folder cannot be used.
    """
    prompts = load_prompts(plan.workload.prompts, plan.workload.limit, plan.workload.seed)
    with alone(out), ExitStack() as opened:
        study = open_study(plan, prompts, out, resume)
        engine = open_engine(plan, progress, plant)
        opened.callback(engine.close)
        encoded = encode_prompts(engine.encode, prompts)
        check = sampled_check(engine, plan)
        able = engine.capabilities
        record = registered(engine, plan, check)
        planted = None if plant is None else plant.name
        write_lock(
            study,
            out,
            {"draftproof": __version__, "claim": able.claim, "registration": record, "planted": planted},
        )
        records = run_both_arms(engine, plan, prompts, out / "requests.jsonl", progress)
        usable = [item for item in records if not item["error"]]
        equivalence = judge_output(engine, plan, usable, encoded, check, progress, partial(append_planned, out))
        missing = [f"prompt '{item['prompt_id']}': {item['error']}" for item in records if item["error"]]
        if equivalence.greedy is not None:
            missing += _nothing_drafted(usable)
        outcome, reasons = _outcome(equivalence, missing)
        result = ev.Verification(
            draftproof_version=__version__,
            study=study,
            environment=conditions(plan, able, out),
            planted=planted,
            registration=record["sha256"],
            equivalence=equivalence,
            outcome=outcome,
            reasons=reasons,
            limits=judged_limits(plan, equivalence, len(prompts)),
        )
        ev.write_whole(out / "verification.json", result.model_dump_json(indent=2) + "\n")
        return result


def plan_verification(plan: Plan, progress: Progress) -> tuple[dict[str, Any], ev.SampledPlanned | None]:
    """
    Say what `verify_study` would register, see and take; writes nothing.

    Returns
    -------
    dict
        The registration record with its SHA-256.
    SampledPlanned or None
        None where there is no sampled check, or one that does not know the target's law.
    """
    with closing(open_engine(plan, progress)) as engine:
        check = sampled_check(engine, plan)
        record = registered(engine, plan, check)
        if check is None or check.method != "own-pass" or check.law is None:
            return record, None
        return record, tell_plan(engine, open_worker(engine, check.law), check.law, progress)


def _nothing_drafted(records: Sequence[dict[str, Any]]) -> list[str]:
    """Say it where the speculative arm tells its rounds and never speculated: that both arms agree then shows nothing."""
    rounds = [item for record in records if record["block"] == "B" for item in record["rounds"]]
    if not rounds or any(item["num_proposed"] for item in rounds):
        return []
    return [
        "greedy: no token was drafted, so that nothing of the speculation was compared; give prompts that the proposer can continue, "
        "or another proposer"
    ]


def _outcome(equivalence: ev.Equivalence, missing: list[str]) -> tuple[ev.Outcome, list[str]]:
    """Return the weakest of what was found, and why it is not PASS."""
    greedy, sampled = equivalence.greedy, equivalence.sampled
    reasons = list(missing)
    if greedy is not None and greedy.outcome != "PASS":
        why = "; ".join([*greedy.reasons, *(greedy.triage.reasons if greedy.triage else [])])
        reasons.append(
            f"greedy {greedy.outcome}: {greedy.identical} of {greedy.prompts} prompts token for token"
            + (f" ({why})" if why else "")
        )
    if equivalence.claim == "lossy":
        reasons.append(equivalence.claim_basis)
    if sampled is not None:
        reasons += [f"sampled {sampled.outcome}: {reason}" for reason in sampled.reasons]
        reasons += [f"what to do: {line}" for line in sampled.advice]
    if greedy is None and sampled is None:
        reasons.append("nothing was checked")
    found = {item.outcome for item in (greedy, sampled) if item is not None}
    if "FAIL" in found:
        return "FAIL", reasons
    is_open = missing or found != {"PASS"} or equivalence.claim == "lossy"
    return ("INCONCLUSIVE", reasons) if is_open else ("PASS", reasons)
