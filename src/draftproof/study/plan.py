"""What a study does, table by table, as its file says it. Knows what fits together; reads no file and runs nothing."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, field_validator, model_validator

from draftproof.engines.launch import Launch
from draftproof.engines.script import Script
from draftproof.errors import InputError, PlanError
from draftproof.gate.policy import Policy
from draftproof.request import SamplingParams, describe

SERVED = {"base_url", "speculative_base_url", "server", "timeout_s", "launch"}
MEANINGLESS = {
    "native": {"script", *SERVED},
    "hf": {"script", "numerics", *SERVED},
    "scripted": {"target", "dtype", "device", "threads", "numerics", *SERVED},
    "openai_http": {"script", "dtype", "device", "threads", "numerics"},
}
# engines that do not run every proposer
PROPOSERS: dict[str, tuple[str, ...]] = {
    "native": ("prompt-lookup", "draft-model", "cross-tokenizer", "early-exit"),
    "hf": ("prompt-lookup", "draft-model", "cross-tokenizer", "early-exit"),
    "scripted": ("prompt-lookup",),
    "openai_http": ("server",),
}
WITH_DRAFT = ("draft-model", "cross-tokenizer")
LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")


class Table(BaseModel):
    """A table of the study file; unknown keys are refused, and so are texts and truth values for numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class LaunchPlan(Table):
    """Commands that start a server for each arm; the study stops what it started."""

    # strict, a list is not taken for a tuple
    model_config = ConfigDict(strict=False)

    target_only: tuple[str, ...]
    """Program and arguments; "{port}" stands for a free port, "{host}" for 127.0.0.1, the only address allowed, and "{target}" for
    the folder of the engine's `target`, converted if need be."""
    speculative: tuple[str, ...]
    """The same with speculation turned on."""
    env: dict[str, str] = {}
    """Added to the environment of both."""
    ready_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Until when a server must answer, in s."""
    together: bool = True
    """Whether both fit into memory at once; otherwise they take turns, and each arm runs all prompts before the next."""

    @model_validator(mode="after")
    def _takes_a_port(self) -> "LaunchPlan":
        Launch(**self.model_dump())
        return self


class EnginePlan(Table):
    """The engine that runs both arms."""

    # strict, a table is not taken for a dataclass
    model_config = ConfigDict(strict=False)

    kind: Literal["native", "hf", "scripted", "openai_http"] = "native"
    """Ours, transformers' own generate, a fake on a virtual clock, or servers (vLLM, SGLang, TGI, llama.cpp, others)."""
    target: str = "smollm2-135m-instruct"
    """The demo model's name, a folder with safetensors, a .gguf file, or a hub name; of servers, the model whose tokenizer is used."""
    dtype: Literal["bfloat16", "float32", "float64"] = "bfloat16"
    """Of weights, caches and passes."""
    device: str = "cpu"
    """As torch names it."""
    threads: Annotated[StrictInt, Field(ge=1)] | Literal["auto"] = "auto"
    """CPU threads of a pass; "auto" is torch's choice."""
    max_len: Annotated[StrictInt, Field(ge=2)] | Literal["auto"] = "auto"
    """Longest sequence in tokens, prompt included; "auto" is 1024, or the model's limit if that is lower."""
    numerics: Literal["bitwise", "fast"] = "bitwise"
    """"bitwise" uses only pass shapes that give the same bits; "fast" any, and claims identity up to ties."""
    script: Script = Script()
    """What the fake does; see below."""
    base_url: str | None = None
    """Root of a running target-only server, such as "http://127.0.0.1:8000"."""
    speculative_base_url: str | None = None
    """Root of a running speculative server; only a server that can turn speculation off for one request does without."""
    server: Literal["auto", "vllm", "sglang", "tgi", "llamacpp", "openai"] = "auto"
    """Which software the servers are; "auto" asks them."""
    timeout_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """For each request to a server, in s, retries included."""
    launch: LaunchPlan | None = None
    """Servers to start, in place of addresses; see below."""

    @model_validator(mode="after")
    def _reaches_servers(self) -> "EnginePlan":
        if self.kind == "openai_http" and (self.base_url is None) == (self.launch is None):
            raise ValueError("kind 'openai_http' needs 'base_url', or a table [engine.launch], and not both")
        if self.speculative_base_url is not None and self.base_url is None:
            raise ValueError("'speculative_base_url' goes with 'base_url'; add that, or remove it")
        for name in ("base_url", "speculative_base_url"):
            url = getattr(self, name)
            if url is not None and not url.startswith(("http://", "https://")):
                raise ValueError(f"'{name}' = {url!r}: give an address such as 'http://127.0.0.1:8000'")
        return self

    @model_validator(mode="after")
    def _means_something(self) -> "EnginePlan":
        for name in sorted(MEANINGLESS[self.kind]):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"'{name}' has no meaning for kind '{self.kind}'; remove it")
        return self


class SpeculationPlan(Table):
    """How tokens are proposed."""

    proposer: Literal["prompt-lookup", "draft-model", "cross-tokenizer", "early-exit", "server"] = "prompt-lookup"
    """Where drafted tokens come from; "server": as the server was started, and then nothing else here but K has a meaning."""
    draft: str | None = None
    """The draft model, named as a target is."""
    exit_layer: int | None = Field(default=None, ge=1)
    """Layers of the target that early exit drafts with."""
    confidence_threshold: float = Field(default=0.0, ge=0, lt=1)
    """Stop drafting once the draft's largest probability is below this."""
    num_speculative_tokens: int = Field(default=5, ge=1, le=15)
    """K, the most tokens drafted per round."""
    prompt_lookup_min: int = Field(default=1, ge=1)
    """Shortest n-gram that prompt lookup matches."""
    prompt_lookup_max: int = Field(default=4, ge=1)
    """Longest n-gram that prompt lookup matches."""
    verification: Literal["rejection", "coupled"] = "rejection"
    """"rejection" keeps the law; "coupled" also gives the same tokens for a seed with speculation on or off."""

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
        idle = {"prompt-lookup": (), "server": ("confidence_threshold", *LOOKUP)}.get(self.proposer, LOOKUP)
        for name in idle:
            if getattr(self, name) != type(self).model_fields[name].default:
                given = "give it to the server, and remove it here" if self.proposer == "server" else "remove it"
                raise ValueError(f"'{name}' has no meaning for proposer '{self.proposer}'; {given}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("'prompt_lookup_min' is above 'prompt_lookup_max'")
        return self


class ArrivalPlan(Table):
    """Open loop: requests arrive by a Poisson process. Without it `concurrency` requests start together (closed loop)."""

    rate_per_s: float = Field(gt=0, le=1e6)
    """Requests that arrive in a second, on average."""
    seed: int = Field(default=0, ge=0)
    """Of the gaps between them, which are the same for both arms."""
    requests_per_block: int = Field(default=16, ge=2)
    """Arrivals after which the other arm has its turn. A block begins with an idle engine, and intervals are over blocks."""


class GoodputPlan(Table):
    """Limits of a good request; those that are left out are not asked for."""

    ttft_ms: float | None = Field(default=None, gt=0)
    """Time to the first token, at most."""
    tpot_ms: float | None = Field(default=None, gt=0)
    """Time per later token, at most."""
    latency_ms: float | None = Field(default=None, gt=0)
    """Time to the last token, at most."""


class WorkloadPlan(Table):
    """What is asked, in which order, and how many at once."""

    prompts: str = "demo"
    """"demo", the shipped set, or the path of a .jsonl file."""
    limit: int | None = Field(default=None, ge=1)
    """Most prompts, chosen evenly over the categories."""
    max_tokens: int = Field(default=48, ge=1)
    """Generated tokens per request at most."""
    concurrency: tuple[int, ...] = (1,)
    """How many requests run at once; each number is measured. Under `arrival`, how many may; the others wait."""
    arrival: ArrivalPlan | None = None
    """Open loop instead of closed; see below."""
    seed: int = Field(default=0, ge=0)
    """Of the choice that `limit` makes."""

    @field_validator("concurrency", mode="before")
    @classmethod
    def _a_list(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            raise ValueError("give a list, such as [1, 4]")
        return tuple(value)

    @field_validator("concurrency")
    @classmethod
    def _batches(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1 or len(set(value)) != len(value):
            raise ValueError("give one or more different whole numbers from 1 up")
        return value


class SamplingPlan(Table):
    """The sampling of the measured runs; 0 is greedy."""

    temperature: float = Field(default=0.0, ge=0, le=100)
    """0 is greedy."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the most likely tokens whose probabilities reach this sum."""
    ignore_eos: bool = False
    """Do not end at the model's end-of-sequence token."""


class MeasurePlan(Table):
    """Warm-up, repeats and order."""

    warmup_requests: int = Field(default=2, ge=0)
    """Requests before the first measured one, the arms in turn."""
    repeats: int = Field(default=1, ge=1)
    """How often the whole workload is run."""
    goodput: GoodputPlan = GoodputPlan()
    """Limits that a good request meets; see below."""


class SampledPlan(Table):
    """The sampled check: fixed input, small allowed vocabulary, exact target probabilities."""

    enabled: bool = True
    """Whether sampled output is checked against the target's law."""
    prompt: tuple[str, ...] = (
        "A B C D E F G H A B C D E F G H A B C D E F G H A B C D E F G H",
        "A C B D A C B E A C B D A C B F A C B D A C B G A C B D A C",
    )
    """The fixed input, one text or several of different lengths, taken in turn. Text that repeats itself gives prompt lookup
    something to find; where the likeliest word changes from place to place, a token drawn from a wrong place shows."""
    method: Literal["auto", "own-pass", "top-logprobs", "two-samples"] = "auto"
    """Where the target's law comes from: its own pass, log-probabilities that a server reports, or nothing but two samples, which
    need far more sequences; "auto" is the first that the engine can do."""
    num_logprobs: int = Field(default=20, ge=1, le=100)
    """How many likeliest tokens a server is asked to report, for "top-logprobs"."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """Whether a server reports the model's own log-probabilities, or those after temperature and cuts."""
    cells: Literal["words", "ranks"] = "words"
    """"words" restricts the vocabulary to `words`; "ranks" generates from all of it and groups tokens by their rank."""
    words: tuple[str, ...] = (" A", " B", " C", " D", " E", " F", " G", " H")
    """The only words that may be generated where cells = "words", each one token of the target's tokenizer."""
    temperature: float = Field(default=1.0, gt=0, le=100)
    """Of the check."""
    sequences: int = Field(default=800, ge=100)
    """Sequences that are generated and judged."""
    tokens: int = Field(default=8, ge=2, le=64)
    """Tokens of a sequence."""
    batch: int = Field(default=32, ge=1)
    """Sequences that run at once."""
    delta: float = Field(default=0.05, gt=0, lt=1)
    """PASS needs the upper bound on the total variation to be below this."""
    delta_stratum: float = Field(default=0.2, gt=0, lt=1)
    """The same for each place in a round."""
    control_sequences: int = Field(default=120, ge=50)
    """Sequences of each control: a planted defect that must be found, a correct variant that must not."""
    alpha_fail: float = Field(default=1e-3, gt=0, lt=0.5)
    """Chance that a correct engine is called FAIL."""
    alpha_eq: float = Field(default=0.05, gt=0, lt=0.5)
    """Chance that the upper bound is too low."""
    min_stratum_tokens: int = Field(default=200, ge=1)
    """PASS needs as many tokens at each place in a round."""
    seed: int = Field(default=1, ge=0, le=10**12)
    """Of every draw in the check."""

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @field_validator("prompt")
    @classmethod
    def _different(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not all(value) or len(set(value)) < len(value):
            raise ValueError("give one text, or a list of different ones")
        return value

    @field_validator("words", mode="before")
    @classmethod
    def _a_list(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("words")
    @classmethod
    def _a_choice(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < max(2, len(value)) or not all(value):
            raise ValueError("give two or more different words, none of them empty")
        return value

    @model_validator(mode="after")
    def _words_are_used(self) -> "SampledPlan":
        if self.cells == "ranks" and self.words != type(self).model_fields["words"].default:
            raise ValueError(
                "'words' has no meaning for cells 'ranks', which generate from the whole vocabulary; remove it"
            )
        return self


class Plan(Table):
    """A whole study."""

    schema_version: Literal[1] = 1
    """Of this file."""
    name: str = Field(min_length=1)
    """Shown at the top of every report."""
    engine: EnginePlan = EnginePlan()
    speculation: SpeculationPlan = SpeculationPlan()
    workload: WorkloadPlan = WorkloadPlan()
    sampling: SamplingPlan = SamplingPlan()
    measure: MeasurePlan = MeasurePlan()
    sampled: SampledPlan = SampledPlan()
    policy: Policy = Policy()

    @model_validator(mode="after")
    def _fits_the_engine(self) -> "Plan":
        proposers = PROPOSERS[self.engine.kind]
        if self.speculation.proposer not in proposers:
            raise ValueError(
                f"proposer '{self.speculation.proposer}' does not run on engine '{self.engine.kind}'; "
                f"allowed: {', '.join(proposers)}"
            )
        if self.engine.kind == "hf" and self.speculation.confidence_threshold:
            raise ValueError("engine 'hf' drafts without 'confidence_threshold'; remove it")
        if self.engine.kind != "native" and self.speculation.verification == "coupled":
            raise ValueError(f"verification 'coupled' does not run on engine '{self.engine.kind}'; allowed: rejection")
        if self.engine.kind == "hf" and self.speculation.prompt_lookup_min != 1:
            raise ValueError("engine 'hf' looks up n-grams from 1 token on; set prompt_lookup_min = 1")
        if self.engine.kind == "hf" and max(self.workload.concurrency) > 1:
            raise ValueError("engine 'hf' runs one request at a time; set concurrency = [1]")
        if self.engine.kind in ("hf", "openai_http") and self.workload.arrival is not None:
            raise ValueError(f"engine '{self.engine.kind}' takes no request while others run; remove workload.arrival")
        if self.engine.kind in ("hf", "openai_http") and self.policy.min_claim != "up_to_ties":
            raise ValueError(
                f'engine \'{self.engine.kind}\' can claim "up_to_ties" at most; set min_claim = "up_to_ties" under [policy]'
            )
        return self

    @property
    def params(self) -> SamplingParams:
        """What each measured request asks for."""
        return SamplingParams(max_tokens=self.workload.max_tokens, **self.sampling.model_dump())


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
        raise PlanError(f"study {where}: {describe(error, Plan)}; docs/study.md explains each key") from None
    except InputError as error:
        raise PlanError(f"study {where}: engine.{error}; docs/study.md explains each key") from None
