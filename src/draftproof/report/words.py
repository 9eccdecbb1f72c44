"""How verdicts, claims and numbers are worded, the same in every report. Knows no output format."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

from draftproof.evidence import (
    Comparison,
    Decision,
    Effect,
    Equivalence,
    Goodput,
    GreedyResult,
    HostNoise,
    Interval,
    Outcome,
    Prediction,
    SampledPlanned,
    SampledResult,
    SmallestDeviation,
    VerdictName,
)

NOT_MEASURED = "not measured"
NOT_ESTIMABLE = "not estimable"
AGREEMENT = 0.1
"""How far the cost model and the measured speed-up may be apart, as a share of the prediction."""

MOST_NAMED = 6
"""Parts of a workload that the head of a report names for one verdict."""

VERDICT_MEANINGS: Mapping[VerdictName, str] = {
    "ADOPT": (
        "Every criterion is met: turn speculative decoding on for this workload, with this hardware and software."
    ),
    "KEEP_TARGET_ONLY": (
        "Nothing speaks against the output, but the gain is below what was asked for: leave speculative decoding off."
    ),
    "INCONCLUSIVE": (
        "The evidence does not settle the question: change nothing because of it, remove the causes and run again."
    ),
    "ROLL_BACK": (
        "Something that must hold does not: turn speculative decoding off wherever it is on and find the cause first."
    ),
}

OUTCOME_MEANINGS: Mapping[Outcome, str] = {
    "PASS": "The speculative output was shown to be the target's, as far as the claims and limits below say.",
    "FAIL": "The speculative output is not the target's: turn speculative decoding off and find the cause first.",
    "INCONCLUSIVE": "Neither was shown: the reasons say what is missing. Do not take this for a pass.",
}


METHOD_MEANINGS: Mapping[str, str] = {
    "own pass": (
        "Instead each emitted token is held against the exact probabilities that the target gives at that point, by a pass "
        "of the plain model."
    ),
    "top log-probabilities": (
        "Instead each emitted token is held against the probabilities that the server's target-only arm reports at that "
        "point for its likeliest tokens."
    ),
    "two samples": "Here no probabilities are known, so samples of both arms are held against each other.",
}

UNREGISTERED = (
    "The thresholds applied here are not those locked before the run, so this verdict is exploratory: it confirms "
    "nothing."
)

CLAIM_MEANINGS: Mapping[str, str] = {
    "bitwise": "Greedy output depends neither on speculation nor on which requests share a batch.",
    "bitwise_same_batch": (
        "Both arms give the same greedy tokens when their requests are batched alike; another batch may change a token."
    ),
    "up_to_ties": "Greedy outputs differ only where the target's best tokens are as close as rounding error.",
    "lossy": "Output is not the target's by configuration: speculation keeps tokens that the target would not have chosen.",
    "none": "The run supports no claim about greedy output.",
}

# every character that XML 1.0 cannot hold; terminals do not want them either
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """Text without control characters and lone surrogates."""
    return _ILLEGAL.sub("\ufffd", text)


def known(value: float | None) -> TypeGuard[float]:
    """Whether there is a finite number."""
    return value is not None and math.isfinite(value)


def number(value: float | None) -> str:
    """Four significant digits, or "not estimable"."""
    if not known(value):
        return NOT_ESTIMABLE
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.3g}"
    digits = 0 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def judged_by(sampled: SampledResult) -> str:
    """What the sampled law was held against."""
    return sampled.method if sampled.tokens or sampled.identity is None else "the accept rule alone, without a sample"


def smallest_seen(deviation: SmallestDeviation | None) -> str:
    """The smallest deviation of the sampled law that a run could have seen."""
    if deviation is None:
        return NOT_ESTIMABLE
    told = f"total variation {number(deviation.one_direction)} along a tested score"
    if deviation.any_direction is not None:
        told += f", {number(deviation.any_direction)} in any direction"
    return f"{told}, each with probability {deviation.power:g}"


def smallest_rate(rate: float | None) -> str:
    """The smallest rate of differing greedy tokens that a run could have seen."""
    return NOT_ESTIMABLE if not known(rate) else f"{rate * 100:.2g} % of tokens, with probability 0.95"


def times(ratio: float | None) -> str:
    """A ratio: ``1.234x``."""
    if not known(ratio):
        return NOT_ESTIMABLE
    return f"{ratio:.3f}x" if ratio < 1e4 else f"{ratio:.3g}x"


def percent(share: float | None) -> str:
    """A share between 0 and 1 in percent."""
    return f"{share * 100:.1f} %" if known(share) else NOT_ESTIMABLE


def size(count: int | None) -> str:
    """Bytes in MiB; None was not measured."""
    return NOT_MEASURED if count is None else f"{count / 2**20:,.1f} MiB"


def amount(value: float | None, unit: str) -> str:
    """A number with its unit; None was not measured."""
    return NOT_MEASURED if value is None else f"{number(value)} {unit}"


def good(goodput: Goodput | None) -> str:
    """Requests that met every limit, a second and as a share; None where no limit was given."""
    if goodput is None:
        return NOT_MEASURED
    limits = ", ".join(f"{name.removesuffix('_ms')} {limit:g} ms" for name, limit in goodput.limits.items())
    return f"{number(goodput.per_second)} ({percent(goodput.share)} within {limits})"


def span(interval: Interval) -> str:
    """Estimate and interval; without an interval only the estimate, and it says so."""
    return _span(interval, number)


def ratio_span(interval: Interval) -> str:
    """Like ``span``, for ratios."""
    return _span(interval, times)


def per_round(value: float | None, interval: Interval | None) -> str:
    """Tokens per round with their interval, where one was recorded."""
    return number(value) if interval is None else span(interval)


def parts_of(decision: Decision, comparison: Comparison | None) -> list[tuple[str, VerdictName, Effect | None]]:
    """Return name, verdict and effect of each part that was judged: categories, or where several loads were run, cells."""
    if len(decision.by_concurrency) < 2:
        effects = {} if comparison is None else comparison.by_category
        return [(name, verdict, effects.get(name)) for name, verdict in decision.by_category.items()]
    cells = {} if comparison is None else comparison.by_cell
    return [
        (f"{name} at {level}", verdict, cells.get(name, {}).get(level))
        for name, verdicts in decision.by_cell.items()
        for level, verdict in verdicts.items()
    ]


def not_everywhere(decision: Decision) -> str | None:
    """Say which verdict holds for which part of the workload; None where one holds for all."""
    names: dict[VerdictName, list[str]] = {verdict: [] for verdict in VERDICT_MEANINGS}
    for name, verdict, _ in parts_of(decision, None):
        names[verdict].append(name)
    found = {verdict: mine for verdict, mine in names.items() if mine}
    if len(found) < 2:
        return None
    said = [
        f"{verdict} for {', '.join(mine[:MOST_NAMED])}{f' and {len(mine) - MOST_NAMED} more' if len(mine) > MOST_NAMED else ''}"
        for verdict, mine in found.items()
    ]
    loads = " (requests at a time)" if len(decision.by_concurrency) > 1 else ""
    return f"Not the same everywhere{loads}: {'; '.join(said)}."


def _span(interval: Interval, word: Callable[[float | None], str]) -> str:
    if not known(interval.estimate):
        return NOT_ESTIMABLE
    if not (known(interval.low) and known(interval.high)):
        return f"{word(interval.estimate)} (no interval)"
    return f"{word(interval.estimate)} ({word(interval.low)} to {word(interval.high)})"


def checked(equivalence: Equivalence) -> list[str]:
    """What was held against the target, one sentence for each check that was made."""
    greedy, sampled, controls = equivalence.greedy, equivalence.sampled, equivalence.controls
    said = []
    if greedy is not None:
        told = f"Greedy output {greedy.outcome}: {greedy.identical} of {greedy.prompts} prompts token for token"
        said.append(f"{told}; claim {equivalence.claim}.")
    if sampled is not None:
        told = f"Sampled output {sampled.outcome}: total variation at most {number(sampled.tv_upper_bound)}"
        behaved = sum(control.behaved for control in controls)
        said.append(f"{told} over {sampled.tokens:,} tokens; {behaved} of {len(controls)} controls behaved.")
    return said


def differences(greedy: GreedyResult) -> list[str]:
    """How the differences of the greedy arms were judged, one sentence each; nothing where there is none."""
    judged = greedy.triage
    if judged is None:
        return []
    causes = Counter(one.cause or NOT_MEASURED for one in greedy.divergences)
    said = [f"differences: {'; '.join(f'{count} x {cause}' for cause, count in causes.most_common())}"]
    noise = (
        "not measured" if judged.noise is None else f"{number(judged.noise)} over {judged.noise_positions} positions"
    )
    said.append(
        f"tau {number(judged.tau)} logits: the target's own noise between pass shapes is {noise} (floor "
        f"{number(judged.ulp_floor)}, cap {number(judged.cap)})"
    )
    said.append(
        f"ties: {judged.ties} in {judged.compared} tokens ({percent(judged.tie_rate)}); the target against itself flips "
        f"{judged.target_flips} in {judged.noise_positions} ({percent(judged.target_flip_rate)})"
    )
    worst = judged.worst
    if worst is not None:
        regret = NOT_MEASURED if worst.regret is None else f"{number(worst.regret)} logits"
        said.append(f"worst case: prompt {worst.prompt_id}, token {worst.position}: {worst.cause}, regret {regret}")
    return said + [f"why not PASS: {reason}" for reason in judged.reasons]


def prediction(found: Prediction) -> list[str]:
    """What the cost model predicts and where the measured speed-up stands, one sentence each."""
    told = f"K = {found.num_speculative_tokens}: predicted {ratio_span(found.predicted)}, measured {ratio_span(found.measured)}"
    apart = found.measured_over_predicted
    if apart is not None:
        told += (
            f"; they {'agree within' if abs(apart - 1) <= AGREEMENT else 'differ by more than'} {AGREEMENT * 100:g} %"
        )
    parts = ", ".join(f"{name} {times(factor)}" for name, factor in found.parts.items())
    said = [told, f"{times(found.ideal)} if a round cost a plain step; then {parts}"]
    largest, factor = min(found.parts.items(), key=lambda item: item[1])
    if factor < 1:
        said[-1] += f": most is lost to {largest}"
    costs = found.costs_ms
    needed = "no acceptance breaks even"
    if found.break_even is not None:
        needed = f"break-even needs acceptance {found.break_even:.2f}"
    said.append(
        f"a round takes {number(costs.draft)} ms to draft, {number(costs.score)} to score and {number(costs.host)} outside, a plain "
        f"step {number(costs.plain_step)}: {needed}, and the draft has {number(found.acceptance)}"
    )
    best = next((row for row in found.by_k if row.num_speculative_tokens == found.best), None)
    if best is None:
        return [*said, "no k is predicted to be faster than target-only"]
    beyond = ", extrapolated" if best.extrapolated else ""
    return [*said, f"fastest by prediction: k = {found.best}, {ratio_span(best.speedup)}{beyond}"]


def flat(values: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Nested tables as dotted names and values, in the order given."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            rows.extend(flat(value, f"{name}."))
        else:
            rows.append((name, plain(value)))
    return rows


def command(environment: Mapping[str, Any]) -> str | None:
    """The command line that an environment records, as a shell takes it; None where it records none."""
    recorded = environment.get("command")
    return shlex.join(map(str, recorded)) if isinstance(recorded, list) and recorded else None


def plain(value: Any) -> str:
    """One value of a free-form table."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return "; ".join(f"{name} = {text}" for name, text in flat(value)) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value) or "none"
    return str(value)


def columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys of all rows, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def noise_rows(noise: HostNoise) -> list[dict[str, Any]]:
    """Return one row for each figure of what else the host did."""
    return [
        {"figure": name, "smallest": NOT_MEASURED, "median": NOT_MEASURED, "largest": NOT_MEASURED, "blocks": 0}
        if found is None
        else {"figure": name, "smallest": found.min, "median": found.median, "largest": found.max, "blocks": found.n}
        for name, found in noise.figures.items()
    ]


def planned_rows(planned: SampledPlanned) -> list[dict[str, Any]]:
    """Return one row for each place of a round."""
    return [
        {
            "place in the round": item.place,
            "tokens": item.tokens,
            "smallest deviation": item.smallest_deviation,
            "bound expected": item.expected_bound,
            "allowed": item.delta,
            "enough to pass": item.enough,
        }
        for item in planned.places
    ]
