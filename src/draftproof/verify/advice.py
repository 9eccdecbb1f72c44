"""What would settle a sampled check that settled nothing."""

from collections.abc import Sequence

from draftproof.evidence import ControlResult
from draftproof.verify.collect import SampledDesign
from draftproof.verify.log import TokenLog
from draftproof.verify.needed import needed_at, rounded_up


def advice(log: TokenLog, design: SampledDesign, short: Sequence[str], controls: Sequence[ControlResult]) -> list[str]:
    """
    Say what to change, one sentence each.

    Parameters
    ----------
    log : TokenLog
    design : SampledDesign
    short : sequence of str
        Where the tokens were too few or the bound too wide: places in the round, or "all".
    controls : sequence of ControlResult
    """
    said = [
        f"no token came at '{place}': take a draft that is accepted more often, or prompts that it can continue"
        for place in short
        if place != "all" and place not in log.strata
    ]
    wanted = [needed.sequences for place in short if (needed := needed_at(log, design, place))]
    if wanted:
        said.append(
            f"set sampled.sequences to about {rounded_up(max(wanted))}: a correct engine then passes nine times in ten"
        )
    if any(item.kind == "defect" and not item.behaved for item in controls):
        said.append(
            "a planted defect was not found: raise sampled.control_sequences, or take prompts where more is drafted"
        )
    if any(item.kind == "lossless" and not item.behaved for item in controls):
        said.append(
            "the target-only arm itself does not follow the law that it is held against: mend that first, nothing can be judged by it"
        )
    return said
