"""Evidence for rungs of a ladder, made by hand, and the machine that it was measured on."""

from pathlib import Path
from typing import Any

from draftproof import __version__
from draftproof.evidence import Decision, Equivalence, Evidence, Study
from draftproof.gate.events import Event
from draftproof.gate.ladder import Ladder
from draftproof.gate.promote import promote

HERE: dict[str, Any] = {
    "cpu_model": "a processor",
    "cpu_flags": ["avx2"],
    "python": "CPython 3.11",
    "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
    "load_average": [0.5, 0.5, 0.5],
}
NEW_TORCH = HERE | {"packages": {"torch": "2.14.0", "numpy": "2.4.6"}}


def make_evidence(
    *,
    k: Any = 5,
    batches: tuple[int, ...] = (1,),
    verdict: Any = "ADOPT",
    by_concurrency: dict[str, Any] | None = None,
    registered: bool = True,
    stopped: str | None = None,
    environment: dict[str, Any] = HERE,
    version: str = __version__,
    engine: dict[str, Any] | None = None,
    **speculation: Any,
) -> Evidence:
    """A passed study of a fixed K at batch 1, or what the arguments make of it."""
    plan = {
        "engine": {"kind": "native", "target": "a/target", "dtype": "bfloat16", "device": "cpu"} | (engine or {}),
        "speculation": {
            "proposer": "draft-model",
            "draft": "a/draft",
            "num_speculative_tokens": k,
            "confidence_threshold": 0.0,
            "verification": "rejection",
        }
        | speculation,
        "workload": {"concurrency": list(batches)},
    }
    return Evidence(
        draftproof_version=version,
        study=Study(name="a study", hash="ab" * 32, locked_at="2026-11-30T06:00:00+00:00", plan=plan),
        environment=environment,
        check=[],
        arms=None,
        equivalence=Equivalence(greedy=None, sampled=None, controls=[], claim="bitwise", claim_basis="by hand"),
        comparison=None,
        decision=Decision(
            verdict=verdict,
            reasons=[],
            matrix=[],
            by_category={},
            by_concurrency={str(batch): verdict for batch in batches} if by_concurrency is None else by_concurrency,
            registered=registered,
        ),
        limits=[],
        stopped=stopped,
    )


def climb(
    path: Path, name: str, *, here: dict[str, Any] = HERE, reason: str | None = None, **study: Any
) -> tuple[Ladder, Event]:
    """Promote a study; ``name`` tells its evidence file from others."""
    return promote(path, make_evidence(**study), f"sha256 of {name}", here, reason=reason)
