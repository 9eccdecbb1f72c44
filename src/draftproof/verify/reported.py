"""
Noise and triage of greedy differences for an engine that gives no logits, only log-probabilities of its likeliest tokens.

At one place these are logits less one number, so gaps between tokens, which is all that is judged, are the same. The target-only
server scores by teacher forcing, and says them of its own single-token passes; the speculative one says them of the passes that it
ran. Classes and limits are those of `verify.triage` and `verify.noise_floor`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from draftproof.engines.base import Reporting
from draftproof.errors import ServerError
from draftproof.records import Completion
from draftproof.request import SamplingParams
from draftproof.verify.noise_floor import CAP, PERCENTILE, POSITIONS, TOP, NoiseFloor, dtype_of
from draftproof.verify.triage import (
    EXACT_TIE,
    MULTI_ROW,
    ONE_ROW,
    ROUNDING,
    SPECULATION,
    UNKNOWN,
    Finding,
    Kind,
    Place,
    settled_without_logits,
)

# what vLLM gives at most unless it is told otherwise; tokens beyond are no rivals
LIKELIEST = 20
Law = Mapping[int, float]
"""Log-probabilities of the likeliest tokens at a place, the likeliest first."""


def triage_all_reported(
    engine: Reporting, records: Sequence[dict[str, Any]], encode: dict[str, list[int]], places: Sequence[Place]
) -> tuple[NoiseFloor, list[Finding]]:
    """
    Measure the noise and classify each difference; a server that no longer answers leaves them unexplained.

    Returns
    -------
    NoiseFloor, list of Finding
        One for each place.
    """
    try:
        noise = measure_reported_noise(engine, records, encode)
        return noise, [triage_reported(engine, noise, place) for place in places]
    except ServerError as error:
        unread = Finding(kind=None, cause=UNKNOWN, notes=(str(error),))
        noise = NoiseFloor(noise=None, floor=0.0, cap=CAP[dtype_of(engine)], positions=0, flips=0)
        return noise, [settled_without_logits(engine, place) or unread for place in places]


def measure_reported_noise(
    engine: Reporting, records: Sequence[dict[str, Any]], encode: dict[str, list[int]]
) -> NoiseFloor:
    """
    Hold what the target-only server says of its own steps against what it says of the same tokens in one pass.

    Parameters and the choice of outputs are those of `noise_floor.measure_noise`. There is no floor: the size of the logits, and so
    the distance of neighbouring numbers there, is not reported.
    """
    outputs = [item for item in records if item["block"] == "A1" and item["repeat"] == 0 and item["token_ids"]]
    budget = -(-POSITIONS // max(1, len(outputs)))
    changes: list[float] = []
    positions, flips = 0, 0
    for item in outputs[:POSITIONS]:
        prompt, tokens = encode[item["prompt_id"]], item["token_ids"][:budget]
        stepwise = _said(engine, prompt, tokens, len(tokens), speculate=False)
        for alone, (_, whole) in zip(stepwise, engine.score_top(prompt, tokens, LIKELIEST), strict=False):
            both = [token for token in list(alone)[:TOP] if token in whole]
            shifts = [whole[token] - alone[token] for token in both]
            changes += [abs(one - other) for one, other in combinations(shifts, 2)]
            flips += not (both and whole[both[0]] == max(whole.values()))
            positions += 1
    return NoiseFloor(
        noise=float(np.percentile(changes, PERCENTILE)) if changes else None,
        floor=0.0,
        cap=CAP[dtype_of(engine)],
        positions=positions,
        flips=flips,
    )


def triage_reported(engine: Reporting, noise: NoiseFloor, place: Place) -> Finding:
    """
    Classify one difference; it is explained if the speculative server says that its passes preferred its token.

    See `verify.triage.triage`. The request is run again there: the same tokens must come, its own token must be a best one, and
    the gap to the target-only token may differ from the target's by no more than tau.
    """
    settled = settled_without_logits(engine, place)
    if settled is not None:
        return settled
    first, second = place.tokens
    assert first is not None and second is not None
    before = list(place.target_only["token_ids"][: place.at])
    (own_first, _), (own_second, law) = (
        engine.score_top(place.prompt, [*before, token], LIKELIEST)[-1] for token in (first, second)
    )
    best = max(own_first, own_second, *law.values())
    regret, other_regret, gap = best - own_second, best - own_first, own_first - own_second
    third = sum(value > own_second for token, value in law.items() if token != second) > 1
    kind: Kind = "DEFECT" if max(regret, other_regret) > noise.tau else "TIE" if regret > 0 else "OK"
    found = Finding(kind=kind, cause=UNKNOWN, regret=regret, gap=abs(gap), notes=("by reported log-probabilities",))
    said = _said(engine, place.prompt, [*before, second], len(place.speculative["token_ids"]), speculate=True)
    if len(said) <= place.at:
        return replace(
            found, notes=(*found.notes, "run again, the speculative server did not say why it chose its token")
        )
    there = said[place.at]
    moved = abs(there[first] - there[second] - gap) if {first, second} <= there.keys() else math.inf
    prefers, still = there.get(second) == max(there.values()), moved <= noise.tau
    explained = prefers and still and not (kind == "TIE" and third)
    found = replace(found, explained=explained)
    if kind == "DEFECT":
        blamed = (ROUNDING if still else MULTI_ROW) if prefers else SPECULATION
        return replace(found, cause=ONE_ROW if other_regret > noise.tau else blamed)
    if gap == 0 and regret == 0:
        return replace(found, cause=EXACT_TIE)
    return replace(found, cause=ROUNDING) if explained or kind == "OK" else found


def _said(
    engine: Reporting, prompt: Sequence[int], tokens: Sequence[int], max_tokens: int, *, speculate: bool
) -> list[Law]:
    """Run a greedy request again and return the server's law at each place up to where other tokens come than before."""
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, logprobs=LIKELIEST, ignore_eos=engine.capabilities.ignore_eos
    )
    done: Completion = engine.generate([list(prompt)], params, speculate=speculate)[0]
    laws = done.top_logprobs or ()
    same = next(
        (at for at, (one, two) in enumerate(zip(done.token_ids, tokens, strict=False)) if one != two), len(tokens)
    )
    return list(laws[:same])
