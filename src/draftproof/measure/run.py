"""Run the two arms one after the other on the same prompts and record every request. Judges nothing."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, cast

from draftproof.engines.base import EngineProtocol, Queueing
from draftproof.measure.arrival import Arrival, serve
from draftproof.measure.gauge import Gauge, Reading
from draftproof.measure.noise import between, read_host
from draftproof.records import Completion
from draftproof.request import Prompt, SamplingParams
from draftproof.workload.prompts import WorkloadPrompt

BLOCKS = (("A1", False), ("B", True), ("A2", False))
Save = Callable[[dict[str, Any]], None]
Advance = Callable[[int], None]


def as_chat(prompt: WorkloadPrompt) -> Prompt:
    """Put a prompt into a user's chat message."""
    return [{"role": "user", "content": prompt.text}]


def interleave(
    engine: EngineProtocol,
    prompts: Sequence[WorkloadPrompt],
    params: SamplingParams,
    *,
    concurrency: int,
    repeat: int,
    skip: set[tuple[str, int, int]],
    save: Save,
    advance: Advance,
    arrival: Arrival | None = None,
    gauge: Gauge | None = None,
) -> None:
    """
    Run groups of prompts, each as A, B, A, and save one record per request.

    Closed loop: a group is ``concurrency`` prompts that start together. Open loop: it is a block of arrivals, of which
    ``concurrency`` run at once and the others wait; each arm gets the same arrivals.

    A block in which a request failed is the last: no more can follow of it than that it failed, and where a server hangs each
    further request would wait until its deadline.

    Parameters
    ----------
    skip : set of (prompt id, repeat, concurrency)
        Recorded in all three blocks; a group is run again unless all of it is.
    save : callable
        Gets each record when its block has run.
    advance : callable
        Gets the number of prompts that were finished.
    arrival : Arrival or None
        None is closed loop. Open loop needs a `Queueing` engine.
    gauge : Gauge or None
        Reads memory and energy of each block.
    """
    size = arrival.requests_per_block if arrival else concurrency
    for number, start in enumerate(range(0, len(prompts), size)):
        group = prompts[start : start + size]
        if not all((prompt.id, repeat, concurrency) in skip for prompt in group):
            chats = [as_chat(prompt) for prompt in group]
            at = arrival.times_ms(repeat, number, len(group)) if arrival else [0.0] * len(group)
            for block, speculate in BLOCKS:
                if gauge:
                    gauge.start()
                before = read_host()
                began, idle_ms = engine.now_ms(), 0.0
                if arrival:
                    queueing = cast(Queueing, engine)
                    completions, idle_ms = serve(queueing, chats, params, at, speculate=speculate, most=concurrency)
                else:
                    completions = engine.generate(chats, params, speculate=speculate)
                seconds = (engine.now_ms() - began) / 1e3
                noise = between(before, read_host())
                reading = gauge.stop() if gauge else Reading()
                failed = False
                for index, (prompt, completion) in enumerate(zip(group, completions, strict=True)):
                    if (prompt.id, repeat, concurrency) not in skip:
                        failed |= completion.error is not None
                        save(
                            {
                                **record(prompt, completion, block, repeat, concurrency, seconds / len(group)),
                                "max_tokens": params.max_tokens,
                                "group": number,
                                "arrived_ms": at[index] if arrival else None,
                                "idle_seconds": idle_ms / 1e3 / len(group),
                                "peak_bytes": reading.peak_bytes,
                                "joules": None if reading.joules is None else reading.joules / len(group),
                                "noise": noise,
                            }
                        )
                if failed:
                    return
        advance(len(group))


def record(
    prompt: WorkloadPrompt, completion: Completion, block: str, repeat: int, concurrency: int, busy_seconds: float
) -> dict[str, Any]:
    """Return the line of ``requests.jsonl`` for one request."""
    return {
        "arm": "speculative" if block == "B" else "target_only",
        "block": block,
        "prompt_id": prompt.id,
        "category": prompt.category,
        "repeat": repeat,
        "concurrency": concurrency,
        "num_prompt_tokens": completion.num_prompt_tokens,
        "token_ids": list(completion.token_ids),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "error": completion.error,
        "latency_ms": completion.latency_ms,
        "busy_seconds": busy_seconds,
        "chunks": [[chunk.num_tokens, chunk.at_ms] for chunk in completion.chunks],
        "rounds": [asdict(item) for item in completion.rounds],
        "pass_widths": list(completion.pass_widths),
        "speculation": None if completion.rounds or not completion.speculation else asdict(completion.speculation),
        "retries": completion.retries,
    }
