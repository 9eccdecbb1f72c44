"""The arms in three long blocks, for servers of which only one fits into memory. Judges nothing."""

from collections.abc import Sequence

from draftproof.engines.base import EngineProtocol
from draftproof.measure.noise import between, read_host
from draftproof.measure.run import BLOCKS, Advance, Save, as_chat, record
from draftproof.request import SamplingParams
from draftproof.workload.prompts import WorkloadPrompt


def alternate(
    engine: EngineProtocol,
    prompts: Sequence[WorkloadPrompt],
    params: SamplingParams,
    *,
    concurrency: int,
    repeat: int,
    skip: set[tuple[str, int, int]],
    save: Save,
    advance: Advance,
) -> None:
    """
    Run all prompts target-only, then speculative, then target-only again, in groups of ``concurrency``.

    A slow drift of the machine reaches the arms differently, unlike where they take turns prompt by prompt; the two
    target-only blocks, one on each side, show it as noise. A group in which a request failed is the last. The parameters are
    those of `measure.run.interleave`, without arrival and gauge: servers take no arrival, and their memory is not ours.
    """
    if all((prompt.id, repeat, concurrency) in skip for prompt in prompts):
        advance(len(prompts))
        return
    for block, speculate in BLOCKS:
        for number, start in enumerate(range(0, len(prompts), concurrency)):
            group = prompts[start : start + concurrency]
            before, began = read_host(), engine.now_ms()
            completions = engine.generate([as_chat(prompt) for prompt in group], params, speculate=speculate)
            seconds, noise = (engine.now_ms() - began) / 1e3 / len(group), between(before, read_host())
            failed = False
            for prompt, completion in zip(group, completions, strict=True):
                if (prompt.id, repeat, concurrency) not in skip:
                    failed |= completion.error is not None
                    told = record(prompt, completion, block, repeat, concurrency, seconds)
                    save({**told, "max_tokens": params.max_tokens, "group": number, "noise": noise})
            if failed:
                return
            if block == BLOCKS[-1][0]:
                advance(len(group))
