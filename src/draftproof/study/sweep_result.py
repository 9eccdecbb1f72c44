"""What a sweep found: its arms, the one to study next at each batch, and the file that holds them. Runs nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from draftproof import evidence as ev
from draftproof.errors import InputError
from draftproof.study.arms import Arm

NOTE = (
    "A sweep explores and is no verdict. The best of several arms looks better than it is, since it was chosen for its luck too: "
    "run it as a study of its own, on prompts that the sweep has not seen."
)


class SweptArm(ev.Part):
    """One arm at one batch. ``speedup`` and ``aa`` are those of a study; their intervals do not know of the other arms."""

    proposer: str
    num_speculative_tokens: int
    batch: int
    prompts: int
    speedup: ev.Interval
    aa: ev.Interval
    acceptance_rate: float | None
    accepted_per_round: float | None
    dropped: str | None


class Recommended(ev.Part):
    """
    The fastest arm at one batch, or target-only where ``proposer`` is None.

    ``shown_faster``: its interval lies above 1. ``not_told_apart``: arms that were run to the end and whose interval overlaps.
    """

    batch: int
    proposer: str | None
    num_speculative_tokens: int | None
    speedup: ev.Interval
    shown_faster: bool
    not_told_apart: list[str]
    best_by_acceptance: str | None
    study_lines: str | None


class SweepResult(ev.Part):
    """The whole of ``sweep.json``."""

    schema_version: Literal[1] = 1
    draftproof_version: str
    study: ev.Study
    environment: dict[str, Any]
    rule: str
    arms: list[SweptArm]
    recommended: list[Recommended]
    note: str = NOTE


def recommend(swept: Sequence[SweptArm], arms: Sequence[Arm]) -> Recommended:
    """
    Name the arm of one batch with the largest speed-up among those that were run to the end.

    Parameters
    ----------
    swept : sequence of SweptArm, 1 or more
    arms : sequence of Arm
        In the same order.
    """
    batch = swept[0].batch
    pairs = list(zip(swept, arms, strict=True))
    accepted = [(item.acceptance_rate, arm.name) for item, arm in pairs if item.acceptance_rate is not None]
    by_acceptance = max(accepted, default=(0.0, None), key=lambda found: found[0])[1]
    left = [(item, arm) for item, arm in pairs if item.dropped is None and item.speedup.estimate is not None]
    best, arm = max(left, key=lambda pair: pair[0].speedup.estimate or 0.0, default=(None, None))
    if best is None or arm is None or (best.speedup.estimate or 0.0) <= 1.0:
        one = ev.Interval(estimate=1.0, low=None, high=None)
        return Recommended(
            batch=batch,
            proposer=None,
            num_speculative_tokens=None,
            speedup=one,
            shown_faster=False,
            not_told_apart=[],
            best_by_acceptance=by_acceptance,
            study_lines=None,
        )
    low = best.speedup.low
    near = [
        other.name
        for item, other in left
        if other is not arm and (low is None or item.speedup.high is None or item.speedup.high >= low)
    ]
    return Recommended(
        batch=batch,
        proposer=best.proposer,
        num_speculative_tokens=best.num_speculative_tokens,
        speedup=best.speedup,
        shown_faster=low is not None and low > 1.0,
        not_told_apart=near,
        best_by_acceptance=by_acceptance,
        study_lines=arm.lines(batch),
    )


def load_sweep(path: Path) -> SweepResult:
    """
    Read ``sweep.json``.

    Raises
    ------
    InputError
        It is not there, or not what this version writes.
    """
    try:
        return SweepResult.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(f"{path} is not a sweep of this version; remove it and go on with --resume") from None
