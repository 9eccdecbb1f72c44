"""Run both arms of a study; each request is appended to ``requests.jsonl`` as it ends, and what is there already is not run again."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from draftproof.engines.base import EngineProtocol
from draftproof.measure.alternate import alternate
from draftproof.measure.arrival import Arrival
from draftproof.measure.gauge import Gauge
from draftproof.measure.run import interleave
from draftproof.study.plan import Plan
from draftproof.study.progress import Progress
from draftproof.study.records import appending, groups_of, read_records
from draftproof.workload.prompts import WorkloadPrompt


def run_both_arms(
    engine: EngineProtocol,
    plan: Plan,
    prompts: Sequence[WorkloadPrompt],
    path: Path,
    progress: Progress,
    *,
    repeats: int = 1,
    arrival: Arrival | None = None,
    gauge: Gauge | None = None,
) -> list[dict[str, Any]]:
    """
    Run every prompt as A, B, A at each concurrency of the plan, and return the records of all, stored ones included.

    A request that fails ends the run with its group.

    Parameters
    ----------
    path : Path
        ``requests.jsonl``.
    repeats : int
        How often the whole workload is run.
    arrival, gauge
        As for `measure.run.interleave`; not used where only one of the plan's servers runs at a time.

    Raises
    ------
    DraftproofError
        The file cannot be read or written, or the engine failed; what was stored stays.
    """
    launch = plan.engine.launch
    take_turns: Callable[..., None] = partial(interleave, arrival=arrival, gauge=gauge)
    run_arms = take_turns if launch is None or launch.together else alternate
    load = "" if arrival is None else f"{arrival.rate_per_s:g} a second, "
    records = read_records(path, prompts)
    with appending(path, records) as save:
        for repeat, concurrency in product(range(repeats), plan.workload.concurrency):
            if any(item["error"] for item in records):
                break
            title = f"A/B/A, {load}{concurrency} at a time, repeat {repeat + 1}"
            run_arms(
                engine,
                prompts,
                plan.params,
                concurrency=concurrency,
                repeat=repeat,
                skip=groups_of(records),
                save=save,
                advance=progress.start(title, len(prompts)),
            )
    return records
