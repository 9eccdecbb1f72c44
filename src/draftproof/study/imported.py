"""From two result files of a load generator to evidence: performance only, so that no verdict but INCONCLUSIVE can follow."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftproof import __version__
from draftproof import evidence as ev
from draftproof.engines.digest import digest_of, sha256
from draftproof.errors import InputError
from draftproof.gate.decide import decide
from draftproof.gate.policy import Policy
from draftproof.measure.imported import Imported, read_results

LIMITS = (
    "The output was not compared: a load generator's file has times, and no proof that the output is the target's.",
    "The arms are two runs that are not paired prompt by prompt, and target-only was not run twice: there is no interval, "
    "no noise, and so no speed-up.",
    "No threshold was registered before these runs.",
)


def import_results(target_only: Path, speculative: Path, policy: Policy) -> ev.Evidence:
    """
    Return the evidence that two files hold.

    Parameters
    ----------
    target_only, speculative : Path
        Of one tool, as `measure.imported.read_results` takes them.
    policy : Policy

    Raises
    ------
    InputError
        A file cannot be used, the files are of two tools, or the target-only one has drafted.
    """
    plain, drafting = read_results(target_only), read_results(speculative)
    if plain.format != drafting.format:
        raise InputError(
            f"{target_only} is of {plain.format} and {speculative} of {drafting.format}, which measure differently; "
            "give two files of one tool"
        )
    if plain.arm.acceptance is not None:
        raise InputError(
            f"{target_only} reports drafted tokens, so it is not target-only; the target-only file comes first"
        )
    arms = ev.Arms(target_only=plain.arm, speculative=drafting.arm)
    files = {
        name: {"sha256": sha256(path), "conditions": run.conditions}
        for name, path, run in (("target_only", target_only, plain), ("speculative", speculative, drafting))
    }
    plan: dict[str, Any] = {"imported": {"format": plain.format, **files}}
    return ev.Evidence(
        draftproof_version=__version__,
        study=ev.Study(
            name=f"imported from {plain.format}",
            hash=digest_of(plan),
            locked_at=datetime.now(UTC).isoformat(timespec="seconds"),
            plan=plan,
        ),
        environment={"measurement": {"engine": plain.format}},
        check=_check(plain, drafting),
        arms=arms,
        equivalence=None,
        comparison=None,
        decision=decide(arms=arms, equivalence=None, comparison=None, policy=policy, registered=False),
        limits=[*LIMITS, *_missing(plain, drafting)],
    )


def _check(plain: Imported, drafting: Imported) -> list[dict[str, str]]:
    names = dict.fromkeys([*plain.conditions, *drafting.conditions])
    differ = [
        f"{name}: {plain.conditions.get(name)} and {drafting.conditions.get(name)}"
        for name in names
        if plain.conditions.get(name) != drafting.conditions.get(name)
    ]
    return [
        {
            "finding": "conditions of the two runs",
            "result": "; ".join(differ) if differ else "the same as far as the files say",
            "why": "what differs besides speculation is in every ratio"
            if differ
            else ", ".join(names) or "none are in the files",
        },
        {
            "finding": "failed requests",
            "result": f"target-only {_told(plain.failed)}, speculative {_told(drafting.failed)}",
            "why": "they are in no time",
        },
        {
            "finding": "mean latency, target-only over speculative",
            "result": _ratio(plain.arm.latency.mean, drafting.arm.latency.mean),
            "why": "two runs without an interval: no speed-up is claimed",
        },
        {
            "finding": "tokens per second, speculative over target-only",
            "result": _ratio(drafting.arm.throughput.tokens_per_second, plain.arm.throughput.tokens_per_second),
            "why": "two runs without an interval: no speed-up is claimed",
        },
    ]


def _missing(plain: Imported, drafting: Imported) -> list[str]:
    return [
        f"The {name} file lacks, or has of too few requests: {', '.join(run.missing)}."
        for name, run in (("target-only", plain), ("speculative", drafting))
    ] + (["The speculative file has no counts of drafted tokens."] if drafting.arm.acceptance is None else [])


def _ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.3f}x" if one and other else "not in the files"


def _told(count: int | None) -> str:
    return "unknown" if count is None else str(count)
