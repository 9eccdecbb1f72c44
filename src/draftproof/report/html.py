"""The report as one HTML page that loads nothing from anywhere. Lays evidence out; computes no statistics."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from draftproof.evidence import Equivalence, Evidence, Verification
from draftproof.report import plots, words
from draftproof.report.pairs import Pair, most_telling, pair_requests

_TIMES = (
    ("latency", "from sending a request to its last token"),
    ("ttft", "time to first token"),
    ("itl", "inter-token latency: the gap before a chunk, shared among the tokens in it"),
    ("icl", "inter-chunk latency: the gap between chunks, however many tokens each holds"),
    ("tpot", "time per output token: (latency − ttft) / (tokens − those of the first chunk)"),
)


def render_html(evidence: Evidence, requests: list[dict[str, Any]] | None) -> str:
    """
    Render the report page.

    Parameters
    ----------
    evidence : Evidence
        The study; parts that are None read "not measured".
    requests : list of dict or None
        The lines of ``requests.jsonl``, for the paired latency plot and the table of prompts.

    Returns
    -------
    str
        A whole HTML document without scripts, in light and dark, readable on paper.
    """
    pairs = pair_requests(requests or [])
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            e=evidence,
            words=words,
            time_names=_TIMES,
            pairs=most_telling(pairs),
            num_pairs=len(pairs),
            plots=_plots(evidence, pairs),
        )
    )
    return words.clean(page.lstrip())


def render_verification(verification: Verification) -> str:
    """Render the page of ``draftproof verify``, in the same way."""
    drawn = _equivalence_plots(verification.equivalence)
    page = _environment().get_template("verification.html.j2").render(v=verification, words=words, plots=_marked(drawn))
    return words.clean(page.lstrip())


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("draftproof.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=words.number,
        times=words.times,
        percent=words.percent,
        size=words.size,
        span=words.span,
        ratio_span=words.ratio_span,
        plain=words.plain,
        good=words.good,
    )
    return environment


def _plots(evidence: Evidence, pairs: list[Pair]) -> list[tuple[str, Markup | None]]:
    arms, comparison, equivalence = evidence.arms, evidence.comparison, evidence.equivalence
    acceptance = None if arms is None or arms.speculative is None else arms.speculative.acceptance
    drawn = [
        (
            "Speed-up by workload category, with intervals; A/A is target-only against itself",
            None if comparison is None else plots.effect_plot(comparison, _least_speedup(evidence)),
        ),
        (
            "Latency of each prompt in both arms; below the diagonal speculation is faster",
            plots.latency_plot([pair.latencies for pair in pairs if pair.latencies is not None]),
        ),
        ("Latency quantiles of both arms, with intervals", None if arms is None else plots.quantile_plot(arms)),
        (
            "Share of draft tokens accepted, by position in the draft",
            None if acceptance is None else plots.acceptance_plot(acceptance),
        ),
        (
            "Tokens that a round put into the output",
            None if acceptance is None else plots.tokens_per_round_plot(acceptance),
        ),
    ]
    for level, found in (comparison.prediction if comparison else {}).items():
        what = f"Speed-up predicted by the cost model and measured, against k, {level} at a time"
        drawn.append((what, plots.prediction_plot(found, level)))
    return _marked([*drawn, *_equivalence_plots(equivalence)])


def _equivalence_plots(equivalence: Equivalence | None) -> list[tuple[str, str | None]]:
    greedy = None if equivalence is None else equivalence.greedy
    sampled = None if equivalence is None else equivalence.sampled
    drawn = [
        (
            "Total variation of sampled output against sample size",
            None if sampled is None else plots.tv_plot(sampled),
        ),
        (
            "Score tests of sampled output by place in the round",
            None if sampled is None else plots.score_plot(sampled),
        ),
    ]
    if greedy is not None and greedy.triage is not None:
        what = "Gap between the arms' tokens under the plain model, at each prompt's first difference"
        drawn.append((what, plots.gap_plot(greedy.triage)))
    return drawn


def _marked(drawn: list[tuple[str, str | None]]) -> list[tuple[str, Markup | None]]:
    # matplotlib escapes every label it writes
    return [(caption, None if svg is None else Markup(words.clean(svg))) for caption, svg in drawn]


def _least_speedup(evidence: Evidence) -> float | None:
    """The locked threshold; None where the decision used another policy or the plan does not hold one."""
    policy = evidence.study.plan.get("policy")
    if not evidence.decision.registered or not isinstance(policy, dict):
        return None
    least = policy.get("min_speedup")
    return float(least) if isinstance(least, int | float) else None
