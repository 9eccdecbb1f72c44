"""The sampled check of a study: which of the three ways, its design, and how it is run."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from draftproof import evidence as ev
from draftproof.engines.base import EngineProtocol
from draftproof.errors import PlanError, PromptError
from draftproof.study.plan import Plan
from draftproof.study.progress import Progress
from draftproof.verify.arms import PROBE_TOKENS, BlackBoxDesign, num_requests
from draftproof.verify.black_box import verify_black_box
from draftproof.verify.collect import SampledDesign
from draftproof.verify.live_controls import names_of_controls
from draftproof.verify.power_plan import plan_sampled
from draftproof.verify.registration import sampled_record
from draftproof.verify.rule_check import check_rule, wrong_rule
from draftproof.verify.sampled import verify_sampled
from draftproof.verify.top_logprobs import Reported, verify_top_logprobs
from draftproof.verify.worker import Worker

Method = Literal["own-pass", "top-logprobs", "two-samples"]
Register = Callable[[ev.SampledPlanned], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledCheck:
    """What is run: one of two designs, and for reported log-probabilities what the server says."""

    method: Method
    law: SampledDesign | None = None
    reported: Reported | None = None
    arms: BlackBoxDesign | None = None

    def record(self, engine: EngineProtocol) -> dict[str, Any]:
        """Return what is registered."""
        if self.arms is not None:
            return {"method": self.method, **asdict(self.arms)}
        assert self.law is not None
        read = {} if self.reported is None else {"reported": asdict(self.reported)}
        return {"method": self.method, **sampled_record(engine, self.law), **read}


def sampled_check(engine: EngineProtocol, plan: Plan) -> SampledCheck | None:
    """
    Return the check in token ids, or None when the plan has none.

    Raises
    ------
    PlanError
        The engine cannot do what the plan asks for, a word is not one token, two words are the same token, or a prompt cannot be
        used.
    """
    table, able = plan.sampled, engine.capabilities
    if not table.enabled:
        return None
    if not able.ignore_eos:
        raise PlanError(
            f"sampled: engine '{able.name}' cannot be told to go on after an end of sequence, which the check needs; set "
            "sampled.enabled = false and policy.require_sampled = false"
        )
    can: dict[Method, bool] = {"own-pass": able.score, "top-logprobs": able.logprobs, "two-samples": True}
    known = [name for name, possible in can.items() if possible]
    method = known[0] if table.method == "auto" else table.method
    if method not in known:
        raise PlanError(
            f"sampled.method = '{method}': engine '{able.name}' cannot do that; allowed: auto, {', '.join(known)}"
        )
    for name in ("num_logprobs", "logprobs_mode"):
        if method != "top-logprobs" and getattr(table, name) != type(table).model_fields[name].default:
            raise PlanError(
                f"sampled.{name} is for method 'top-logprobs', and engine '{able.name}' is judged by '{method}' here; remove it"
            )
    allowed = _allowed(engine, plan)
    try:
        prompts = tuple(tuple(engine.encode(text)) for text in table.prompt)
    except PromptError as error:
        raise PlanError(f"sampled.prompt: {error}") from None
    if method == "two-samples":
        if len(prompts) < 2:
            raise PlanError("sampled.prompt: two samples need two or more different prompts at once; give a list")
        return SampledCheck(
            method=method,
            arms=BlackBoxDesign(
                prompts=prompts,
                sequences=-(-table.sequences // len(prompts)),
                control_sequences=-(-table.control_sequences // len(prompts)),
                tokens=table.tokens,
                batch=max(2, table.batch),
                temperature=table.temperature,
                delta=table.delta,
                alpha_fail=table.alpha_fail,
                alpha_eq=table.alpha_eq,
                seed=table.seed,
                allowed_token_ids=allowed,
            ),
        )
    names = {"enabled", "prompt", "words", "cells", "method", "num_logprobs", "logprobs_mode"}
    law = SampledDesign(prompts=prompts, allowed_token_ids=allowed, **table.model_dump(exclude=names))
    if method == "own-pass":
        return SampledCheck(method=method, law=law)
    reported = Reported(num_logprobs=table.num_logprobs, mode=table.logprobs_mode, cells=min(8, table.num_logprobs + 1))
    reported.require(law)
    return SampledCheck(method=method, law=law, reported=reported)


def run_check(
    engine: EngineProtocol, check: SampledCheck, progress: Progress, register: Register
) -> tuple[ev.SampledResult, list[ev.ControlResult]]:
    """Say and register what it will see where that is known, run it, and return what it found."""
    if check.arms is not None:
        advance = progress.start("two samples and controls", num_requests(check.arms))
        longest = max(map(len, check.arms.prompts)) + max(check.arms.tokens, PROBE_TOKENS)
        worker = engine.sibling(max_batch=check.arms.batch, max_len=min(longest, engine.capabilities.max_len))
        return verify_black_box(worker, check.arms, advance)
    assert check.law is not None
    total = check.law.sequences + len(names_of_controls(engine)) * check.law.control_sequences
    if check.reported is not None:
        advance = progress.start("sampled check by reported log-probabilities, and controls", total)
        return verify_top_logprobs(engine, check.law, advance, check.reported)
    checked = check_rule(engine, check.law)
    wrong = wrong_rule(checked, check.law)
    if wrong is not None:
        progress.say("the accept rule is wrong by itself: nothing is sampled")
        return wrong
    planned = tell_plan(engine, checked.worker, check.law, progress)
    if planned is not None:
        register(planned)
    advance = progress.start("sampled check and controls", total)
    sampled, controls = verify_sampled(engine, check.law, advance, advance.tell, checked=checked)
    return sampled.model_copy(update={"planned": planned}), controls


def tell_plan(
    engine: EngineProtocol, worker: Worker, design: SampledDesign, progress: Progress
) -> ev.SampledPlanned | None:
    """Say, before the check, what it will be able to see and how long it will take."""
    planned = plan_sampled(engine, worker, design)
    if planned is None:
        progress.say("sampled check: the pilot failed, and so will the check")
        return None
    progress.say(f"sampled check: about {planned.seconds:.0f} s, each test at alpha {planned.alpha:.2g}")
    for place in planned.places:
        enough = "enough to pass" if place.enough else "too few to pass: INCONCLUSIVE at best"
        if not place.enough and place.sequences_needed:
            enough += f"; sampled.sequences = {place.sequences_needed} would be about enough"
        progress.say(
            f"  {place.place:8} {place.tokens:6} tokens, sees deviations from {place.smallest_deviation:.3f} on; bound about "
            f"{place.expected_bound:.3f} of {place.delta:g} allowed, {enough}"
        )
    return planned


def _allowed(engine: EngineProtocol, plan: Plan) -> tuple[int, ...] | None:
    """Return the ids of the words, or None where the whole vocabulary is generated from."""
    if plan.sampled.cells == "ranks" or not engine.capabilities.allowed_token_ids:
        return None
    allowed: list[int] = []
    for word in plan.sampled.words:
        token_ids = engine.encode(word)
        if len(token_ids) != 1 or token_ids[0] in allowed:
            what = "a token that another word has" if len(token_ids) == 1 else f"{len(token_ids)} tokens"
            raise PlanError(f"sampled.words: {word!r} is {what} in this tokenizer; choose different one-token words")
        allowed.extend(token_ids)
    return tuple(allowed)
