"""What a study did not measure and may not claim, in plain words."""

from draftproof import evidence as ev
from draftproof.study.plan import Plan

_JUDGED_BY = {
    "own pass": "The exact probabilities come from a pass of the plain model over whole sequences, which rounds differently "
    "from the engine's own passes.",
    "top log-probabilities": "The probabilities are those that the server's target-only arm reported.",
    "two samples": "No probabilities were known: the arms' samples were compared with each other, and both may share a defect.",
}


def limits(plan: Plan, arms: ev.Arms | None, equivalence: ev.Equivalence, num_prompts: int) -> list[str]:
    """Say in plain words what was not measured and may not be claimed."""
    said = _made_up(plan)
    said += [
        f"Measured on {num_prompts} prompts of at most {plan.workload.max_tokens} tokens; other workloads may differ.",
        f"Measured at {', '.join(map(str, plan.workload.concurrency))} request(s) at a time; other loads may differ.",
        *_load(plan),
    ]
    if plan.engine.kind == "openai_http":
        said += [
            "The arms are servers: times include the network and the server's queue, and their memory was not measured.",
            "One client on one machine; other devices were not measured.",
        ]
        if plan.engine.launch and plan.engine.launch.together:
            said.append(
                "Both servers ran side by side on this machine: what one still uses while the other answers is in the other's "
                "times (engine.launch.together = false measures them apart)."
            )
    else:
        said += [
            "One machine, one process; other devices were not measured.",
            "Peak resident memory is the process's and covers both arms; weights and caches are counted per arm.",
        ]
    if arms and arms.target_only.energy and arms.target_only.energy.joules is None:
        said.append(f"Energy was not measured: {arms.target_only.energy.source}.")
    for name, arm in (("target-only", arms.target_only), ("speculative", arms.speculative)) if arms else ():
        missing = [key for key in ("p95", "p99") if arm and getattr(arm.latency, key).estimate is None]
        if arm and missing:
            draws = f"{arm.latency.prompts} {'prompts' if plan.workload.arrival is None else 'blocks of arrivals'}"
            requests = f"{arm.latency.n} requests of the {name} arm ({draws})"
            said.append(
                f"{' and '.join(missing)} latency {'are' if len(missing) > 1 else 'is'} not estimable from the {requests}."
            )
    if arms and arms.speculative and arms.speculative.acceptance is None:
        said.append("The engine does not report rounds: acceptance was not measured.")
    if arms and arms.speculative and arms.speculative.acceptance and arms.speculative.acceptance.rounds is None:
        whose = "the server counted for itself" if plan.engine.kind == "openai_http" else "the target's passes show"
        said.append(f"Acceptance is what {whose}; the places within its rounds were not told apart.")
    return said + _of_output(plan, equivalence)


def judged_limits(plan: Plan, equivalence: ev.Equivalence, num_prompts: int) -> list[str]:
    """Say the same of a run that looked at the output alone."""
    loads = ", ".join(map(str, plan.workload.concurrency))
    return [
        *_made_up(plan),
        f"Checked on {num_prompts} prompts of at most {plan.workload.max_tokens} tokens, {loads} request(s) at a time; other "
        "workloads may differ.",
        "Nothing was timed.",
        *_of_output(plan, equivalence),
    ]


def _made_up(plan: Plan) -> list[str]:
    if plan.engine.kind != "scripted":
        return []
    return ["The engine is a script: its tokens and its times are made up, and the verdict is about nothing real."]


def _of_output(plan: Plan, equivalence: ev.Equivalence) -> list[str]:
    said = []
    if equivalence.greedy is None:
        said.append("Greedy identity was not checked, since the measured runs sample.")
    if plan.engine.kind == "openai_http" and plan.engine.launch is None:
        said.append(
            "Of servers that ran already only what they say of themselves is known: a lossy setting that they keep to "
            "themselves would show in the output alone."
        )
    if equivalence.sampled is None:
        said.append("The sampled law was not checked.")
    elif not equivalence.sampled.tokens:
        said.append("No sampled token was judged.")
    else:
        words = equivalence.sampled.configuration.get("allowed_token_ids")
        cells = f"{len(words)} allowed tokens" if isinstance(words, list) else "the whole vocabulary in rank cells"
        said.append(
            f"The sampled law was checked on {len(plan.sampled.prompt)} fixed prompt(s) with {cells} at temperature "
            f"{plan.sampled.temperature:g}; top-k, top-p, penalties, bans, constraints, the end of a text and other prompts were not."
        )
        asked, at = plan.sampling, plan.sampled.temperature
        if asked.temperature > 0 and (asked.temperature, asked.top_k, asked.top_p) != (at, 0, 1.0):
            said.append(
                f"The requests sampled at temperature {asked.temperature:g}, top-k {asked.top_k}, top-p {asked.top_p:g}: the law of "
                "their output was not checked."
            )
        said.append(_JUDGED_BY[equivalence.sampled.method])
        if equivalence.sampled.method == "two samples":
            said.append("Two samples do not tell tokens apart by their place in the round.")
        elif not equivalence.sampled.strata:
            said.append("The engine does not report rounds: tokens were not told apart by their place in the round.")
    return said


def _load(plan: Plan) -> list[str]:
    arrival = plan.workload.arrival
    if arrival is None:
        together = "; those that ran together shared its noise, and intervals take them as apart"
        return [
            "Requests started together (closed loop); arrival by themselves (open loop) was not measured"
            f"{together if max(plan.workload.concurrency) > 1 else ''}."
        ]
    return [
        f"Requests arrived at {arrival.rate_per_s:g} a second on average (Poisson, seed {arrival.seed}), in blocks of "
        f"{arrival.requests_per_block} that began with an idle engine: a load that lasts longer may wait longer."
    ]
