"""One TOML file says what a study does. Knows the file's shape; runs nothing."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from draftproof.engines.scripted import Script
from draftproof.errors import PlanError
from draftproof.gate.policy import Policy
from draftproof.request import describe

MEANINGLESS = {
    "native": {"script"},
    "hf": {"script", "numerics"},
    "scripted": {"target", "dtype", "device", "threads", "numerics"},
}
WITH_DRAFT = ("draft-model", "cross-tokenizer")


class Table(BaseModel):
    """A table of the study file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EnginePlan(Table):
    """The engine that runs both arms."""

    kind: Literal["native", "hf", "scripted"] = "native"
    target: str = "smollm2-135m-instruct"
    dtype: Literal["bfloat16", "float32", "float64"] = "bfloat16"
    device: str = "cpu"
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    max_len: Annotated[int, Field(ge=2)] | Literal["auto"] = "auto"
    numerics: Literal["bitwise", "fast"] = "bitwise"
    script: Script = Script()

    @model_validator(mode="after")
    def _means_something(self) -> "EnginePlan":
        for name in sorted(MEANINGLESS[self.kind]):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"'{name}' has no meaning for kind '{self.kind}'; remove it")
        return self


class SpeculationPlan(Table):
    """How tokens are proposed."""

    proposer: Literal["prompt-lookup", "draft-model", "cross-tokenizer", "early-exit"] = "prompt-lookup"
    draft: str | None = None
    exit_layer: int | None = Field(default=None, ge=1)
    confidence_threshold: float = Field(default=0.0, ge=0, lt=1)
    num_speculative_tokens: int = Field(default=5, ge=1, le=15)
    prompt_lookup_min: int = Field(default=1, ge=1)
    prompt_lookup_max: int = Field(default=4, ge=1)
    verification: Literal["rejection", "coupled"] = "rejection"

    @model_validator(mode="after")
    def _consistent(self) -> "SpeculationPlan":
        if self.proposer in WITH_DRAFT and not self.draft:
            raise ValueError(f"proposer '{self.proposer}' needs 'draft', the name or path of a model")
        if self.proposer not in WITH_DRAFT and self.draft:
            raise ValueError(
                "'draft' is only for proposer 'draft-model' or 'cross-tokenizer'; remove it or change the proposer"
            )
        if (self.proposer == "early-exit") != (self.exit_layer is not None):
            raise ValueError("'exit_layer' goes with proposer 'early-exit', and only with it")
        if self.proposer == "prompt-lookup" and self.confidence_threshold:
            raise ValueError("'confidence_threshold' needs a proposer with probabilities, and prompt lookup has none")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("'prompt_lookup_min' is above 'prompt_lookup_max'")
        return self


class WorkloadPlan(Table):
    """What is asked, in which order, and how many at once."""

    prompts: str = "demo"
    limit: int | None = Field(default=None, ge=1)
    max_tokens: int = Field(default=48, ge=1)
    concurrency: tuple[int, ...] = (1,)
    seed: int = Field(default=0, ge=0)

    @field_validator("concurrency")
    @classmethod
    def _batches(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1 or len(set(value)) != len(value):
            raise ValueError("give one or more different whole numbers from 1 up")
        return value


class SamplingPlan(Table):
    """The sampling of the measured runs; 0 is greedy."""

    temperature: float = Field(default=0.0, ge=0, le=100)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    ignore_eos: bool = False


class MeasurePlan(Table):
    """Warm-up, repeats and order."""

    warmup_requests: int = Field(default=2, ge=0)
    repeats: int = Field(default=1, ge=1)
    repeatability_prompts: int = Field(default=3, ge=1)


class SampledPlan(Table):
    """The sampled check: fixed input, small allowed vocabulary, exact target probabilities."""

    enabled: bool = True
    prompt: str = "red green blue red green red blue blue green red blue green red green blue green"
    words: tuple[str, ...] = (" red", " green", " blue", " black", " white", " yellow", " brown", " orange")
    temperature: float = Field(default=1.0, gt=0, le=100)
    sequences: int = Field(default=800, ge=100)
    tokens: int = Field(default=8, ge=2, le=64)
    batch: int = Field(default=32, ge=1)
    delta: float = Field(default=0.05, gt=0, lt=1)
    delta_stratum: float = Field(default=0.2, gt=0, lt=1)
    control_sequences: int = Field(default=120, ge=50)
    alpha_fail: float = Field(default=1e-3, gt=0, lt=0.5)
    alpha_eq: float = Field(default=0.05, gt=0, lt=0.5)
    min_stratum_tokens: int = Field(default=200, ge=1)
    seed: int = Field(default=1, ge=0)


class Plan(Table):
    """A whole study."""

    schema_version: Literal[1] = 1
    name: str = Field(min_length=1)
    engine: EnginePlan = EnginePlan()
    speculation: SpeculationPlan = SpeculationPlan()
    workload: WorkloadPlan = WorkloadPlan()
    sampling: SamplingPlan = SamplingPlan()
    measure: MeasurePlan = MeasurePlan()
    sampled: SampledPlan = SampledPlan()
    policy: Policy = Policy()

    @model_validator(mode="after")
    def _fits_the_engine(self) -> "Plan":
        if self.engine.kind != "native" and self.speculation.proposer in WITH_DRAFT:
            raise ValueError(
                f"proposer '{self.speculation.proposer}' does not run on engine '{self.engine.kind}'; allowed: prompt-lookup"
            )
        if self.engine.kind != "native" and self.speculation.verification == "coupled":
            raise ValueError(f"verification 'coupled' does not run on engine '{self.engine.kind}'; allowed: rejection")
        if self.engine.kind == "hf" and self.speculation.prompt_lookup_min != 1:
            raise ValueError("engine 'hf' looks up n-grams from 1 token on; set prompt_lookup_min = 1")
        if self.engine.kind == "hf" and max(self.workload.concurrency) > 1:
            raise ValueError("engine 'hf' runs one request at a time; set concurrency = [1]")
        if self.engine.kind == "hf" and self.policy.min_claim != "up_to_ties":
            raise ValueError(
                'engine \'hf\' can claim "up_to_ties" at most; set min_claim = "up_to_ties" under [policy]'
            )
        return self


def parse_plan(values: dict[str, Any], where: str) -> Plan:
    """
    Make a plan of a study file's values.

    Raises
    ------
    PlanError
        A key is unknown, missing or out of range; the message names each.
    """
    try:
        return Plan.model_validate(values)
    except ValidationError as error:
        raise PlanError(f"study {where}: {describe(error)}; docs/quickstart.md lists the keys") from None


def load_plan(path: Path) -> Plan:
    """
    Read a study file.

    Raises
    ------
    PlanError
        The file is missing, is not TOML, or is not a valid plan.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"cannot read study {path}: {error.strerror}; give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"study {path} is not TOML: {error}") from None
    return parse_plan(values, str(path))
