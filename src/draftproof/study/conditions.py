"""Under which conditions a study measures: the environment with the engine's facts and the plan's, all in one table."""

from pathlib import Path
from typing import Any

from draftproof.engines.base import Capabilities
from draftproof.environment import describe_environment, facts_of
from draftproof.study.plan import Plan

INTERLEAVED = "target-only, speculative, target-only, of the same prompts, one after the other"
IN_TURNS = "target-only, speculative, target-only, each of all prompts before the next"


def conditions(plan: Plan, capabilities: Capabilities, out: Path) -> dict[str, Any]:
    """
    Return the ``environment`` of the evidence.

    Besides what `describe_environment` finds: ``engine`` is what the engine says of itself, and ``measurement`` how it is timed.
    Pass shapes, dtype and threads are None where an engine does not tell.
    """
    details = capabilities.details
    runtime = details.get("runtime") or {}
    return {
        **describe_environment(out),
        "engine": details,
        "measurement": {
            "engine": capabilities.name,
            "dtype": details.get("dtype"),
            "threads": runtime.get("threads"),
            "pass_shapes": (details.get("shape_class") or {}).get("shapes"),
            "synchronisation": runtime.get("synchronisation"),
            "blocks": IN_TURNS if plan.engine.launch and not plan.engine.launch.together else INTERLEAVED,
            "warmup_requests": plan.measure.warmup_requests,
            "repeats": plan.measure.repeats,
            "concurrency": list(plan.workload.concurrency),
            "max_tokens": plan.workload.max_tokens,
            "seeds": {"workload": plan.workload.seed, "sampled_check": plan.sampled.seed, "requests": 0},
        },
    }


def lasting(environment: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same at every start of one study, for its lock."""
    # a virtual machine shows a little more or less memory from start to start
    return {name: value for name, value in facts_of(environment, "machine").items() if name != "memory_bytes"}
