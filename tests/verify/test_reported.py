"""A server's greedy differences, judged by what it reports: rounding is excused, and each planted cause is named."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from draftproof.engines.base import Capabilities
from draftproof.errors import ServerError
from draftproof.evidence import GreedyResult
from draftproof.measure.run import record
from draftproof.records import Chunk, Completion
from draftproof.request import SamplingParams
from draftproof.verify import triage as named
from draftproof.verify.greedy import compare_greedy
from draftproof.verify.reported import LIKELIEST
from draftproof.workload.prompts import WorkloadPrompt

VOCAB, LENGTH = 40, 24
PROMPTS = [[7, number] for number in range(12)]
ROUNDING = 0.03
Law = np.ndarray
Shape = str


def law(prefix: Sequence[int], shape: Shape, rounding: float) -> Law:
    """Log-probabilities after a prefix; each shape of pass rounds in its own way."""
    exact = np.random.default_rng([1, *prefix]).standard_normal(VOCAB)
    noise = np.random.default_rng([2, ["whole", "alone", "block"].index(shape), *prefix]).uniform(-1, 1, VOCAB)
    logits = exact + rounding * noise
    return logits - np.log(np.exp(logits).sum())


@dataclass
class Reporter:
    """Two greedy servers over tabulated laws; ``change`` (law, prefix) is done to those of an arm's own passes."""

    rounding: float = ROUNDING
    speculative: Callable[[Law, Sequence[int]], Law] = lambda law, prefix: law
    target_only: Callable[[Law, Sequence[int]], Law] = lambda law, prefix: law
    emits: Callable[[Law, Sequence[int]], int] = lambda law, prefix: int(law.argmax())
    silent: bool = False
    dtype: str = "bfloat16"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="reporter",
            claim="up_to_ties",
            claim_basis="",
            max_batch=1,
            max_len=256,
            reports_rounds=False,
            allowed_token_ids=False,
            score=False,
            replaceable_rule=False,
            num_speculative_tokens=None,
            details={"dtype": self.dtype},
            score_top=True,
        )

    def generate(self, prompts: Any, params: SamplingParams, *, speculate: bool = True, **_: Any) -> list[Completion]:
        sequence, tops = list(prompts[0]), []
        for _place in range(params.max_tokens):
            shape, change = ("block", self.speculative) if speculate else ("alone", self.target_only)
            own = change(law(sequence, shape, self.rounding), sequence)
            tops.append(_likeliest(own, params.logprobs or 0))
            sequence.append(self.emits(own, sequence) if speculate else int(own.argmax()))
        token_ids = tuple(sequence[len(prompts[0]) :])
        return [
            Completion(
                token_ids=token_ids,
                text=str(token_ids),
                finish_reason="length",
                logprobs=None,
                top_logprobs=tuple(tops) if params.logprobs and not (speculate and self.silent) else None,
                rounds=(),
                speculation=None,
                chunks=(Chunk(num_tokens=len(token_ids), at_ms=1.0),),
                num_prompt_tokens=len(prompts[0]),
            )
        ]

    def score_top(
        self, prompt: Sequence[int], tokens: Sequence[int], num_top: int
    ) -> list[tuple[float, dict[int, float]]]:
        laws = [law([*prompt, *tokens[:at]], "whole", self.rounding) for at in range(len(tokens))]
        return [(float(own[token]), _likeliest(own, num_top)) for own, token in zip(laws, tokens, strict=True)]


def _likeliest(own: Law, num: int) -> dict[int, float]:
    return {int(token): float(own[token]) for token in (-own).argsort()[:num]}


def judged(engine: Reporter) -> GreedyResult:
    records = []
    for number, prompt in enumerate(PROMPTS):
        prompt_named = WorkloadPrompt(id=f"p{number}", category="toy", text="ids")
        for block, speculate in (("A1", False), ("B", True), ("A2", False)):
            (done,) = engine.generate([prompt], SamplingParams(max_tokens=LENGTH, temperature=0.0), speculate=speculate)
            records.append(record(prompt_named, done, block, 0, 1, 0.0))
    return compare_greedy(engine, records, {f"p{number}": prompt for number, prompt in enumerate(PROMPTS)})  # type: ignore[arg-type]


def causes(found: GreedyResult) -> set[str | None]:
    return {one.cause for one in found.divergences}


def at_fifth(number: int) -> Callable[[Law, Sequence[int]], int]:
    """Emit the token of some rank as the fifth one of the first prompt."""
    return lambda own, prefix: int((-own).argsort()[number if len(prefix) == 6 and prefix[:2] == PROMPTS[0] else 0])


def test_a_server_that_does_not_score_leaves_every_difference_unexplained() -> None:
    class Broken(Reporter):
        def score_top(self, *parts: Any) -> Any:
            raise ServerError("the server did not score 3 tokens: HTTP 500: out of memory")

    found = judged(Broken())
    assert found.outcome == "INCONCLUSIVE" and causes(found) == {named.UNKNOWN}
    assert all("HTTP 500: out of memory" in one.note for one in found.divergences)
    assert found.triage is not None and found.triage.noise_positions == 0


def test_rounding_that_the_target_reports_of_itself_is_excused() -> None:
    found = judged(Reporter())
    assert found.divergences and found.outcome == "PASS" and causes(found) == {named.ROUNDING}
    seen = found.triage
    assert seen is not None and seen.noise is not None and seen.reasons == []
    # gaps move by at most four times the rounding, and by nearly that now and then
    assert 2 * ROUNDING < seen.noise <= 4 * ROUNDING and seen.tau == 2 * seen.noise
    assert seen.noise_positions >= 12 * LENGTH and seen.target_flips > 0 and seen.controlled == 0
    for one in found.divergences:
        assert one.kind in ("OK", "TIE") and one.explained and one.regret is not None and one.regret <= 4 * ROUNDING


def test_without_rounding_the_arms_agree_and_nothing_is_asked() -> None:
    found = judged(Reporter(rounding=0.0))
    assert found.outcome == "PASS" and found.triage is None


@pytest.mark.parametrize("rank", [2, LIKELIEST + 5], ids=["likely", "not reported"])
def test_a_token_that_the_speculative_server_itself_did_not_prefer_is_a_defect_of_the_speculation(rank: int) -> None:
    found = judged(Reporter(rounding=0.0, emits=at_fifth(rank)))
    assert found.outcome == "FAIL" and causes(found) == {named.SPECULATION}
    (one,) = found.divergences
    assert (one.position, one.kind, one.explained) == (4, "DEFECT", False)
    assert one.regret is not None and one.regret > 0 and "reported log-probabilities" in one.note


def test_a_second_best_within_the_noise_that_its_own_passes_did_not_prefer_is_not_excused() -> None:
    def close(own: Law, prefix: Sequence[int]) -> int:
        """The second best token wherever it is nearly the best."""
        best, second = (-own).argsort()[:2]
        return int(second if own[best] - own[second] < ROUNDING else best)

    found = judged(Reporter(emits=close))
    unexplained = [one for one in found.divergences if not one.explained]
    assert unexplained and {one.kind for one in unexplained} <= {"OK", "TIE"}
    assert found.outcome == "INCONCLUSIVE"


def test_passes_of_several_rows_that_are_off_are_named() -> None:
    even = np.where(np.arange(VOCAB) % 2 == 0, 1.5, 0.0)
    found = judged(Reporter(speculative=lambda own, prefix: own + even))
    assert found.outcome == "FAIL" and named.MULTI_ROW in causes(found) and named.SPECULATION not in causes(found)


def test_a_target_only_token_that_the_target_does_not_prefer_is_named() -> None:
    def worse(own: Law, prefix: Sequence[int]) -> Law:
        return np.where(own == own.max(), own.max() - 9.0, own) if len(prefix) == 6 else own

    found = judged(Reporter(rounding=0.0, target_only=worse))
    assert found.outcome == "FAIL" and causes(found) == {named.ONE_ROW}


def test_a_speculative_server_that_does_not_say_why_leaves_it_open() -> None:
    found = judged(Reporter(silent=True))
    assert found.divergences and found.outcome == "INCONCLUSIVE"
    assert all(one.explained is None for one in found.divergences)


def test_noise_above_what_the_dtype_may_excuse_excuses_nothing() -> None:
    found = judged(Reporter(dtype="float32"))
    assert found.triage is not None and found.triage.cap == 1e-3 and found.outcome in ("FAIL", "INCONCLUSIVE")
    assert any("may not excuse so much" in reason for reason in found.triage.reasons)


def test_a_shorter_output_needs_no_law() -> None:
    engine = Reporter(rounding=0.0)
    prompt = PROMPTS[0]
    (whole,) = engine.generate([prompt], SamplingParams(max_tokens=LENGTH, temperature=0.0))
    (short,) = engine.generate([prompt], SamplingParams(max_tokens=LENGTH - 4, temperature=0.0))
    one = WorkloadPrompt(id="p0", category="toy", text="ids")
    records = [record(one, done, block, 0, 1, 0.0) for block, done in (("A1", whole), ("B", short), ("A2", whole))]
    found = compare_greedy(engine, records, {"p0": prompt})  # type: ignore[arg-type]
    assert found.outcome == "FAIL" and causes(found) == {named.LENGTH}
