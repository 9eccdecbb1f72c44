"""When a ratio settles nothing about its limit: the noise of the run, too few prompts, and what to do. Pure."""

import math

from draftproof.evidence import Effect, HostNoise, Interval
from draftproof.gate.policy import Policy

# beyond that many times the prompts of the run nobody is told how many would do
MOST_TIMES_THE_PROMPTS = 100


def within_noise(estimate: float, limit: float, effect: Effect) -> bool:
    """
    Whether the noise of the run alone could carry a ratio across its limit.

    The speculative run lies between the two target-only runs. What made these differ may have been over before it began, or
    have begun after it: then their mean is off by half of their difference, in logarithms. That is known as far as the A/A
    interval goes; an unknown one has a row of its own.
    """
    found = known(effect.aa)
    if found is None or min(*found, estimate) <= 0:
        return False
    _, low, high = found
    return abs(math.log(estimate / limit)) < max(abs(math.log(low)), abs(math.log(high))) / 2


def undecided(
    found: tuple[float, float, float], limit: float, effect: Effect, policy: Policy, host: HostNoise | None
) -> str:
    """Say why a ratio settles nothing about its limit, and what would."""
    estimate, low, high = found
    if within_noise(estimate, limit, effect):
        _, first, last = known(effect.aa) or found
        return (
            f"Too noisy to tell: target-only against itself differs so much ({span(first, last, policy)}) that half of it "
            f"would carry the figure across {times(limit)}. {cause(host)}"
        )
    across = "The interval lies on both sides: too few prompts to tell"
    if min(found) > 0 and estimate != limit:
        reach = math.log(estimate / low) if estimate > limit else math.log(high / estimate)
        needed = math.ceil(effect.n * (reach / math.log(estimate / limit)) ** 2)
        if needed <= MOST_TIMES_THE_PROMPTS * effect.n:
            return f"{across}; about {needed} would, if the estimate stays."
    return f"{across}, and too close for many times as many."


def cause(noise: HostNoise | None) -> str:
    """The most likely cause of a noisy run, and what to do."""
    if noise is not None and noise.advice:
        return f"Most likely cause: {noise.advice[0]}; then run again."
    return "Nothing that was recorded of the host explains it: use longer outputs, more prompts or [measure] repeats."


def known(interval: Interval) -> tuple[float, float, float] | None:
    """Estimate, low and high, or None if any of them is missing."""
    estimate, low, high = interval.estimate, interval.low, interval.high
    if estimate is None or low is None or high is None or any(map(math.isnan, (estimate, low, high))):
        return None
    return estimate, low, high


def times(ratio: float) -> str:
    """Return a ratio in words."""
    return f"{ratio:.3f}x"


def span(low: float, high: float, policy: Policy) -> str:
    """Return an interval in words."""
    return f"{policy.confidence * 100:g}% interval {low:.3f} to {high:.3f}"
