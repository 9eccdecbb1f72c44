"""A rung of the ladder: the configuration that one study measured, and the one step that it may take. Stores nothing."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftproof.errors import InputError
from draftproof.evidence import Evidence
from draftproof.request import describe

# what sets K; everything else of the tables is one for all rungs of a ladder
K_KEYS = ("num_speculative_tokens", "confidence_threshold")


class Rung(BaseModel):
    """A configuration, as the plan of its study gave it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    engine: dict[str, Any]
    """The plan's table: kind, target, dtype, device and the rest."""
    speculation: dict[str, Any]
    """The plan's table: proposer, draft, K, verification and the rest."""
    batch: int = Field(ge=1)
    """Requests that run at once."""
    claim: str
    """The strongest claim about greedy output that the study supports."""

    @property
    def is_dynamic(self) -> bool:
        """Whether the number of drafted tokens is decided from round to round: by a confidence threshold, or by no fixed K."""
        return not isinstance(self._k, int) or bool(self.speculation.get("confidence_threshold"))

    @property
    def label(self) -> str:
        """Batch and K in words; a server's K is in its command, and the plan's is not told to it."""
        if self.speculation.get("proposer") == "server":
            return f"batch {self.batch}, the server's K"
        up_to = f" up to {self._k}" if isinstance(self._k, int) else ""
        return f"batch {self.batch}, {f'dynamic K{up_to}' if self.is_dynamic else f'K {self._k}'}"

    @property
    def models(self) -> tuple[str, ...]:
        """Names or paths of the target and the draft; none where the engine has a table."""
        named = (self.engine.get("target"), self.speculation.get("draft"))
        return () if self.engine.get("kind") == "scripted" else tuple(str(name) for name in named if name)

    @property
    def key(self) -> str:
        """What two studies of one configuration share: all but what they found."""
        return json.dumps(self.model_dump(mode="json", exclude={"claim"}), sort_keys=True)

    @property
    def _k(self) -> Any:
        return self.speculation.get("num_speculative_tokens")


def read_rung(evidence: Evidence, concurrency: int | None) -> Rung:
    """
    Return the rung that a study measured.

    Parameters
    ----------
    concurrency : int or None
        Which of the study's; None if it has one only.

    Raises
    ------
    InputError
        The study measured another concurrency, or several and none is named, or its plan lacks what a rung needs.
    """
    plan = evidence.study.plan
    try:
        measured = [int(number) for number in plan["workload"]["concurrency"]]
        tables = {"engine": plan["engine"], "speculation": plan["speculation"]}
        for table, key in (("engine", "kind"), ("speculation", "num_speculative_tokens")):
            _ = tables[table][key]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"the plan of study '{evidence.study.name}' names no engine, K or concurrency, so it has no rung; "
            "give the evidence.json of a whole study"
        ) from None
    shown = ", ".join(map(str, measured))
    if concurrency is None and len(measured) > 1:
        raise InputError(f"the study measured concurrency {shown}, and a rung has one; choose it by --concurrency")
    batch = measured[0] if concurrency is None else concurrency
    if batch not in measured:
        raise InputError(f"the study did not measure concurrency {batch}; allowed: {shown}")
    claim = "none" if evidence.equivalence is None else evidence.equivalence.claim
    try:
        return Rung(**tables, batch=batch, claim=claim)
    except ValidationError as error:
        raise InputError(f"the plan of study '{evidence.study.name}' has no rung: {describe(error)}") from None


def misstep(below: Rung | None, rung: Rung) -> str | None:
    """
    Say why a rung may not stand directly above another one, or return None if it may.

    The steps are: fixed batch and K, then another batch with that K, then dynamic K at that batch.

    Parameters
    ----------
    below : Rung or None
        None is target-only.
    """
    if below is None:
        if rung.is_dynamic:
            return "dynamic K needs a verified rung with a fixed K and this batch below it; promote that first"
        return None
    changed = _changed(below, rung)
    if changed:
        return (
            f"it changes {', '.join(changed)}, and a rung changes the batch or K alone; roll back to target-only first, "
            "or climb another ladder (--ladder)"
        )
    if below.is_dynamic:
        return f"dynamic K is the last step, and {below.label} takes it; roll back to a fixed K first"
    if rung.is_dynamic:
        if rung.batch != below.batch:
            return f"it changes the batch and K at once; verify batch {rung.batch} with the fixed K first"
        return None
    if rung.speculation != below.speculation:
        return "it has another fixed K, which is chosen on the first rung; roll back to target-only first"
    return None


def _changed(below: Rung, rung: Rung) -> list[str]:
    """Names of the settings, other than batch and K, that two rungs do not share."""
    return [
        f"{table}.{key}"
        for table in ("engine", "speculation")
        for key in sorted({*getattr(below, table), *getattr(rung, table)} - set(K_KEYS))
        if getattr(below, table).get(key) != getattr(rung, table).get(key)
    ]
