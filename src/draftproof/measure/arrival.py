"""Open-loop load: requests arrive when they arrive, whether or not the engine keeps up. Judges nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.engines.base import Queueing
from draftproof.records import Completion
from draftproof.request import Prompt, SamplingParams

RESOLUTION_MS = 1e-3  # a clock may not reach a time to the last bit


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """
    A Poisson process, in blocks that each begin with an idle engine.

    Attributes
    ----------
    rate_per_s : float, above 0
    seed : int
        Of the gaps.
    requests_per_block : int
        Arrivals after which the other arm has its turn, with the same gaps.
    """

    rate_per_s: float
    seed: int = 0
    requests_per_block: int = 16

    def times_ms(self, repeat: int, block: int, count: int) -> list[float]:
        """Return when the requests of a block arrive, ms after its start; the same each time it is asked for."""
        generator = np.random.default_rng((self.seed, repeat, block))
        gaps = generator.exponential(1e3 / self.rate_per_s, size=count)
        return [float(at) for at in gaps.cumsum()]


def serve(
    engine: Queueing,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    arrivals_ms: Sequence[float],
    *,
    speculate: bool,
    most: int,
) -> tuple[list[Completion], float]:
    """
    Give an idle engine each prompt at its time, and run until all have ended.

    Parameters
    ----------
    arrivals_ms : sequence of float, ascending
        After the call.
    most : int
        Requests that run at once; what arrives beyond them waits, and its times count from the arrival.

    Returns
    -------
    list of Completion, float
        In the order of the prompts, and the ms in which nothing ran.
    """
    began, idle_ms = engine.now_ms(), 0.0
    index_of: dict[int, int] = {}
    done: dict[int, Completion] = {}
    given = 0
    try:
        while len(done) < len(prompts):
            now = engine.now_ms() - began
            while given < len(prompts) and arrivals_ms[given] <= now + RESOLUTION_MS and engine.num_unfinished < most:
                arrived = began + arrivals_ms[given]
                name = engine.submit(prompts[given], params, speculate=speculate, arrived_ms=arrived)
                index_of[name] = given
                given += 1
            if engine.num_unfinished:
                for name, completion in engine.step():
                    done[index_of.pop(name)] = completion
            else:
                engine.wait(arrivals_ms[given] - now)
                idle_ms += engine.now_ms() - began - now
    except BaseException:
        for name in index_of:
            engine.cancel(name)
        raise
    return [done[index] for index in range(len(prompts))], idle_ms
