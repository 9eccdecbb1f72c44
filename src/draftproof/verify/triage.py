"""
Why do the greedy arms differ here? Rounding between nearly equal tokens, or a defect, and of what.

The first difference is looked at under the target: by an independent pass, in single-token passes, in a block without a draft, and
in the passes that the speculative arm ran. A few are also run with the target as its own draft, and again in float32, where
rounding is gone and a defect is not. Source of the classes: regret under teacher forcing, with a tolerance that is measured.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from draftproof.engines.base import ControlArm, EngineProtocol
from draftproof.errors import DraftproofError
from draftproof.request import SamplingParams
from draftproof.verify.noise_floor import CAP, NoiseFloor, dtype_of

Kind = Literal["OK", "TIE", "DEFECT"]
Record = dict[str, Any]
Row = npt.NDArray[np.float64]

EXACT_TIE = "exact tie"
ROUNDING = "arithmetic of the block pass"
MULTI_ROW = "the target's multi-row pass is wrong"
ONE_ROW = "the target's one-row pass is wrong"
CACHE = "cache"
STOP_RULE = "stop rule"
LENGTH = "length"
TOKENIZER = "tokenizer"
SPECULATION = "a defect of the speculation"
UNKNOWN = "not explained"
NARROW = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """
    Where two outputs of one prompt part.

    Attributes
    ----------
    prompt : sequence of int
    target_only, speculative : request record
    at : int
        The first generated token that differs.
    """

    prompt: Sequence[int]
    target_only: Record
    speculative: Record
    at: int

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """The target-only and the speculative token; None where the output has ended."""
        both = (self.target_only["token_ids"], self.speculative["token_ids"])
        one, other = (ids[self.at] if self.at < len(ids) else None for ids in both)
        return one, other

    @property
    def passes(self) -> list[tuple[int, int]] | None:
        """The speculative arm's passes up to this token, as (positions, tokens kept); None where they are not known."""
        record = self.speculative
        ran = [(item["num_proposed"] + 1, item["emitted"]) for item in record["rounds"] if item["emitted"]]
        if not ran:
            widths = record.get("pass_widths") or []
            ran = [(width, chunk[0]) for width, chunk in zip(widths, record["chunks"], strict=False)]
        seen, before = [], 0
        for width, kept in ran:
            seen.append((width, min(kept, self.at + 1 - before)))
            before += kept
            if before > self.at:
                return seen
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    What was found at one place.

    Attributes
    ----------
    kind : {"OK", "TIE", "DEFECT"} or None
        "OK": the speculative token is a best one of the independent pass too. "TIE": it is the second best, within tau.
        "DEFECT": rounding cannot explain it. None: it could not be scored.
    cause : str
    regret : float, logits, or None
        How far the speculative token is below the independent pass's best.
    gap : float, logits, or None
        Distance of the two arms' tokens in it.
    explained : bool or None
        Whether the passes that the speculative arm ran give its token again. None: they are not known.
    confirmed : bool or None
        Whether a defect is there in float32 too. None: that was not run.
    notes : tuple of str
        What the control arms showed.
    """

    kind: Kind | None
    cause: str
    regret: float | None = None
    gap: float | None = None
    explained: bool | None = None
    confirmed: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_defect(self) -> bool:
        """Whether it stands as a defect: it is one, and float32 does not make it vanish."""
        return self.kind == "DEFECT" and self.confirmed is not False

    @property
    def is_open(self) -> bool:
        """Whether neither a defect was shown nor rounding as the cause."""
        return not self.is_defect and not (self.kind == "OK" or (self.kind == "TIE" and self.explained is True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The gap between the two arms' tokens in each scoring, in logits; ``replayed`` is None where the passes are not known."""

    alone: float
    block: float
    replayed: float | None
    best_replayed: int | None

    @property
    def moved(self) -> float:
        """The largest change of the gap, in logits."""
        gaps = [gap for gap in (self.alone, self.block, self.replayed) if gap is not None]
        return max(gaps) - min(gaps)

    def broken(self, limit: float) -> str | None:
        """Name what moves the gap by more than a limit: taking rejected tokens back, or the mere width of a pass."""
        if self.replayed is not None and abs(self.replayed - self.block) > limit:
            return CACHE
        return MULTI_ROW if abs(self.block - self.alone) > limit else None


def triage(engine: EngineProtocol, noise: NoiseFloor, place: Place) -> Finding:
    """Classify one difference and name its cause, without the control arms that need another engine."""
    first, second = place.tokens
    logits = _judged(engine, place) if engine.capabilities.score and second is not None else None
    regret = None if logits is None else float(logits.max() - logits[second])
    settled = settled_without_logits(engine, place)
    if settled is not None:
        return replace(settled, regret=regret)
    if logits is None or regret is None:
        return Finding(kind=None, cause=UNKNOWN, notes=("the engine cannot score",))
    gap, other_regret = float(logits[first] - logits[second]), float(logits.max() - logits[first])
    third = int((logits > logits[second]).sum()) > 1
    kind: Kind = "DEFECT" if max(regret, other_regret) > noise.tau else "TIE" if regret > 0 else "OK"
    found = Finding(kind=kind, cause=UNKNOWN, regret=regret, gap=abs(gap))
    if gap == 0 and regret == 0:
        found = replace(found, cause=EXACT_TIE)
    if not engine.capabilities.score_passes:
        return found
    seen = _look(engine, place)
    explained = None if seen.best_replayed is None else seen.best_replayed == second
    found = replace(found, explained=explained and not (kind == "TIE" and third))
    narrow = dtype_of(engine) in NARROW
    broken = seen.broken(noise.tau if narrow else noise.cap)
    # in 16 bits a gap may move by more than tau once in a thousand; a tie is left to the float32 arm
    if broken and (kind == "DEFECT" or not narrow):
        return replace(found, kind="DEFECT", cause=broken, confirmed=None if narrow else True)
    if kind == "DEFECT":
        blamed = {True: ROUNDING, False: SPECULATION, None: UNKNOWN}[explained]
        cause = ONE_ROW if other_regret > noise.tau else blamed
        confirmed = None if narrow else max(regret, other_regret) > noise.cap
        return replace(found, cause=cause, confirmed=confirmed)
    if found.cause != EXACT_TIE and (explained or kind == "OK"):
        return replace(found, cause=ROUNDING)
    return found


class Controls:
    """The control arms of an engine, made when first asked for; one that cannot be made is said and left out."""

    def __init__(self, engine: EngineProtocol) -> None:
        self._engine = engine
        self._made: dict[ControlArm, EngineProtocol | str] = {}

    def check(self, found: Finding, place: Place) -> Finding:
        """Run the target as its own draft, and look at the difference again in float32."""
        first, second = place.tokens
        if first is None or second is None or found.kind is None:
            return found
        notes = list(found.notes)
        own = self._arm("own draft")
        if isinstance(own, str):
            notes.append(own)
        else:
            tokens = _run(own, place, True)
            same = tokens[place.at : place.at + 1] == [first] and tokens[: place.at] == _before(place)
            notes.append(
                "the target as its own draft gives " + ("the target-only token" if same else "another token too")
            )
            if found.kind == "DEFECT" and found.cause == UNKNOWN:
                found = replace(found, cause=SPECULATION if same else MULTI_ROW)
        if dtype_of(self._engine) not in NARROW:
            return replace(found, notes=tuple(notes))
        wide = self._arm("float32")
        if isinstance(wide, str):
            return replace(found, notes=(*notes, wide))
        return _in_float32(wide, replace(found, notes=tuple(notes)), place)

    def close(self) -> None:
        """Free the control arms' caches and copies; the engine keeps its own models."""
        self._made.clear()

    def _arm(self, name: ControlArm) -> EngineProtocol | str:
        if name not in self._made:
            if name not in self._engine.capabilities.control_arms:
                self._made[name] = f"{name}: this engine has no such control arm"
            else:
                try:
                    self._made[name] = self._engine.control_arm(name)
                except DraftproofError as error:
                    self._made[name] = f"{name}: {error}"
        return self._made[name]


def _in_float32(wide: EngineProtocol, found: Finding, place: Place) -> Finding:
    limit = CAP["float32"]
    if wide.capabilities.score_passes:
        seen = _look(wide, place)
        broken = seen.broken(limit)
        notes = (*found.notes, f"in float32 the gap moves by {seen.moved:.2g} between pass shapes")
        if broken:
            return replace(found, kind="DEFECT", cause=broken, confirmed=True, notes=notes)
        found = replace(found, notes=notes)
    if found.kind != "DEFECT":
        return found
    one, other = (_run(wide, place, speculate) for speculate in (False, True))
    if one == other:
        notes = (*found.notes, "in float32 the arms agree: not a defect of the algorithm")
        return replace(found, confirmed=False, notes=notes)
    at = _first_difference(one, other)
    regret = limit
    if at < len(other):
        logits = wide.score(place.prompt, [other[: at + 1]])[0, -1].astype(np.float64)
        regret = float(logits.max() - logits[other[at]])
    confirmed = at >= len(other) or regret > limit or found.cause == ONE_ROW
    return replace(
        found, confirmed=confirmed, notes=(*found.notes, f"in float32 the arms differ too, regret {regret:.2g}")
    )


def _look(engine: EngineProtocol, place: Place) -> Seen:
    """Score the place alone, in a block whose every token is kept, and in the passes that were run."""
    first, second = place.tokens
    assert first is not None and second is not None
    tokens = place.speculative["token_ids"][: place.at + 1]
    passes = place.passes
    full = (engine.capabilities.num_speculative_tokens or 1) + 1
    # the row of its pass in which the token was scored
    row = passes[-1][1] - 1 if passes else min(place.at, full - 1)
    width = passes[-1][0] if passes and passes[-1][0] > 1 else full
    lead, blocks = (place.at - row) % width, (place.at - row) // width
    whole = [*([(lead, lead)] if lead else []), *[(width, width)] * blocks, (width, row + 1)]

    def last(shape: Sequence[tuple[int, int]]) -> Row:
        (logits,) = deque(engine.score_passes(place.prompt, tokens, shape), maxlen=1)
        wanted: Row = logits[-1].astype(np.float64)
        return wanted

    alone, block = last([(1, 1)] * len(tokens)), last(whole)
    replayed = last(passes) if passes else None
    return Seen(
        alone=float(alone[first] - alone[second]),
        block=float(block[first] - block[second]),
        replayed=None if replayed is None else float(replayed[first] - replayed[second]),
        best_replayed=None if replayed is None else int(replayed.argmax()),
    )


def _run(engine: EngineProtocol, place: Place, speculate: bool) -> list[int]:
    """Run the request again, to the end of both outputs."""
    longest = max(len(place.target_only["token_ids"]), len(place.speculative["token_ids"]))
    params = SamplingParams(max_tokens=longest, temperature=0.0, ignore_eos=True)
    return list(engine.generate([list(place.prompt)], params, speculate=speculate)[0].token_ids)


def _before(place: Place) -> list[int]:
    return list(place.target_only["token_ids"][: place.at])


def _judged(engine: EngineProtocol, place: Place) -> Row:
    """Return the logits of the independent pass at the place."""
    row: Row = engine.score(place.prompt, [place.speculative["token_ids"][: place.at + 1]])[0, -1].astype(np.float64)
    return row


def _without_logits(place: Place) -> str | None:
    """Name a cause that has nothing to do with logits: another prompt, another text, or the rule by which one arm ended."""
    one, other = place.target_only, place.speculative
    first, second = place.tokens
    if one["num_prompt_tokens"] != other["num_prompt_tokens"]:
        return TOKENIZER
    if first is not None and second is not None:
        return None
    if first is None and second is None and one["finish_reason"] == other["finish_reason"]:
        return TOKENIZER
    ended = one if first is None else other
    return LENGTH if ended["finish_reason"] == "length" else STOP_RULE


def settled_without_logits(engine: EngineProtocol, place: Place) -> Finding | None:
    """Return the defect where a difference has nothing to do with logits, else None."""
    cause, overrun = _without_logits(place), _overrun(engine, place)
    if cause is None:
        return None
    notes = () if overrun is None else (overrun,)
    return Finding(kind="DEFECT", cause=STOP_RULE if overrun else cause, confirmed=True, notes=notes)


def _overrun(engine: EngineProtocol, place: Place) -> str | None:
    """Say which arm went past the most tokens that its request allows, and whose fault that is."""
    for record in (place.target_only, place.speculative):
        came, most = len(record["token_ids"]), record.get("max_tokens")
        if most is not None and came > most:
            return f"{engine.capabilities.name} gave {came} tokens, {record['arm']}, where {most} were asked for"
    return None


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))


def find_place(prompt: Sequence[int], target_only: Record, speculative: Record) -> Place | None:
    """Return where two records part, or None where their tokens, their text and their ends are the same."""
    if all(target_only[key] == speculative[key] for key in ("token_ids", "text", "finish_reason", "num_prompt_tokens")):
        return None
    one, other = target_only["token_ids"], speculative["token_ids"]
    return Place(prompt=prompt, target_only=target_only, speculative=speculative, at=_first_difference(one, other))
