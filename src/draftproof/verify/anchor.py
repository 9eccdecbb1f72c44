"""
Is the target-only arm the plain model's greedy output? Two arms that agree may share a defect.

A few target-only outputs are scored by the plain model over the whole sequence, without the engine's cache; each of their tokens
must be the plain model's best, or as close to it as rounding can explain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.engines.base import EngineProtocol

ANCHORS = 4
# unit roundoff
ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
FACTOR = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """
    What was seen.

    Attributes
    ----------
    tokens : int
    worst_regret : float, logits
        Largest distance of a token's logit below the plain model's largest one.
    bound : float, logits
        What rounding can explain: 16 times the unit roundoff of the engine's dtype times the largest logit seen.
    """

    tokens: int
    worst_regret: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether every token is within the bound."""
        return self.worst_regret <= self.bound


def anchor(engine: EngineProtocol, records: Sequence[dict[str, Any]], encode: dict[str, list[int]]) -> Anchor | None:
    """Score some greedy target-only outputs, spread over the workload; None where the engine cannot score."""
    outputs = [item for item in records if item["block"] == "A1" and item["repeat"] == 0 and item["token_ids"]]
    if not engine.capabilities.score or not outputs:
        return None
    worst, largest, tokens = 0.0, 0.0, 0
    for item in outputs[:: -(-len(outputs) // ANCHORS)]:
        logits = engine.score(encode[item["prompt_id"]], [item["token_ids"]])[0].astype(np.float64)
        chosen = logits[np.arange(len(logits)), item["token_ids"]]
        worst = max(worst, float((logits.max(axis=-1) - chosen).max()))
        largest = max(largest, float(np.abs(logits).max()))
        tokens += len(chosen)
    return Anchor(tokens=tokens, worst_regret=worst, bound=rounding_bound(engine, largest))


def rounding_bound(engine: EngineProtocol, largest: float) -> float:
    """Return what rounding can explain in an engine's dtype, in logits, given the largest logit seen."""
    return FACTOR * ROUNDOFF[engine.capabilities.details.get("dtype", "float32")] * largest
