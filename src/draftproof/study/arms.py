"""The arms of a sweep: which proposers, how many drafted tokens, how many requests at a time. Runs nothing."""

import json
from dataclasses import dataclass
from itertools import product
from typing import Any

from pydantic import Field, ValidationError, field_validator

from draftproof.errors import PlanError
from draftproof.request import describe
from draftproof.study.plan import LOOKUP, WITH_DRAFT, Plan, SpeculationPlan, Table, parse_plan


class SweepTable(Table):
    """What is swept; each combination is an arm."""

    num_speculative_tokens: tuple[int, ...] = Field(min_length=1)
    proposers: tuple[str, ...] = Field(min_length=1)
    batch: tuple[int, ...] = Field(min_length=1)

    @field_validator("num_speculative_tokens", "proposers", "batch")
    @classmethod
    def _different(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(value)) < len(value):
            raise ValueError("one is named twice; name each once")
        return value


class SweepPlan(Plan):
    """A study's plan and what is swept over it; its own speculation and concurrency are replaced by the arms'."""

    sweep: SweepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to speculate; ``plan`` is the study with it."""

    proposer: str
    num_speculative_tokens: int
    plan: Plan

    @property
    def name(self) -> str:
        """As in ``prompt-lookup k=4``."""
        return f"{self.proposer} k={self.num_speculative_tokens}"

    def lines(self, batch: int) -> str:
        """Return the tables of a study file that choose this arm."""
        chosen = self.plan.speculation.model_dump(mode="json")
        defaults = {name: field.default for name, field in SpeculationPlan.model_fields.items()}
        always = ("proposer", "num_speculative_tokens")
        told = [
            f"{key} = {json.dumps(value)}" for key, value in chosen.items() if key in always or value != defaults[key]
        ]
        return "\n".join(["[speculation]", *told, "", "[workload]", f"concurrency = [{batch}]"])


def sweep_plan(
    plan: Plan, num_speculative_tokens: tuple[int, ...], proposers: tuple[str, ...], batch: tuple[int, ...]
) -> SweepPlan:
    """
    Add to a study what is swept.

    Parameters
    ----------
    plan : Plan
    num_speculative_tokens, batch : tuple of int
    proposers : tuple of str
        Each as a study names it, with what it needs behind a colon: "prompt-lookup", "early-exit:LAYER", "draft-model:NAME",
        "cross-tokenizer:NAME". Empty: the study's own.

    Raises
    ------
    PlanError
        A value is out of its range, a proposer is unknown or does not run on the study's engine, or that is a server, whose
        speculation is chosen when it is started.
    """
    if plan.engine.kind == "openai_http":
        raise PlanError(
            "sweep: k and proposer of a server are chosen when it is started; run a study of each server, and hold them against "
            "each other by draftproof compare"
        )
    table = {"num_speculative_tokens": num_speculative_tokens, "proposers": proposers or (_own(plan),), "batch": batch}
    values = plan.model_dump(mode="json")
    values["workload"]["concurrency"] = list(batch)
    try:
        found = SweepPlan.model_validate({**values, "sweep": table})
    except ValidationError as error:
        raise PlanError(f"sweep: {describe(error)}; --help lists the options") from None
    arms_of(found)
    return found


def arms_of(plan: SweepPlan) -> list[Arm]:
    """
    Return every combination of proposer and k.

    Raises
    ------
    PlanError
        One of them is no valid study.
    """
    return [
        Arm(proposer=proposer, num_speculative_tokens=k, plan=_with_arm(plan, proposer, k))
        for proposer, k in product(plan.sweep.proposers, plan.sweep.num_speculative_tokens)
    ]


def _own(plan: Plan) -> str:
    table = plan.speculation
    detail = table.draft or table.exit_layer
    return f"{table.proposer}:{detail}" if detail else table.proposer


def _with_arm(plan: SweepPlan, proposer: str, k: int) -> Plan:
    name, _, detail = proposer.partition(":")
    values = plan.model_dump(mode="json", exclude={"sweep"})
    table = values["speculation"] | {"proposer": name, "draft": None, "exit_layer": None, "num_speculative_tokens": k}
    if name in WITH_DRAFT:
        table["draft"] = detail or plan.speculation.draft
    elif name == "early-exit":
        table["exit_layer"] = int(detail) if detail.isdigit() else detail or plan.speculation.exit_layer
    elif detail:
        raise PlanError(f"sweep: proposer '{proposer}': nothing goes behind the colon of '{name}'; name it alone")
    # what only the study's own proposer has a meaning for
    if name == "prompt-lookup":
        table["confidence_threshold"] = 0.0
    else:
        table = {key: value for key, value in table.items() if key not in LOOKUP}
    return parse_plan({**values, "speculation": table}, f"with {proposer}, k = {k}")
