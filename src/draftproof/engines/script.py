"""What the scripted engine is told to do. Imports no torch, so that a study file is read at once."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from draftproof.errors import InputError

Defect = Literal["none", "block", "not-finite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """
    What the fake does.

    Attributes
    ----------
    seed : int, 0 or more
        Of the table and of the clock's noise.
    spread : float, logits
        Standard deviation of the table's logits.
    copying : float, logits
        Extra weight of the token that followed the same token before; prompt lookup lives on it.
    plain_ms, block_ms, prefill_ms : float, ms
        Time of a target pass with nothing drafted, of a pass with drafted tokens, and of a prompt token.
    position_ms, draft_ms : float, ms, 0 or more
        What each drafted token of each request adds to a pass, so that drafting costs more in a larger batch; and what it
        takes to propose it.
    noise : float, 0 or more
        Standard deviation of the logarithm of each time.
    drift : float, 0 or more
        Share by which every time grows in each minute of the clock, as on a machine that warms up.
    target_bytes, draft_bytes : int, 1 and 0 or more
        Memory that the fake says it holds for the target, and besides it for speculation.
    defect : {"none", "block", "not-finite"}
        "block": in a pass with drafted tokens some rows' laws are wrong. "not-finite": such a pass gives NaN, and so
        does the plain pass after it, once per request.
    """

    seed: int = 0
    spread: float = 0.6
    copying: float = 2.5
    plain_ms: float = 40.0
    block_ms: float = 44.0
    prefill_ms: float = 0.8
    position_ms: float = 0.0
    draft_ms: float = 0.0
    noise: float = 0.02
    drift: float = 0.0
    target_bytes: int = 2**28
    draft_bytes: int = 0
    defect: Defect = "none"

    def __post_init__(self) -> None:
        least = {"seed": 0, "spread": 0, "copying": 0, "noise": 0, "drift": 0, "draft_bytes": 0, "target_bytes": 1}
        least |= {"position_ms": 0, "draft_ms": 0}
        for name, value in least.items():
            if not value <= getattr(self, name) < math.inf:
                raise InputError(f"script.{name} = {getattr(self, name)}: allowed {value} or more")
        if self.defect not in get_args(Defect):
            raise InputError(f"script.defect = {self.defect!r}: allowed {', '.join(get_args(Defect))}")
        for name in ("plain_ms", "block_ms", "prefill_ms"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"script.{name} = {getattr(self, name)}: allowed above 0")
