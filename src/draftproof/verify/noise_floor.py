"""
How much do the target's own logits change with the shape of its pass? Only that much may excuse a greedy difference.

Outputs of the target-only arm are scored again in single-token passes, in blocks of K + 1 and in one pass of the whole sequence.
Where rounding is all that differs, the gaps between likely tokens move by the arithmetic's own noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.engines.base import EngineProtocol

Logits = npt.NDArray[np.float32]

# A position costs a single-token pass, so 2,000 would cost as much as a study's whole target-only arm. 512 give 15,360 changes
# of gaps, of which 15 lie beyond the 99.9th percentile.
POSITIONS = 512
TOP = 5
PERCENTILE = 99.9
FACTOR = 2.0
ULPS = 2
# bits of the significand, and what no noise may excuse, in logits
PRECISION = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
CAP = {"bfloat16": 0.5, "float16": 0.5, "float32": 1e-3, "float64": 1e-9}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """
    What was seen.

    Attributes
    ----------
    noise : float, logits, or None
        99.9th percentile of the changes of gaps. None: the engine cannot score in given passes, so it was not measured.
    floor : float, logits
        Two units in the last place of the largest logit.
    cap : float, logits
    positions : int
        Scored in every shape.
    flips : int
        Positions at which the best token is another one in a block than alone: the target against itself.
    """

    noise: float | None
    floor: float
    cap: float
    positions: int
    flips: int

    @property
    def tau(self) -> float:
        """The regret that rounding can explain: twice the noise, at least the floor, at most the cap (also if not measured)."""
        return self.cap if self.noise is None else min(self.cap, max(FACTOR * self.noise, self.floor))

    @property
    def too_large(self) -> bool:
        """Whether the noise is above what noise may excuse."""
        return self.noise is not None and self.noise > self.cap


def dtype_of(engine: EngineProtocol) -> str:
    """Return the dtype of an engine's passes; one that does not say is held to float32."""
    return str(engine.capabilities.details.get("dtype", "float32"))


def ulp(value: float, dtype: str) -> float:
    """Return the distance of neighbouring numbers of a dtype at a value: 0.125 for bfloat16 between 16 and 32."""
    return 0.0 if value == 0 else float(2.0 ** (np.floor(np.log2(abs(value))) + 1 - PRECISION[dtype]))


def measure_noise(
    engine: EngineProtocol, records: Sequence[dict[str, Any]], encode: dict[str, list[int]]
) -> NoiseFloor:
    """
    Score target-only outputs of the first repeat in several pass shapes, as many tokens of each as give `POSITIONS` in all.

    Parameters
    ----------
    records : sequence of request records
    encode : mapping of prompt id to the prompt's token ids
    """
    able, dtype = engine.capabilities, dtype_of(engine)
    outputs = [item for item in records if item["block"] == "A1" and item["repeat"] == 0 and item["token_ids"]]
    budget = -(-POSITIONS // max(1, len(outputs)))
    block = (able.num_speculative_tokens or 1) + 1
    changes, largest, positions, flips = [np.zeros(0)], 0.0, 0, 0
    for item in outputs[:POSITIONS]:
        prompt, tokens = encode[item["prompt_id"]], item["token_ids"][:budget]
        if not (able.score_passes and able.score):
            continue
        alone, blocks = (_in_passes(engine, prompt, tokens, width) for width in (1, block))
        whole = engine.score(prompt, [tokens])[0]
        changes += [gap_changes(alone, blocks), gap_changes(alone, whole), gap_changes(blocks, whole)]
        flips += int((alone.argmax(-1) != blocks.argmax(-1)).sum())
        positions += len(tokens)
        largest = max(largest, float(np.abs(alone).max()))
    seen = np.concatenate(changes)
    return NoiseFloor(
        noise=float(np.percentile(seen, PERCENTILE)) if len(seen) else None,
        floor=ULPS * ulp(largest, dtype),
        cap=CAP[dtype],
        positions=positions,
        flips=flips,
    )


def gap_changes(one: Logits, other: Logits) -> npt.NDArray[np.float64]:
    """
    Return how much the gaps between the five best tokens differ between two scorings, each pair once, in logits.

    Parameters
    ----------
    one, other : ndarray, shape (T, V)
        The best are those of ``one``.
    """
    best = np.argsort(one, axis=-1)[:, -TOP:]
    shift = (np.take_along_axis(other, best, -1) - np.take_along_axis(one, best, -1)).astype(np.float64)
    left, right = np.triu_indices(best.shape[1], 1)
    changes: npt.NDArray[np.float64] = np.abs(shift[:, left] - shift[:, right]).ravel()
    return changes


def _in_passes(engine: EngineProtocol, prompt: Sequence[int], tokens: Sequence[int], width: int) -> Logits:
    starts = range(0, len(tokens), width)
    passes = [(width, min(width, len(tokens) - start)) for start in starts]
    return np.concatenate(list(engine.score_passes(prompt, tokens, passes)))
