"""The thresholds of a decision, fixed before the run. Knows nothing about how anything is measured."""

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftproof.errors import PlanError
from draftproof.request import describe


class Policy(BaseModel):
    """
    What speculative decoding must reach to be adopted.

    A threshold of None is not asked for, and the report says so.

    Attributes
    ----------
    min_speedup : float
        The lower end of the speed-up's interval must be above it.
    max_itl_ratio : float or None
        Speculative over target-only time per token; the upper end must be below it.
    max_p95_latency_ratio : float or None
        Speculative over target-only p95 latency. Needs 72 requests per arm.
    max_memory_ratio : float or None
        Bytes of weights and caches, speculative over target-only.
    max_peak_memory_bytes : int or None
        The deployment's boundary; above it the verdict is ROLL_BACK.
    min_accepted_per_round : float or None
        Accepted draft tokens per round in which something was proposed.
    min_claim : {"bitwise", "bitwise_same_batch", "up_to_ties"}
        The weakest claim about greedy output that is good enough.
    require_sampled : bool
        Whether the sampled check must have passed.
    max_aa_spread : float
        The target-only arm against itself may differ by this factor at most (1.10: ten percent); a noisier run is INCONCLUSIVE.
    confidence : float
        Of every interval, two-sided.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_speedup: float = Field(default=1.05, gt=0)
    max_itl_ratio: float | None = Field(default=1.0, gt=0)
    max_p95_latency_ratio: float | None = Field(default=None, gt=0)
    max_memory_ratio: float | None = Field(default=1.5, gt=0)
    max_peak_memory_bytes: int | None = Field(default=None, gt=0)
    min_accepted_per_round: float | None = Field(default=None, ge=0)
    min_claim: Literal["bitwise", "bitwise_same_batch", "up_to_ties"] = "bitwise_same_batch"
    require_sampled: bool = True
    max_aa_spread: float = Field(default=1.25, gt=1)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)


def load_policy(path: Path) -> Policy:
    """
    Read a policy from TOML: the keys above at top level, or in a table ``[policy]``.

    Raises
    ------
    PlanError
        The file is missing, is not TOML, or holds an unknown key or a value out of range.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"cannot read policy {path}: {error.strerror}; give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"policy {path} is not TOML: {error}") from None
    try:
        return Policy.model_validate(values.get("policy", values))
    except ValidationError as error:
        raise PlanError(f"policy {path}: {describe(error, Policy)}; docs/study.md explains each key") from None
