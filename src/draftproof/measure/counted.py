"""Acceptance from what is counted over a whole request, where no rounds are reported."""

from collections.abc import Sequence
from typing import Any

from draftproof.evidence import Acceptance

COUNTS = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")


def counted_acceptance(records: Sequence[dict[str, Any]]) -> Acceptance | None:
    """
    Add up the counts of all requests; a count that any of them lacks is None.

    Counts that belong to several requests together stand in the record of each of them, and are shared out.

    Returns
    -------
    Acceptance or None
        None where no request reports any.
    """
    reported = [record["speculation"] for record in records if record.get("speculation")]
    if not reported:
        return None

    def total(name: str) -> int | None:
        if any(item[name] is None for item in reported):
            return None
        return round(float(sum(item[name] / item["num_requests"] for item in reported)))

    steps, proposed, accepted = map(total, COUNTS)
    return Acceptance(
        rounds=None,
        drafted_rounds=steps,
        proposed=proposed,
        accepted=accepted,
        corrections=None,
        bonuses=None,
        rate=accepted / proposed if proposed and accepted is not None else None,
        accepted_per_round=accepted / steps if steps and accepted is not None else None,
        emitted_per_round=None,
        by_position=[],
        by_position_conditional=[],
        emitted_histogram=[],
    )
