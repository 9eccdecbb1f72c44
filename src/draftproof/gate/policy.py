"""The thresholds of a decision, fixed before the run. Knows nothing about how anything is measured."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from draftproof.errors import PlanError
from draftproof.gate.cost import OperatingCost
from draftproof.request import describe

OFF = "off"  # TOML has no null


def _unless_off(value: object) -> object:
    if isinstance(value, str) and value != OFF:
        raise ValueError(f'give a number, or "{OFF}"')
    return None if value == OFF else value


Limit = Annotated[float | None, BeforeValidator(_unless_off)]


class Policy(BaseModel):
    """
    What speculative decoding must reach to be adopted.

    A threshold of None ("off" in TOML) is not asked for, and has no row in the matrix.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    min_speedup: float = Field(default=1.05, gt=0)
    """The lower end of the speed-up's interval must reach it."""
    max_itl_ratio: Limit = Field(default=1.0, gt=0)
    """Speculative over target-only time per token (a request's mean ITL, which is its TPOT); the upper end of the interval
    must not be above it."""
    max_icl_ratio: Limit = Field(default=None, gt=0)
    """The same for a request's mean gap between chunks; chunks of several tokens come less often."""
    max_p95_latency_ratio: Limit = Field(default=None, gt=0)
    """The same for p95 latency; needs 72 prompts."""
    max_memory_ratio: Limit = Field(default=1.5, gt=0)
    """Bytes of weights and caches, speculative over target-only."""
    max_peak_memory_bytes: int | None = Field(default=None, gt=0)
    """The deployment's boundary, of the process's memory or on a GPU of what the speculative arm allocates; above it the verdict is
    ROLL_BACK."""
    min_accepted_per_round: Limit = Field(default=None, ge=0)
    """Accepted draft tokens per round in which something was proposed; the lower end of the interval must reach it."""
    min_claim: Literal["bitwise", "bitwise_same_batch", "up_to_ties"] = "bitwise_same_batch"
    """The weakest claim about greedy output that is good enough."""
    require_sampled: bool = True
    """Whether the sampled check must have passed."""
    max_aa_spread: float = Field(default=1.25, gt=1)
    """The target-only arm against itself may differ by this factor at most; a noisier run is INCONCLUSIVE. So is, whatever this is, a
    run whose noise could carry a ratio across its threshold (docs/metrics.md)."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Of every interval, two-sided."""
    cost: OperatingCost | None = None
    """What speculation costs to operate, and what it must therefore save; see below."""


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
    except UnicodeDecodeError as error:
        raise PlanError(f"policy {path} is not TOML: it is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"policy {path} is not TOML: {error}; docs/study.md shows its shape") from None
    beside = sorted(values.keys() & Policy.model_fields.keys()) if "policy" in values else []
    if beside:
        raise PlanError(
            f"policy {path}: {', '.join(beside)} would be ignored beside [policy]; move what counts into it"
        )
    try:
        return Policy.model_validate(values.get("policy", values))
    except ValidationError as error:
        raise PlanError(f"policy {path}: {describe(error, Policy)}; docs/study.md explains each key") from None
