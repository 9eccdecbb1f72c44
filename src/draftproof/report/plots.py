"""
Inline SVG plots. Knows matplotlib; every function returns None where there is nothing to draw.

The same input gives the same bytes: no date, fixed ids. Text stays text, so that it can be searched and read aloud.
"""

import io
import re
import warnings
from statistics import NormalDist

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from draftproof.evidence import (
    Acceptance,
    Arms,
    Comparison,
    Distribution,
    GreedyTriage,
    Interval,
    Prediction,
    SampledResult,
)
from draftproof.report.words import NOT_ESTIMABLE, clean, known

TARGET_COLOUR = "#4c5f7a"
SPECULATIVE_COLOUR = "#c2571a"
_LINE_COLOUR = "#8a8a8a"
_LONGEST_LABEL = 32
_SCORE = "score of "
MOST_POINTS = 400
_PREAMBLE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>\s*", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_ID = re.compile(r'(\bid="|href="#|url\(#)')


def latency_plot(pairs: list[tuple[float, float]]) -> str | None:
    """
    Each prompt's two latencies against each other; below the diagonal speculation is faster.

    Of more than ``MOST_POINTS`` as many are drawn, evenly over the ratio from the largest gain to the largest loss.

    Parameters
    ----------
    pairs : list of (float, float)
        Target-only and speculative latency in ms of one prompt.
    """
    drawn = [(target, speculative) for target, speculative in pairs if known(target) and known(speculative)]
    if not drawn:
        return None
    if len(drawn) > MOST_POINTS:
        drawn.sort(key=lambda pair: pair[1] / pair[0] if pair[0] else 0.0)
        drawn = [drawn[at * (len(drawn) - 1) // (MOST_POINTS - 1)] for at in range(MOST_POINTS)]
    figure, axes = _canvas(4.4)
    axes.scatter([t for t, _ in drawn], [s for _, s in drawn], s=18, color=SPECULATIVE_COLOUR, alpha=0.75, zorder=3)
    most = max(max(pair) for pair in drawn) * 1.05 or 1.0
    axes.plot([0, most], [0, most], color=_LINE_COLOUR, linestyle="--", linewidth=1)
    axes.annotate("equal", (most, most), xytext=(0, -30), textcoords="offset points", ha="right", color=_LINE_COLOUR)
    axes.set(xlim=(0, most), ylim=(0, most), xlabel="target-only latency (ms)", ylabel="speculative latency (ms)")
    return _svg(figure, "latency")


def quantile_plot(arms: Arms) -> str | None:
    """Latency quantiles of both arms with their intervals; quantiles that are not estimable are left out."""
    figure, axes = _canvas(3.2)
    drawn = _quantiles(axes, arms.target_only.latency, -0.1, TARGET_COLOUR, "target-only")
    if arms.speculative is not None:
        drawn += _quantiles(axes, arms.speculative.latency, 0.1, SPECULATIVE_COLOUR, "speculative")
    if not drawn:
        return None
    axes.set(xlim=(-0.5, 2.5), ylabel="latency (ms)")
    axes.set_ylim(bottom=0)
    latencies = [arm.latency for arm in (arms.target_only, arms.speculative) if arm is not None]
    names = [
        name if any(known(getattr(latency, name).estimate) for latency in latencies) else f"{name}\n{NOT_ESTIMABLE}"
        for name in ("p50", "p95", "p99")
    ]
    axes.set_xticks([0, 1, 2], names)
    figure.legend(frameon=False, loc="outside upper center", ncols=2)
    return _svg(figure, "quantiles")


def _quantiles(axes: Axes, latency: Distribution, shift: float, colour: str, label: str) -> int:
    quantiles = enumerate((latency.p50, latency.p95, latency.p99))
    found = [(at + shift, quantile) for at, quantile in quantiles if known(quantile.estimate)]
    for at, quantile in found:
        if known(quantile.low) and known(quantile.high):
            axes.plot([at, at], [quantile.low, quantile.high], color=colour, linewidth=2)
    if found:
        estimates = [quantile.estimate for _, quantile in found if known(quantile.estimate)]
        axes.plot([at for at, _ in found], estimates, "o", color=colour, label=label)
    return len(found)


def acceptance_plot(acceptance: Acceptance) -> str | None:
    """Share of draft tokens accepted at each position, unconditional and conditional."""
    series = (
        ("all rounds that proposed", acceptance.by_position, TARGET_COLOUR, -0.2),
        ("given that all before were accepted", acceptance.by_position_conditional, SPECULATIVE_COLOUR, 0.2),
    )
    if not any(known(share) for _, shares, _, _ in series for share in shares):
        return None
    figure, axes = _canvas(3.2)
    for label, shares, colour, shift in series:
        bars = [(at + shift, share) for at, share in enumerate(shares, start=1) if known(share)]
        axes.bar([at for at, _ in bars], [share for _, share in bars], width=0.38, color=colour, label=label)
    longest = max(len(shares) for _, shares, _, _ in series)
    axes.set(xlim=(0.4, longest + 0.6), ylim=(0, 1), xlabel="position in the draft", ylabel="share accepted")
    axes.set_xticks(range(1, longest + 1))
    figure.legend(frameon=False, loc="outside upper center", ncols=2)
    return _svg(figure, "acceptance")


def tokens_per_round_plot(acceptance: Acceptance) -> str | None:
    """How many rounds put how many tokens into the output."""
    counts = acceptance.emitted_histogram
    if not any(counts):
        return None
    figure, axes = _canvas(3.0)
    axes.bar(range(len(counts)), counts, color=SPECULATIVE_COLOUR)
    axes.set(xlabel="tokens put into the output", ylabel="rounds")
    axes.set_xticks(range(len(counts)))
    return _svg(figure, "rounds")


def effect_plot(comparison: Comparison, threshold: float | None) -> str | None:
    """
    Speed-ups with intervals: overall, each category, each concurrency, and target-only against itself.

    Parameters
    ----------
    comparison : Comparison
        The paired effects.
    threshold : float or None
        The least speed-up asked for; None draws no line.
    """
    rows = [("overall", comparison.overall.speedup, SPECULATIVE_COLOUR)]
    rows += [(name, effect.speedup, SPECULATIVE_COLOUR) for name, effect in comparison.by_category.items()]
    rows += [
        (f"concurrency {name}", effect.speedup, SPECULATIVE_COLOUR)
        for name, effect in comparison.by_concurrency.items()
    ]
    rows.append(("A/A (target-only twice)", comparison.overall.aa, TARGET_COLOUR))
    if not any(known(effect.estimate) for _, effect, _ in rows):
        return None
    figure, axes = _canvas(1.2 + 0.34 * len(rows))
    for at, (_, effect, colour) in enumerate(rows):
        _forest_row(axes, at, effect, colour)
    axes.axvline(1.0, color=_LINE_COLOUR, linewidth=1)
    if threshold is not None:
        axes.axvline(threshold, color="black", linestyle="--", linewidth=1)
        line = Line2D([], [], color="black", linestyle="--", linewidth=1, label=f"asked for: {threshold:g}x")
        figure.legend(handles=[line], frameon=False, loc="outside upper right")
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel="speed-up (target-only time / speculative time)")
    for label in axes.set_yticks(range(len(rows)), [_short(name) for name, _, _ in rows]):
        label.label1.set_parse_math(False)
    return _svg(figure, "effect")


def prediction_plot(prediction: Prediction, level: str) -> str | None:
    """
    Predicted speed-up against k with its interval, beyond the measured K dashed, and the measured one at K.

    Parameters
    ----------
    prediction : Prediction
    level : str
        Requests at a time.
    """
    rows = [(row.num_speculative_tokens, row.speedup) for row in prediction.by_k]
    points = [(k, speedup.estimate) for k, speedup in rows if known(speedup.estimate)]
    if not points:
        return None
    figure, axes = _canvas(3.2)
    measured, wanted = prediction.measured, prediction.num_speculative_tokens
    for part, style, label in (
        ([point for point in points if point[0] <= wanted], "o-", "predicted"),
        ([point for point in points if point[0] >= wanted], "o--", "extrapolated"),
    ):
        if len(part) > 1 or style == "o-":
            axes.plot([k for k, _ in part], [y for _, y in part], style, color=TARGET_COLOUR, markersize=4, label=label)
    band = [(k, part.low, part.high) for k, part in rows if known(part.low) and known(part.high)]
    lows, highs = [low for _, low, _ in band], [high for _, _, high in band]
    axes.fill_between([k for k, _, _ in band], lows, highs, color=TARGET_COLOUR, alpha=0.15, linewidth=0)
    if known(measured.estimate):
        if known(measured.low) and known(measured.high):
            axes.plot([wanted, wanted], [measured.low, measured.high], color=SPECULATIVE_COLOUR, linewidth=2)
        axes.plot([wanted], [measured.estimate], "s", color=SPECULATIVE_COLOUR, label="measured")
    axes.axhline(1.0, color=_LINE_COLOUR, linewidth=1)
    axes.set(xlabel="drafted tokens per round (k)", ylabel="speed-up")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(frameon=False, loc="outside upper center", ncols=3)
    return _svg(figure, f"prediction{level}")


def _forest_row(axes: Axes, at: int, effect: Interval, colour: str) -> None:
    if not known(effect.estimate):
        # in the middle of the axes, whatever the scale
        axes.text(0.5, at, "not estimable", transform=axes.get_yaxis_transform(), color=_LINE_COLOUR, va="center")
        return
    if known(effect.low) and known(effect.high):
        axes.plot([effect.low, effect.high], [at, at], color=colour, linewidth=2)
    axes.plot([effect.estimate], [at], "s", color=colour, markersize=6)


def gap_plot(judged: GreedyTriage) -> str | None:
    """How many differences have how large a gap between the two arms' tokens, with tau."""
    if not any(count for _, count in judged.gap_histogram):
        return None
    figure, axes = _canvas(3.2)
    edges = [edge for edge, _ in judged.gap_histogram]
    labels = [
        "0" if edge == 0 else f"above {edges[at - 1]:.3g}" if edge is None else f"to {edge:.3g}"
        for at, edge in enumerate(edges)
    ]
    axes.bar(range(len(edges)), [count for _, count in judged.gap_histogram], width=0.8, color=SPECULATIVE_COLOUR)
    within = sum(edge is not None and edge <= judged.tau for edge in edges)
    axes.axvline(within - 0.5, color="black", linestyle="--", linewidth=1, label=f"tau = {judged.tau:.3g}")
    axes.set_xticks(range(len(edges)), labels, rotation=30, ha="right")
    axes.set(xlabel="gap (logits)", ylabel="differences")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return _svg(figure, "gaps")


def tv_plot(sampled: SampledResult) -> str | None:
    """Total variation, estimate and upper bound, as the sample grew, with the difference allowed."""
    points = [point for point in sampled.tv_by_n if point[0] > 0 and known(point[1]) and known(point[2])]
    if not points:
        return None
    figure, axes = _canvas(3.2)
    tokens = [n for n, _, _ in points]
    axes.plot(tokens, [upper for _, _, upper in points], "o-", color=SPECULATIVE_COLOUR, label="upper bound")
    axes.plot(tokens, [estimate for _, estimate, _ in points], "o-", color=TARGET_COLOUR, label="estimate")
    axes.axhline(sampled.delta, color="black", linestyle="--", linewidth=1, label=f"delta = {sampled.delta:g}")
    axes.set_ylim(bottom=0)
    axes.set(xlabel="sampled tokens", ylabel="total variation")
    axes.legend(frameon=False)
    return _svg(figure, "tv")


def score_plot(sampled: SampledResult) -> str | None:
    """The score tests by place in the round, in standard deviations, with the limits of the smallest and largest."""
    rows = [row for row in sampled.tests if str(row["test"]).startswith(_SCORE) and row["statistic"] is not None]
    if not rows or sampled.smallest_deviation is None:
        return None
    places = sorted({str(row["tokens of"]) for row in rows}, key=lambda name: (name != "all", name), reverse=True)
    figure, axes = _canvas(1.2 + 0.35 * len(places))
    for marker, score in zip("osD^v", sorted({str(row["test"]) for row in rows}), strict=False):
        mine = [row for row in rows if row["test"] == score]
        axes.plot(
            [row["statistic"] for row in mine],
            [places.index(str(row["tokens of"])) for row in mine],
            marker,
            label=_short(score.removeprefix(_SCORE)),
            alpha=0.8,
        )
    limit = NormalDist().inv_cdf(1.0 - sampled.smallest_deviation.alpha / 2.0)
    for side in (-limit, limit):
        axes.axvline(side, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(places)), [_short(name) for name in places])
    axes.set(xlabel="standard deviations; a test rejects beyond the lines")
    figure.legend(frameon=False, fontsize="small", loc="outside upper center", ncols=2)
    return _svg(figure, "scores")


def _short(name: str) -> str:
    line = " ".join(clean(name).split())
    return line if len(line) <= _LONGEST_LABEL else f"{line[: _LONGEST_LABEL - 1]}…"


def _canvas(height: float) -> tuple[Figure, Axes]:
    # narrow, so that its text is not too small where a page is
    figure = Figure(figsize=(5.2, height), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure, name: str) -> str:
    """The figure as an ``<svg>`` element whose ids begin with ``name``, so that several fit in one page."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        # the reader's browser has the glyphs; matplotlib only measures them
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(file, format="svg", metadata={"Date": None})
    body = _PREAMBLE.sub("", file.getvalue()).strip()
    return _TAG.sub(lambda tag: _ID.sub(rf"\g<1>{name}-", tag[0]), body)
