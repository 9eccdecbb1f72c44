"""What a check binds itself to before a token is drawn; hashed into the study's lock."""

from typing import Any

from draftproof.engines.base import EngineProtocol
from draftproof.stats.power import POWER
from draftproof.verify.collect import SEED_STRIDE, SampledDesign
from draftproof.verify.controls import RULE_DEFECTS
from draftproof.verify.eprocess import SCOPES
from draftproof.verify.greedy import ALPHA, RATE_FACTOR, STRICT
from draftproof.verify.identity import TOLERANCE
from draftproof.verify.live_controls import names_of_controls
from draftproof.verify.log import PLACES
from draftproof.verify.noise_floor import CAP, FACTOR, PERCENTILE, POSITIONS, ULPS
from draftproof.verify.sampled import impossible_places
from draftproof.verify.search import SHARES


def registration(engine: EngineProtocol, sampled: dict[str, Any] | None, *, greedy: bool) -> dict[str, Any]:
    """
    Return the record: claims, statistics, error rates, sizes, seeds, controls, quotas, and what ends in which outcome.

    Parameters
    ----------
    engine : EngineProtocol
    sampled : dict or None
        Of the sampled check; None where there is none.
    greedy : bool
        Whether greedy output is compared.
    """
    able = engine.capabilities
    record: dict[str, Any] = {"engine": able.name, "num_speculative_tokens": able.num_speculative_tokens}
    if greedy:
        record["greedy"] = {
            "claim": able.claim,
            "rule": "any difference is FAIL"
            if able.claim in STRICT
            else "regret above tau is FAIL; ties must be explained by replay and no more frequent than the target's own",
            "tau, logits": f"{FACTOR:g} x the {PERCENTILE:g}th percentile of the target's changes between pass shapes over about "
            f"{POSITIONS} positions; at least {ULPS} units in the last place, at most the cap",
            "tau cap, logits": CAP,
            "alpha of the rate of ties": ALPHA,
            "ties at most, times the target's own rate": RATE_FACTOR,
        }
    if sampled is not None:
        record["sampled"] = sampled
    return record


def sampled_record(engine: EngineProtocol, design: SampledDesign) -> dict[str, Any]:
    """Return the record of a check that knows the target's law."""
    able = engine.capabilities
    first = {
        "accept rule, before a token is drawn": f"total variation above {TOLERANCE} on the lattice, or an impossible token, is FAIL, "
        f"if the same lattice finds {', '.join(RULE_DEFECTS)}, and clears the rejection rule; the coupled rule is not asked"
    }
    return {
        "claim": f"total variation below {design.delta} overall and {design.delta_stratum} per place in the round",
        "prompts": [list(prompt) for prompt in design.prompts],
        "cells": "ranks" if design.allowed_token_ids is None else list(design.allowed_token_ids),
        "temperature": design.temperature,
        "sequences": design.sequences,
        "tokens of a sequence": design.tokens,
        "batch": design.batch,
        "seeds": f"{design.seed} x {SEED_STRIDE} + sequence; controls: the seeds after it",
        **(first if able.replaceable_rule else {}),
        "tests": "verify.battery: support, chi-square, scores, independence, correlations, repeats; Holm",
        "e-process": f"on {', '.join(SCOPES)}; a look after each block; may stop with FAIL",
        "alpha_fail": design.alpha_fail,
        "shares of alpha_fail": f"1/{SHARES} the e-process, 1/{SHARES} the tests at the end",
        "alpha_eq": design.alpha_eq,
        "power": POWER,
        "looks at the bound": 1,
        "delta": design.delta,
        "delta_stratum": design.delta_stratum,
        "quotas": {
            place: design.min_stratum_tokens
            for place in PLACES
            if place not in impossible_places(able.num_speculative_tokens)
        },
        "controls": [
            {"name": name, "kind": kind, "sequences": design.control_sequences, "expected": expected}
            for name, kind in names_of_controls(engine)
            for expected in ["flagged" if kind == "defect" else "not flagged"]
        ],
        "exclusions": "none: a request that fails makes the check INCONCLUSIVE",
        "inconclusive": "a quota or a bound is missed, a request fails, or a control misbehaves, whatever else was seen",
        "reruns": 0,
        "dtype": "a rejection in 16 bits is repeated in float32 where the engine can; gone there, it is INCONCLUSIVE",
    }
