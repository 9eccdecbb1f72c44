"""Compare the greedy arms token for token, and measure each first difference under the target. Times nothing."""

from collections.abc import Sequence
from typing import Any

from draftproof.engines.base import EngineProtocol
from draftproof.evidence import Divergence, GreedyResult, Outcome
from draftproof.verify.anchor import Anchor


def compare_greedy(
    engine: EngineProtocol,
    records: Sequence[dict[str, Any]],
    encode: dict[str, list[int]],
    anchored: Anchor | None = None,
) -> GreedyResult:
    """
    Judge the B arm against the A arm of the same prompt, and the A arm against its own repetition.

    Parameters
    ----------
    engine : EngineProtocol
        Scores a divergence: the target's logits by an independent pass without the engine's cache.
    records : sequence of request records
    encode : mapping of prompt id to the prompt's token ids
    anchored : Anchor or None
        The target-only arm against the plain model; beyond its bound is a FAIL whatever the arms agree on.

    Notes
    -----
    Where the engine claims bitwise equality any difference is a FAIL; elsewhere one is INCONCLUSIVE until it is explained.
    """
    strict = engine.capabilities.claim in ("bitwise", "bitwise_same_batch")
    cells: dict[tuple[str, int, int], dict[str, dict[str, Any]]] = {}
    for item in records:
        cells.setdefault((item["prompt_id"], item["repeat"], item["concurrency"]), {})[item["block"]] = item
    pairs = [(cell["A1"], cell["B"]) for cell in cells.values() if {"A1", "B"} <= cell.keys()]
    divergences = []
    for one, other in pairs:
        a, b = one["token_ids"], other["token_ids"]
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            regret = None
            if at < len(b) and engine.capabilities.score:
                logits = engine.score(encode[one["prompt_id"]], [b[: at + 1]])[0, -1]
                regret = float(logits.max() - logits[b[at]])
            divergences.append(
                Divergence(
                    prompt_id=one["prompt_id"],
                    category=one["category"],
                    position=at,
                    target_only_token=a[at] if at < len(a) else None,
                    speculative_token=b[at] if at < len(b) else None,
                    regret=regret,
                    note="the engine claims bitwise equality: a defect" if strict else "not explained by this version",
                )
            )
    repeats = [(cell["A1"], cell["A2"]) for cell in cells.values() if {"A1", "A2"} <= cell.keys()]
    repeated = sum(one["token_ids"] == other["token_ids"] for one, other in repeats)
    broken = bool(divergences) or repeated < len(repeats)
    outcome: Outcome = "PASS"
    if not pairs:
        outcome = "INCONCLUSIVE"
    elif broken:
        outcome = "FAIL" if strict else "INCONCLUSIVE"
    if anchored is not None and not anchored.holds:
        outcome = "FAIL"
    return GreedyResult(
        outcome=outcome,
        prompts=len(pairs),
        identical=len(pairs) - len(divergences),
        tokens=sum(len(one["token_ids"]) for one, _ in pairs),
        divergences=divergences,
        repeatability_prompts=len(repeats),
        repeatability_identical=repeated,
        how="every generated token id of the speculative arm was compared with the target-only arm's of the same "
        "prompt, run one after the other by the same engine",
        anchor_tokens=anchored.tokens if anchored else None,
        anchor_regret=anchored.worst_regret if anchored else None,
        anchor_bound=anchored.bound if anchored else None,
    )
