"""
``evidence.json``: the one machine interface of a study. Knows its shape and how to write it whole; measures nothing.

``None`` means not measured or not estimable, never zero.
"""

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftproof.errors import InputError, OutputError
from draftproof.request import describe

SCHEMA_VERSION: Literal[1] = 1
UNFINISHED = ".tmp"

Outcome = Literal["PASS", "FAIL", "INCONCLUSIVE"]
VerdictName = Literal["ADOPT", "KEEP_TARGET_ONLY", "INCONCLUSIVE", "ROLL_BACK"]
EXIT_CODES: dict[str, int] = {"ADOPT": 0, "KEEP_TARGET_ONLY": 10, "INCONCLUSIVE": 11, "ROLL_BACK": 12}
OUTCOME_CODES: dict[str, int] = {"PASS": 0, "INCONCLUSIVE": 11, "FAIL": 12}


class Part(BaseModel):
    """A frozen piece of evidence; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(Part):
    """An estimate with its two-sided confidence interval; None where it cannot be estimated."""

    estimate: float | None
    low: float | None
    high: float | None


class Distribution(Part):
    """
    Times in ms: quantiles are None ("not estimable") where there are too few prompts for an interval.

    ``n`` counts values and ``prompts`` what they are of: all values of one prompt are taken for one draw. Under open-loop arrival
    it counts blocks of arrivals, whose requests wait for one another.
    """

    n: int
    mean: float | None
    p50: Interval
    p95: Interval
    p99: Interval
    max: float | None = None
    prompts: int | None = None


class Goodput(Part):
    """Requests that met every limit (``ttft_ms``, ``tpot_ms``, ``latency_ms``), and those per second."""

    limits: dict[str, float]
    requests: int
    share: float | None
    per_second: float | None


class Throughput(Part):
    """Generated tokens and requests over the arm's seconds: busy ones, and under open-loop arrival the idle ones too."""

    tokens: int
    seconds: float
    tokens_per_second: float | None
    tokens_per_minute: float | None
    requests: int | None = None
    requests_per_second: float | None = None
    goodput: Goodput | None = Field(default=None, description="None where no limit was given")


class Memory(Part):
    """
    Bytes. ``peak_rss`` is the process's high-water mark and covers both arms when they share a process.

    ``peak`` is the most during the arm's own requests: resident in the process (CPU), or allocated on the GPU (``on_gpu``).
    ``working`` is what that leaves once everything loaded and what the process held before loading are taken off. Both are
    None, and ``why`` says so, where the host does not tell.
    """

    weights: int | None
    caches: int | None
    peak_rss: int | None
    peak: int | None = None
    working: int | None = None
    why: str | None = None
    on_gpu: bool = False


class Energy(Part):
    """Energy of an arm's requests, by a meter of the host; ``joules`` is None where there is none, and ``source`` says why."""

    joules: float | None
    joules_per_token: float | None
    source: str


class Acceptance(Part):
    """
    Draft tokens proposed and accepted.

    ``rate`` is accepted / proposed draft tokens (correction and bonus tokens count in neither).
    ``by_position`` is unconditional: accepted at position i / rounds that proposed anything.
    ``by_position_conditional``: accepted at i / rounds that proposed position i and accepted all before it.
    ``emitted_histogram``: index n counts rounds that put n tokens into the output. Intervals are over prompts.
    What a server counts for itself lacks some of these: None, or an empty list.
    """

    rounds: int | None
    drafted_rounds: int | None
    proposed: int | None
    accepted: int | None
    corrections: int | None
    bonuses: int | None
    rate: float | None
    accepted_per_round: float | None
    emitted_per_round: float | None
    by_position: list[float | None]
    by_position_conditional: list[float | None]
    emitted_histogram: list[int]
    proposed_per_round: float | None = Field(default=None, description="over all rounds, those without a draft too")
    accepted_per_round_interval: Interval | None = Field(default=None, description="None: not recorded")
    emitted_per_round_interval: Interval | None = Field(default=None, description="None: not recorded")


class Arm(Part):
    """
    One arm's measurements. Latency, ttft, itl, icl and tpot in ms, as defined in docs/metrics.md.

    ``time_split_ms`` has the parts prefill, propose, score, sample and host; empty where the engine reports no rounds.
    """

    latency: Distribution
    ttft: Distribution
    itl: Distribution
    icl: Distribution
    tpot: Distribution
    throughput: Throughput
    memory: Memory
    acceptance: Acceptance | None
    time_split_ms: dict[str, float]
    energy: Energy | None = None


class Arms(Part):
    """
    Both arms; ``speculative`` is None when the study stopped before it.

    ``by_concurrency`` has the same of each load, where there are several.
    """

    target_only: Arm
    speculative: Arm | None
    by_concurrency: dict[str, "Arms"] = {}


class Divergence(Part):
    """The first differing token of one prompt."""

    prompt_id: str
    category: str
    position: int
    target_only_token: int | None
    speculative_token: int | None
    regret: float | None
    note: str
    kind: Literal["OK", "TIE", "DEFECT"] | None = None
    cause: str | None = None
    gap: float | None = Field(default=None, description="distance of the two tokens under the plain model, in logits")
    tau: float | None = Field(default=None, description="the regret that rounding can explain here, in logits")
    explained: bool | None = Field(
        default=None, description="whether the passes that the speculative arm ran give its token again"
    )
    confirmed: bool | None = Field(default=None, description="whether a defect is there in float32 too")


class GreedyTriage(Part):
    """How the differences were judged. ``noise`` and all below it are in logits, as docs/exactness.md defines them."""

    tau: float
    noise: float | None = Field(description="99.9th percentile of the change of gaps between pass shapes")
    ulp_floor: float
    cap: float
    noise_positions: int
    target_flips: int = Field(description="positions at which two pass shapes of the target prefer different tokens")
    compared: int = Field(description="tokens up to the first difference, each prompt once")
    ties: int = Field(description="differences among them that are no defect")
    tie_rate: float | None
    target_flip_rate: float | None
    rate_p_value: float | None = Field(description="of at most twice the target's own rate")
    controlled: int = Field(description="differences for which the control arms were run")
    gap_histogram: list[tuple[float | None, int]] = Field(
        description="(gap up to this many logits, differences); None is without limit"
    )
    worst: Divergence | None
    reasons: list[str]


class GreedyResult(Part):
    """Token identity of the two greedy arms."""

    outcome: Outcome
    prompts: int
    identical: int
    tokens: int
    divergences: list[Divergence]
    repeatability_prompts: int
    repeatability_identical: int
    how: str
    anchor_tokens: int | None = None
    anchor_regret: float | None = Field(
        default=None, description="how far below the plain model's best a target-only token lies at most, in logits"
    )
    anchor_bound: float | None = Field(default=None, description="what rounding can explain, in logits")
    triage: GreedyTriage | None = None
    reasons: list[str] = Field(default=[], description="what besides the differences keeps PASS away")
    smallest_rate: float | None = Field(
        default=None,
        description="share of tokens that, differing by chance and independently, this run shows with probability 0.95",
    )


class SmallestDeviation(Part):
    """
    What the tests of sampled output find with probability ``power`` if it is there, as total variation per token.

    ``alpha`` is that of each test, after the correction for their number. ``one_direction``: a deviation along one of the
    tested scores; ``any_direction``: along none of them, None where no context was visited often enough; ``by_place``: as
    ``one_direction``, for tokens of one place in the round.
    """

    power: float
    alpha: float
    one_direction: float
    any_direction: float | None
    by_place: dict[str, float]


class SampledResult(Part):
    """
    Law of the sampled speculative output against the target's.

    ``method`` says what it was held against: the target's probabilities by its own pass, those that a server reports for its
    likeliest tokens, or target-only output alone.
    """

    outcome: Outcome
    configuration: dict[str, Any]
    sequences: int
    tokens: int
    tv_estimate: float | None
    tv_upper_bound: float | None
    delta: float
    p_value: float | None
    alpha_fail: float
    alpha_eq: float
    strata: list[dict[str, Any]]
    reasons: list[str]
    tv_by_n: list[tuple[int, float, float]] = Field(description="(tokens, TV estimate, upper bound) as the run grew")
    tests: list[dict[str, Any]] = Field(default=[], description="none where the run was stopped before its end")
    smallest_deviation: SmallestDeviation | None = None
    method: Literal["own pass", "top log-probabilities", "two samples"] = "own pass"
    claim: str | None = Field(default=None, description="what PASS says")
    planned: "SampledPlanned | None" = None
    identity: "RuleIdentity | None" = None
    advice: list[str] = Field(default=[], description="what would settle it, where it is INCONCLUSIVE")


class PlannedPlace(Part):
    """What a check will see of the tokens of one place in the round, told before the run; total variations per token."""

    place: str
    tokens: int
    smallest_deviation: float = Field(description="found with power 0.9 by a test in one direction")
    expected_bound: float = Field(description="upper bound on the total variation if nothing is wrong")
    delta: float
    enough: bool = Field(description="whether a correct engine is expected to pass here")
    sequences_needed: int | None = Field(
        default=None, description="about as many as would be enough; null where the pilot had no token here"
    )


class SampledPlanned(Part):
    """What a sampled check will be able to say, from a pilot whose tokens are not used again."""

    pilot_sequences: int
    seconds: float = Field(description="expected duration of the check and its controls")
    alpha: float = Field(description="of each test, after the correction for their number")
    places: list[PlannedPlace]


class RuleIdentity(Part):
    """
    The accept rule's law, integrated over its random numbers instead of sampled.

    ``worst`` is the largest total variation between the law of an emitted token and the target's, of which the grid of random
    numbers explains less than ``tolerance``.
    """

    pairs: int
    worst: float
    tolerance: float
    impossible: int = Field(description="tokens of target probability 0 that were emitted")


class ControlResult(Part):
    """A planted defect that must be flagged, or a lossless variant that must not."""

    name: str
    kind: Literal["defect", "lossless"]
    flagged: bool
    behaved: bool
    detail: str


class Equivalence(Part):
    """What was shown about the output; ``claim`` is the strongest claim the run supports for greedy output."""

    greedy: GreedyResult | None
    sampled: SampledResult | None
    controls: list[ControlResult]
    claim: Literal["bitwise", "bitwise_same_batch", "up_to_ties", "lossy", "none"]
    claim_basis: str


class Effect(Part):
    """
    Target-only time over speculative time: above 1 is faster. ``aa`` is target-only over target-only, the noise.

    The ratios of p95, ITL and ICL are speculative over target-only. ``total_time_ratio`` is the sum of target-only latencies
    over the sum of speculative ones.
    """

    n: int
    speedup: Interval
    latency_ratio_p95: float | None
    itl_ratio: Interval
    aa: Interval
    method: str
    latency_ratio_p95_interval: Interval | None = None
    icl_ratio: Interval | None = None
    total_time_ratio: float | None = None


class Spread(Part):
    """Smallest, median and largest of ``n`` values."""

    n: int
    min: float
    median: float
    max: float


class HostNoise(Part):
    """
    What else the host did while the blocks ran.

    ``figures`` are named and defined in docs/metrics.md; None is not shown by this host. ``advice``: what was seen that
    disturbs times and what to do, the likeliest cause first.
    """

    blocks: int
    num_cores: int
    figures: dict[str, Spread | None]
    advice: list[str]


class PredictedSpeedup(Part):
    """What the cost model predicts for one k; ``ms_per_token`` is without prefill."""

    num_speculative_tokens: int
    tokens_per_round: float
    ms_per_token: float
    speedup: Interval
    extrapolated: bool = Field(description="beyond the K that was measured")


class RoundCosts(Part):
    """Mean times in ms: a target-only step, a round that drafted nothing, and one that drafted, in its parts."""

    plain_step: float
    idle_round: float
    drafting_round: float
    draft: float
    score: float
    host: float


class Prediction(Part):
    """
    The cost model beside what was measured, as docs/metrics.md defines it.

    ``ideal`` times ``parts`` up to "prefill" is the prediction for the K that was measured, times all of them what was measured.
    ``acceptance`` and ``break_even`` are acceptances that are the same at every position: the one that gives as many accepted
    tokens as a round had, and the one from which on a round pays (None: none up to 1). They, ``accepted_per_round`` and ``costs_ms``
    are of rounds that drafted K, or where none did of all that drafted.
    """

    num_speculative_tokens: int
    predicted: Interval
    measured: Interval
    measured_over_predicted: float | None
    by_k: list[PredictedSpeedup]
    best: int | None = Field(description="the k that is fastest; None: target-only is")
    ideal: float = Field(
        description="the speed-up if a round cost a plain step: tokens per round far from a request's end"
    )
    parts: dict[str, float]
    without_drafting: float = Field(description="the prediction if the proposer took no time")
    costs_ms: RoundCosts
    accepted_per_round: float
    acceptance: float | None
    break_even: float | None


class Comparison(Part):
    """
    Paired effects, overall, per workload category, per concurrency, and per cell: category, then concurrency.

    ``load`` is "closed" where so many requests ran at once, "open" where they arrived by themselves: there latency is mostly
    waiting once the engine is busy, and tells nothing of device time. ``prediction`` is the cost model's, per concurrency.
    """

    overall: Effect
    total_time_ratio: float | None
    memory_ratio: float | None
    by_category: dict[str, Effect]
    by_concurrency: dict[str, Effect]
    noise: HostNoise | None = None
    by_cell: dict[str, dict[str, Effect]] = {}
    load: Literal["closed", "open"] = "closed"
    prediction: dict[str, Prediction] = Field(default={}, description="by concurrency; empty without rounds")


class Criterion(Part):
    """One row of the decision matrix."""

    name: str
    threshold: str
    measured: str
    interval: str | None
    result: Literal["pass", "miss", "not estimable"]
    consequence: VerdictName


class Decision(Part):
    """The verdict, why, and the same per category, per concurrency, and per cell: category, then concurrency."""

    verdict: VerdictName
    reasons: list[str]
    matrix: list[Criterion]
    by_category: dict[str, VerdictName]
    by_concurrency: dict[str, VerdictName]
    registered: bool = True
    by_cell: dict[str, dict[str, VerdictName]] = {}


class Study(Part):
    """
    Which plan was run.

    ``hash`` is the SHA-256 of the canonical resolved plan, taken at ``locked_at`` (UTC, ISO 8601), and ``prompts`` that of
    the prompts.
    """

    name: str
    hash: str
    locked_at: str
    plan: dict[str, Any]
    prompts: str | None = None


class Evidence(Part):
    """The whole of ``evidence.json``."""

    schema_version: Literal[1] = SCHEMA_VERSION
    draftproof_version: str
    study: Study
    environment: dict[str, Any]
    check: list[dict[str, str]]
    arms: Arms | None
    equivalence: Equivalence | None
    comparison: Comparison | None
    decision: Decision
    limits: list[str]
    stopped: str | None = Field(default=None, description="why a stage ended the study early, if one did")


class Verification(Part):
    """
    The whole of ``verification.json``: whether the output is the target's, and nothing about time.

    ``planted`` names the defect or lossless variant that was put into the engine on purpose.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    draftproof_version: str
    study: Study
    environment: dict[str, Any]
    planted: str | None
    registration: str = Field(description="SHA-256 of the record in lock.json")
    equivalence: Equivalence
    outcome: Outcome
    reasons: list[str]
    limits: list[str]


def write_whole(path: Path, text: str) -> None:
    """
    Write a text file so that it is either the old one or the new one, never half of either.

    Raises
    ------
    OutputError
        The folder cannot be written.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose a writable folder") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OutputError(f"cannot write {path}: {error.strerror}; the file is what it was before") from None
        raise


def require_writable(path: Path) -> None:
    """
    See that `write_whole` can write a file, before what takes long; leaves nothing behind.

    Raises
    ------
    OutputError
        Its folder cannot be written, or it is a folder itself.
    """
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; give the path of a file")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose a writable folder") from None


def save(evidence: Evidence, path: Path) -> None:
    """Write ``evidence.json`` whole."""
    write_whole(path, evidence.model_dump_json(indent=2) + "\n")


def load(path: Path) -> Evidence:
    """
    Read ``evidence.json``.

    Raises
    ------
    InputError
        The file is missing, is not JSON, or does not have this version's shape.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give the path of an evidence.json") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; give the path of an evidence.json") from None
    try:
        return Evidence.model_validate(json.loads(text, parse_constant=_refuse_constant, parse_float=_finite))
    except ValidationError as error:
        raise InputError(f"{path} is not evidence of schema version {SCHEMA_VERSION}: {describe(error)}") from None
    except (ValueError, RecursionError) as error:
        where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise InputError(f"{path} is not JSON ({where}); give the path of an evidence.json") from None


def _refuse_constant(name: str) -> None:
    """NaN and infinity are no JSON, and no threshold could be compared with them."""
    raise ValueError(f"it holds {name}")


def _finite(text: str) -> float:
    """A number such as 1e999 is JSON, and infinity once it is read."""
    value = float(text)
    if math.isinf(value):
        _refuse_constant(text)
    return value
