"""The controls of a sampled check: defects planted in the engine under test, which must be found, and a variant that must not."""

from collections.abc import Callable
from typing import Any, Literal

from draftproof.engines.base import EngineProtocol
from draftproof.evidence import ControlResult
from draftproof.verify.collect import Advance, EngineFailed, Forbidden, Read, SampledDesign, collect
from draftproof.verify.controls import REQUEST_DEFECTS, RULE_DEFECTS
from draftproof.verify.log import TokenLog
from draftproof.verify.worker import Worker, open_worker

Kind = Literal["defect", "lossless"]
Judge = Callable[[TokenLog], float]


def names_of_controls(engine: EngineProtocol) -> list[tuple[str, Kind]]:
    """Return what `run_controls` runs: in the accept rule where the engine lets us, else in the request."""
    defects = RULE_DEFECTS if engine.capabilities.replaceable_rule else REQUEST_DEFECTS
    return [*((name, "defect") for name in defects), ("target-only", "lossless")]


def run_controls(
    engine: EngineProtocol,
    correct: Worker,
    design: SampledDesign,
    advance: Advance,
    judge: Judge,
    read: Read | None = None,
) -> list[ControlResult]:
    """
    Run each control once.

    Parameters
    ----------
    engine : EngineProtocol
    correct : Worker
        The one under test: what is not planted in the rule runs on it, since another one would measure its shapes anew.
    design : SampledDesign
    advance : callable
        Gets the number of sequences that were finished.
    judge : callable
        From a log to a p value; below ``design.alpha_fail`` the control is flagged.
    read : Read or None
        As for `collect`.
    """
    results: list[ControlResult] = []
    elsewhere = read is not None

    def run(name: str, kind: Kind, worker: Worker, **options: Any) -> None:
        seed = design.seed + len(results) + 1
        detail = f"{design.control_sequences} sequences, "
        try:
            p_value = judge(
                collect(
                    worker.engine,
                    design,
                    design.control_sequences,
                    seed,
                    advance,
                    drafts=worker.drafts,
                    read=read,
                    **options,
                )
            )
            flagged = p_value < design.alpha_fail
            detail += f"adjusted p = {p_value:.2g}"
        except Forbidden as defect:
            flagged = True
            detail += str(defect)
        except EngineFailed as failure:
            results.append(
                ControlResult(name=name, kind=kind, flagged=False, behaved=False, detail=detail + str(failure))
            )
            return
        behaved = flagged == (kind == "defect")
        results.append(ControlResult(name=name, kind=kind, flagged=flagged, behaved=behaved, detail=detail))

    if engine.capabilities.replaceable_rule:
        for name, rule in RULE_DEFECTS.items():
            run(name, "defect", open_worker(engine, design, lambda own, rule=rule: rule, judged_elsewhere=elsewhere))  # type: ignore[misc]
    else:
        for name, alter in REQUEST_DEFECTS.items():
            run(name, "defect", correct, alter=alter)
    run("target-only", "lossless", correct, speculate=False)
    return results
