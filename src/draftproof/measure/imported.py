"""
Result files of other load generators as an arm of ours: one table of formats. Reads one file; compares nothing.

What a file lacks is None. Where a tool means something else by our word it is not taken for ours, see docs/import.md.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.engines.http.dialects import look
from draftproof.errors import InputError
from draftproof.evidence import Acceptance, Arm, Distribution, Interval, Memory, Throughput
from draftproof.stats.quantile import min_sample_size

DISTRIBUTIONS = ("latency", "ttft", "itl", "icl", "tpot")
# one value for each request; of the others a file has to say how many it has
OF_A_REQUEST = ("latency", "ttft", "tpot")
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TO_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
NOT_IN_FILE = "the load generator's file says nothing of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """
    Where a file has one of our distributions.

    Attributes
    ----------
    name : str
        The file's.
    unit : str
        Of its values, where the file does not say itself.
    only_mean : bool
        Whether its quantiles are of something else than ours.
    """

    name: str
    unit: str = "ms"
    only_mean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """
    One tool's file; every place is a path, as `engines.http.dialects.look` takes it.

    Attributes
    ----------
    name : str
    signs : tuple of str
        What only this format has, all of it.
    statistics : mapping of "mean", "p50", "p95", "p99", "max", "n", "unit" to a path
        With ``{}`` for the name of the times.
    times : mapping of our distribution to `Times`
    counts : mapping of our name to a path
        "tokens", "seconds" and "requests" must be there.
    conditions : tuple of str
        What both arms must share.
    cancelled : str or None
        Whether the run was broken off.
    runs : str or None
        A list of runs, of which there must be one.
    """

    name: str
    signs: tuple[str, ...]
    statistics: Mapping[str, str]
    times: Mapping[str, Times]
    counts: Mapping[str, str]
    conditions: tuple[str, ...]
    cancelled: str | None = None
    runs: str | None = None


VLLM_BENCH = Format(
    name="vllm bench serve",
    signs=("completed", "duration", "output_throughput", "request_throughput"),
    statistics={"mean": "mean_{}_ms", "p50": "median_{}_ms", "p95": "p95_{}_ms", "p99": "p99_{}_ms"},
    # its inter-token latency is the gap between two chunks
    times={
        "latency": Times(name="e2el"),
        "ttft": Times(name="ttft"),
        "tpot": Times(name="tpot"),
        "icl": Times(name="itl"),
    },
    counts={
        "tokens": "total_output_tokens",
        "seconds": "duration",
        "requests": "completed",
        "failed": "failed",
        "steps": "spec_decode_num_drafts",
        "proposed": "spec_decode_draft_tokens",
        "accepted": "spec_decode_accepted_tokens",
        "by_position": "spec_decode_per_position_acceptance_rates",
    },
    conditions=(
        "model_id",
        "backend",
        "num_prompts",
        "total_input_tokens",
        "request_rate",
        "burstiness",
        "max_concurrency",
    ),
)
AIPERF = Format(
    name="AIPerf",
    signs=("request_latency/unit", "request_count/avg", "benchmark_duration/avg"),
    statistics={
        **{name: f"{{}}/{name}" for name in ("p50", "p95", "p99", "max", "unit")},
        "mean": "{}/avg",
        "n": "{}/count",
    },
    # its inter-token latency is a request's time after the first token over its later tokens
    times={
        "latency": Times(name="request_latency"),
        "ttft": Times(name="time_to_first_token"),
        "tpot": Times(name="inter_token_latency"),
        "icl": Times(name="inter_chunk_latency"),
    },
    counts={
        "tokens": "total_osl/avg",
        "seconds": "benchmark_duration/avg",
        "requests": "request_count/avg",
        "failed": "error_request_count/avg",
        "steps": "total_spec_decode_steps/avg",
        "proposed": "total_draft_tokens/avg",
        "accepted": "total_accepted_draft_tokens/avg",
    },
    conditions=("total_isl/avg", "request_count/avg"),
    cancelled="was_cancelled",
)
GUIDELLM = Format(
    name="GuideLLM",
    signs=("benchmarks/0/metrics/request_latency/successful",),
    statistics={
        **{name: f"metrics/{{}}/successful/percentiles/{name}" for name in ("p50", "p95", "p99")},
        "mean": "metrics/{}/successful/mean",
        "max": "metrics/{}/successful/max",
        "n": "metrics/{}/successful/count",
    },
    # its inter-token latency is a mean of each request, weighted by tokens; its time per output token includes the first
    times={
        "latency": Times(name="request_latency", unit="s"),
        "ttft": Times(name="time_to_first_token_ms"),
        "itl": Times(name="inter_token_latency_ms", only_mean=True),
    },
    counts={
        "tokens": "metrics/output_token_count/successful/total_sum",
        "seconds": "duration",
        "requests": "metrics/request_totals/successful",
        "failed": "metrics/request_totals/errored",
    },
    conditions=(
        *("config/strategy/type_", "config/strategy/streams", "config/strategy/rate"),
        "metrics/prompt_token_count/successful/total_sum",
    ),
    runs="benchmarks",
)
FORMATS = (VLLM_BENCH, AIPERF, GUIDELLM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """
    A file read.

    Attributes
    ----------
    format : str
    arm : Arm
    conditions : dict
        Under which it ran, by the file's own names.
    failed : int or None
    missing : tuple of str
        What the file lacks.
    """

    format: str
    arm: Arm
    conditions: dict[str, Any]
    failed: int | None
    missing: tuple[str, ...] = field(default=())


def read_results(path: Path) -> Imported:
    """
    Read the result file of a load generator.

    Raises
    ------
    InputError
        It cannot be read, has no known format, holds several runs or one that was broken off, or a value is no number.
    """
    whole = _parse(path)
    found = next((row for row in FORMATS if all(look(whole, sign) is not None for sign in row.signs)), None)
    if found is None:
        names = ", ".join(row.name for row in FORMATS)
        raise InputError(f"{path} has the shape of no known result file; allowed: {names}")
    runs = look(whole, found.runs) if found.runs else [whole]
    if len(runs) != 1:
        raise InputError(f"{path} holds {len(runs)} runs, and an arm is one; give a file of one load")
    if look(whole, found.cancelled) is True:
        raise InputError(f"{path} is of a run that was cancelled; run it to its end")
    reader = _Reader(path, found, runs[0])
    arm = reader.arm()
    failed = reader.count("failed")
    return Imported(
        format=found.name,
        arm=arm,
        conditions={name: value for name in found.conditions if (value := look(runs[0], name)) is not None},
        failed=None if failed is None else int(failed),
        missing=tuple(_missing(arm)),
    )


class _Reader:
    """One run of a file, by its format."""

    def __init__(self, path: Path, row: Format, run: Any) -> None:
        self._path, self._row, self._run = path, row, run

    def count(self, name: str) -> float | None:
        place = self._row.counts.get(name)
        return None if place is None else self._number(place)

    def arm(self) -> Arm:
        tokens, seconds, requests = (self._needed(name) for name in ("tokens", "seconds", "requests"))
        per_second = tokens / seconds if seconds else None
        return Arm(
            **{name: self._distribution(name, int(requests)) for name in DISTRIBUTIONS},
            throughput=Throughput(
                tokens=int(tokens),
                seconds=seconds,
                tokens_per_second=per_second,
                tokens_per_minute=None if per_second is None else per_second * 60,
                requests=int(requests),
                requests_per_second=requests / seconds if seconds else None,
            ),
            memory=Memory(weights=None, caches=None, peak_rss=None, why=NOT_IN_FILE),
            acceptance=self._acceptance(),
            time_split_ms={},
        )

    def _distribution(self, name: str, requests: int) -> Distribution:
        times = self._row.times.get(name)
        found = dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
        values: dict[str, float | None] = {key: self._time(times, key) for key in found}
        n = None if times is None else self._statistic(times, "n")
        if n is None and name in OF_A_REQUEST:
            n = requests
        known = any(value is not None for value in values.values())
        for key, quantile in QUANTILES.items():
            if requests < min_sample_size(quantile, 0.95):
                values[key] = None
        return Distribution(
            n=int(n or 0) if known else 0,
            mean=values["mean"],
            **{key: Interval(estimate=values[key], low=None, high=None) for key in QUANTILES},
            max=values["max"],
            prompts=requests if known else 0,
        )

    def _time(self, times: Times | None, key: str) -> float | None:
        if times is None or (times.only_mean and key != "mean"):
            return None
        value = self._statistic(times, key)
        # these tools write 0 where nothing was measured
        if not value:
            return None
        place = self._row.statistics.get("unit")
        unit = times.unit if place is None else look(self._run, place.format(times.name))
        if unit not in TO_MS:
            raise InputError(f"{self._path}: {times.name} is in {unit!r}; allowed: {', '.join(TO_MS)}")
        return value * TO_MS[unit]

    def _statistic(self, times: Times, key: str) -> float | None:
        place = self._row.statistics.get(key)
        return None if place is None else self._number(place.format(times.name))

    def _acceptance(self) -> Acceptance | None:
        steps, proposed, accepted = (self.count(name) for name in ("steps", "proposed", "accepted"))
        if steps is proposed is accepted is None:
            return None
        if proposed is not None and accepted is not None and accepted > proposed:
            raise InputError(
                f"{self._path}: {self._row.counts['accepted']} is {accepted:g}; allowed: at most the {proposed:g} drafted tokens"
            )
        place = self._row.counts.get("by_position")
        by_position = look(self._run, place) if place else None
        return Acceptance(
            rounds=None,
            drafted_rounds=None if steps is None else int(steps),
            proposed=None if proposed is None else int(proposed),
            accepted=None if accepted is None else int(accepted),
            corrections=None,
            bonuses=None,
            rate=accepted / proposed if proposed and accepted is not None else None,
            accepted_per_round=accepted / steps if steps and accepted is not None else None,
            emitted_per_round=None,
            by_position=[self._checked(f"{place}/{at}", rate) for at, rate in enumerate(by_position or ())],
            by_position_conditional=[],
            emitted_histogram=[],
        )

    def _needed(self, name: str) -> float:
        value = self.count(name)
        if value is None:
            raise InputError(f"{self._path} lacks {self._row.counts[name]}, without which no arm can be told")
        return value

    def _number(self, place: str) -> float | None:
        value = look(self._run, place)
        return None if value is None else self._checked(place, value)

    def _checked(self, place: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise InputError(f"{self._path}: {place} is {value!r}; allowed: a number from 0 up")
        return float(value)


def _missing(arm: Arm) -> Iterator[str]:
    for name in DISTRIBUTIONS:
        found: Distribution = getattr(arm, name)
        lacks = [key for key in QUANTILES if getattr(found, key).estimate is None]
        if found.mean is None and len(lacks) == 3:
            yield name
        else:
            yield from (f"{key} of {name}" for key in (*(["mean"] if found.mean is None else []), *lacks))
    yield from ("rounds", "memory", "energy", "token ids")


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give the result file of a load generator") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; give the result file of a load generator") from None
    except json.JSONDecodeError as error:
        more = "; it holds several results, give one" if error.msg == "Extra data" else "; give a JSON result file"
        raise InputError(f"{path} is not JSON (line {error.lineno}){more}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); give a JSON result file") from None


def _refuse_constant(name: str) -> None:
    """NaN and infinity are no JSON, and no time."""
    raise ValueError(f"it holds {name}")
