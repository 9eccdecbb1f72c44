"""All controls. Numbers M, W and E are those of docs/exactness.md."""

from collections.abc import Callable
from typing import Any, Literal

from draftproof.sampling.accept import AcceptRule
from draftproof.sampling.coupled import coupled
from draftproof.verify.controls import acceptance, bonus, correction, drawing, length, numbers, report, rollback, view
from draftproof.verify.controls.control import Control, Part
from draftproof.verify.controls.rule import Rule
from draftproof.verify.controls.temper import tempered

Kind = Literal["defect", "lossless", "slight"]
END_TOKEN = 0  # of the toy laws; for an engine: Rule(accepts=acceptance.always_token(its EOS))
COLD, WARM = 0.7, 1.0 / 0.7


def _rule(name: str, stands_for: str, kind: Kind = "defect", **choices: Callable[..., Any]) -> Control:
    rule = Rule(**choices)
    return Control(name=name, part="accept", kind=kind, stands_for=stands_for, wrap=lambda correct: rule)


def _part(part: Part, name: str, stands_for: str, wrap: Callable[[Any], Any], kind: Kind = "defect") -> Control:
    return Control(
        name=name,
        part=part,
        kind=kind,
        stands_for=stands_for,
        wrap=wrap,
        needs_draft_law=kind != "lossless" and (part == "proposer" or wrap is numbers.DraftsNumberAsCoin),
    )


_ALL = [
    _rule("always accept", "M01; vllm-ascend PR 13766: the coin was the constant 0", accepts=acceptance.always),
    _rule("accept where the target is larger", "M02", accepts=acceptance.where_target_is_larger),
    _rule("redraw from the target", "M03", correction=correction.target_itself),
    _rule("residual of absolute differences", "M04", correction=correction.absolute_difference),
    _rule("residual not normalised", "M05", correction=correction.rest_on_last_id),
    _rule("one coin for the product of ratios", "M06", accepts=acceptance.by_product_of_ratios),
    _rule("accept one place early", "M07; transformers PR 28166: a wrong index", accepts=acceptance.one_place_early),
    _rule("bonus one place early", "M08", bonus=bonus.one_place_early),
    _part(
        "accept",
        "bonus from the draft",
        "M09: the last drafted token is not judged",
        lambda rule: bonus.LastOfDraft(rule, 1),
    ),
    _part(
        "proposer",
        "most likely drafted",
        "M10; transformers issue 32867: the draft was always greedy and reported its softmax",
        lambda proposer: drawing.Redrawn(proposer, drawing.most_likely),
    ),
    _part("noise", "draft's number as coin", "M11", numbers.DraftsNumberAsCoin),
    _part("noise", "one coin per round", "M12", numbers.OneCoinPerRound),
    _part("noise", "coin as the correction's number", "M13", numbers.CoinAsCorrection),
    _part("noise", "same numbers every round", "M14", numbers.SameEveryRound),
    _part(
        "take_back", "one rejected token stays", "M15: stale target keys", lambda take: rollback.Miscounted(take, -1)
    ),
    _part("take_back", "rejected tokens stay", "M15: stale target keys", rollback.Forgotten),
    _part(
        "take_back", "one kept token goes", "M15: a target key is missing", lambda take: rollback.Miscounted(take, 1)
    ),
    _rule("drafted end token stays", "M16", accepts=acceptance.always_token(END_TOKEN)),
    _rule("neighbour's target after a rejection", "M17", correction=correction.neighbours_target),
    _rule("neighbour's target after a draft", "M18", bonus=bonus.neighbours_target),
    _rule("lossy threshold 0.9", "M19; SGLang's acceptance thresholds", accepts=acceptance.below_ratio_over(0.9)),
    _rule("likely tokens stay", "M20: typical acceptance", kind="slight", accepts=acceptance.always_above(0.3)),
    _rule("ratio in bfloat16", "M21; DeepSpec issue 31", kind="slight", accepts=acceptance.in_bfloat16),
    _part("noise", "one row's numbers for all", "numbers broadcast over the batch", numbers.FirstRowsForAll),
    _part(
        "proposer",
        "drawn colder than reported",
        "W1; transformers issues 47932 and 47961: raw logits reported as the draft's law",
        lambda proposer: drawing.Redrawn(proposer, drawing.from_tempered(COLD)),
    ),
    _part(
        "proposer",
        "reported colder than drawn",
        "W2",
        lambda proposer: report.Reported(proposer, lambda probs: tempered(probs, COLD)),
    ),
    _rule("bonus at another temperature", "W3", bonus=bonus.of_tempered(WARM)),
    _rule("correction at another temperature", "W4", correction=correction.of_tempered(WARM)),
    _rule(
        "judged at another temperature",
        "W5; vLLM issues 9834 and 42744: settings that reach the bonus token only",
        accepts=acceptance.against_tempered(WARM),
        correction=correction.of_tempered(WARM),
    ),
    _rule("target not renormalised", "W6: a mask of 0.9 of the mass", accepts=acceptance.below_ratio_over(1.0 / 0.9)),
    _rule("coarse coins", "W7: forbidden tokens of the target stay", accepts=acceptance.by_coarse_coins),
    _part(
        "proposer",
        "dropped for its own probability",
        "transformers' assistant_confidence_threshold: a drafted token is withheld because of what was drawn",
        lambda proposer: length.CutWhereUnsure(proposer, length.drawn_token_below(0.2)),
    ),
    _part("accept", "no bonus", "E1", lambda rule: bonus.LastOfDraft(rule, 0), "lossless"),
    _part("proposer", "stale draft", "E2", lambda proposer: view.Seen(proposer, view.one_token_stale), "lossless"),
    _part(
        "proposer",
        "draft at other settings",
        "E3, WE",
        lambda proposer: view.Seen(proposer, view.at_other_settings),
        "lossless",
    ),
    _part(
        "proposer",
        "reported as point masses",
        "E6; vLLM without draft_probs, llama.cpp's match",
        lambda proposer: report.Reported(proposer, None),
        "lossless",
    ),
    _part("proposer", "varying number of tokens", "E7", length.Varying, "lossless"),
    _part(
        "proposer",
        "stopped where the draft is unsure",
        "E7, by the draft's law before the draw",
        lambda proposer: length.CutWhereUnsure(proposer, length.best_token_below(0.3)),
        "lossless",
    ),
    _part("accept", "coupled rule", "the engine's other rule", lambda rule: coupled, "lossless"),
    _part("proposer", "target-only", "nothing is drafted", length.Nothing, "lossless"),
]

DEFECTS = {control.name: control for control in _ALL if control.kind != "lossless"}
"""By name; the slight ones too."""
LOSSLESS = {control.name: control for control in _ALL if control.kind == "lossless"}
RULE_DEFECTS: dict[str, AcceptRule] = {
    name: DEFECTS[name].wrap(None) for name in ("always accept", "redraw from the target")
}
"""Accept rules that an engine's own check plants."""
