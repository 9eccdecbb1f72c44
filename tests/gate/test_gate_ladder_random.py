"""Whatever is asked of a ladder, in any order: it never runs what no passed study of this machine stands for."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from draftproof.errors import InputError, RefusedError
from draftproof.gate.events import Event, read_events
from draftproof.gate.ladder import active, read_ladder, refresh, roll_back, rung_of
from draftproof.gate.rung import misstep
from support.ladder import HERE, NEW_TORCH, climb

CONFIGURATIONS: list[dict[str, Any]] = [
    {"batches": (batch,), "confidence_threshold": threshold, "k": k}
    for batch in (1, 4)
    for threshold, k in ((0.0, 5), (0.0, 3), (0.4, 5))
]
MACHINES = {"2.13.0": HERE, "2.14.0": NEW_TORCH}


class AnyUse(RuleBasedStateMachine):
    """Promotions, roll-backs and changes of the machine; the events are kept beside the ladder and compared with it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "ladder.sqlite"
        self.machine, self.count, self.seen = "2.13.0", 0, list[Event]()

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        climb(self.path, "first")

    @rule(
        configuration=st.sampled_from(CONFIGURATIONS),
        verdict=st.sampled_from(["ADOPT"] * 5 + ["KEEP_TARGET_ONLY", "INCONCLUSIVE", "ROLL_BACK"]),
        measured=st.sampled_from(["here", "here", "here", *MACHINES]),
        reason=st.sampled_from([None, "found"]),
    )
    def promote(self, configuration: dict[str, Any], verdict: str, measured: str, reason: str | None) -> None:
        self.count += 1
        environment = MACHINES.get(measured, MACHINES[self.machine])
        study = {"verdict": verdict, "environment": environment, **configuration}
        try:
            ladder, event = climb(self.path, str(self.count), here=MACHINES[self.machine], reason=reason, **study)
        except RefusedError as error:
            assert error.exit_code in (10, 11, 12)
            return
        assert event in ladder.standing and verdict == "ADOPT" and environment == MACHINES[self.machine]

    @rule(to=st.sampled_from([None, None, 0, 2, 3, 4]))
    def go_down(self, to: int | None) -> None:
        before = read_ladder(self.path).standing
        try:
            after = roll_back(self.path, to=to, reason="asked")[0].standing
        except InputError:
            assert not before or to not in (None, 0, *(item.id for item in before[:-1]))
            return
        assert len(after) < len(before) and after == before[: len(after)]

    @rule(machine=st.sampled_from(list(MACHINES)))
    def change(self, machine: str) -> None:
        self.machine = machine

    @rule()
    def look(self) -> None:
        told = active(self.path, MACHINES[self.machine])
        top = refresh(self.path, MACHINES[self.machine]).top
        assert told.number == (top.id if top else 0)

    @invariant()
    def what_stands_was_promoted_step_by_step(self) -> None:
        if not self.path.exists():
            return
        standing = read_ladder(self.path).standing
        below = None
        for item in standing:
            assert item.verdict == "ADOPT" and misstep(below, rung_of(item)) is None
            below = rung_of(item)
        found = active(self.path, MACHINES[self.machine])
        if found.rung is not None:
            promoted = next(item for item in standing if item.id == found.number)
            assert promoted.environment is not None and promoted.environment["packages.torch"] == self.machine

    @invariant()
    def no_event_is_lost_or_changed(self) -> None:
        if not self.path.exists():
            return
        events = read_events(self.path)
        assert events[: len(self.seen)] == self.seen
        assert [event.id for event in events] == list(range(1, len(events) + 1))
        self.seen = events


AnyUse.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None, derandomize=True)
TestAnyUse = AnyUse.TestCase
