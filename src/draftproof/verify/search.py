"""One search for a departure from the target's law: block by block by an e-process, then all tests of the whole log."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.stats.variation import TVResult, pooled_tv
from draftproof.verify.battery import NamedResult, examine, least
from draftproof.verify.collect import Advance, Read, SampledDesign, collect
from draftproof.verify.eprocess import EProcess
from draftproof.verify.log import TokenLog
from draftproof.verify.worker import Worker

SHARES = 2  # of alpha_fail: one for the e-process, one for the tests at the end
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """
    What was drawn and what speaks loudest against it.

    Attributes
    ----------
    log : TokenLog
    p_value : float
        Below ``alpha_fail`` with probability ``alpha_fail`` at most if the tokens follow the target's law.
    loudest : str
        The test that it is from.
    tests : tuple of NamedResult
        Empty where the e-process stopped the run.
    """

    log: TokenLog
    p_value: float
    loudest: str
    tests: tuple[NamedResult, ...]


def search(
    opened: Worker, design: SampledDesign, seed: int, advance: Advance, tell: Tell, read: Read | None = None
) -> Search:
    """
    Draw the design's sequences and look for a departure.

    Parameters
    ----------
    opened : Worker
    design : SampledDesign
    seed : int
        Of the sequences.
    advance : callable
        Gets the number of sequences that were finished.
    tell : callable
        Gets the e-value and the bound after each block.
    read : Read or None
        As for `collect`.

    Raises
    ------
    EngineFailed, Forbidden
        As `collect`.

    Notes
    -----
    ``alpha_fail`` is shared evenly by two judges: an e-process that looks after every block of sequences and may stop the
    run (`verify.eprocess`), and the tests of the whole log, adjusted by Holm (`verify.battery`), which are run only if
    nothing stopped it. ``p_value`` is twice the smaller of the two.
    """
    process, limit = EProcess(), math.log(SHARES / design.alpha_fail)
    seen: list[TokenLog] = []

    def stop(block: TokenLog) -> bool:
        seen.append(block)
        process.update(block)
        bound = _bound(seen, design).upper_bound
        tell(f"e-value {math.exp(min(process.log_e, 700.0)):.3g}, bound {bound:.3f}" if bound is not None else "")
        return process.largest_log_e >= limit

    log = collect(opened.engine, design, design.sequences, seed, advance, drafts=opened.drafts, stop=stop, read=read)
    tests: tuple[NamedResult, ...] = ()
    p_value = min(1.0, SHARES * math.exp(-process.largest_log_e))
    loudest = f"e-process after {len(log.cells) // design.tokens} of {design.sequences} sequences"
    if process.largest_log_e < limit:
        tests = tuple(examine(log))
        smallest, title = least(tests)
        p_value, loudest = min((p_value, loudest), (min(1.0, SHARES * smallest), title))
    return Search(log=log, p_value=p_value, loudest=loudest, tests=tests)


def _bound(blocks: Sequence[TokenLog], design: SampledDesign) -> TVResult:
    cells, laws = (np.concatenate([getattr(block, name) for block in blocks]) for name in ("cells", "laws"))
    return pooled_tv(cells, laws, design.alpha_eq)
