"""
Kills processes that write a ladder, and looks at what is left after each kill. Run as a script: FOLDER SEED TIMED.

By instruction: the writer dies at the n-th instruction of SQLite's machine, for every n until it ends by itself.
By time: the writer appends and appends, and dies at some moment, mostly within the writing and syncing of files.
"""

import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

from draftproof.gate.events import read_events, writing

# many pages for each event, so that a kill falls between two of them
LONG = "because " * 50_000


def begin(work: Callable[[int], None]) -> tuple[int, TextIO]:
    """Fork a process that works; return its number, and a pipe with a line for each event that was acknowledged."""
    told, tell = os.pipe()
    number = os.fork()
    if number == 0:
        os.close(told)
        work(tell)
        os._exit(0)
    os.close(tell)
    return number, os.fdopen(told)


def end(number: int, pipe: TextIO) -> tuple[bool, list[str]]:
    """Wait for a process; return whether it was killed, and what it told that was not read yet."""
    with pipe:
        notes = pipe.read().splitlines()
    _, status = os.waitpid(number, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0
    return killed, notes


def append(path: Path, note: str, tell: int, reason: str | None = None) -> None:
    with writing(path, create=True) as log:
        log.append("refused", note=note, reason=reason)
    os.write(tell, f"{note}\n".encode())


def notes_of(path: Path) -> list[str | None]:
    """The notes in a ladder, which must be whole; a file in which nothing was acknowledged may be empty."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return []
    events = read_events(path)
    assert [event.id for event in events] == list(range(1, len(events) + 1)) and events[0].kind == "created"
    return [event.note for event in events[1:]]


def dying_at(count: int) -> Any:
    """A ``sqlite3.connect`` whose connections kill their process at an instruction."""
    connect, left = sqlite3.connect, count

    def instruction() -> int:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_progress_handler(instruction, 1)
        return connection

    return connected


def by_instruction(folder: Path, *, is_new: bool) -> int:
    """Kill one append at each of its instructions; return how many there were."""
    path = folder / f"{is_new}.sqlite"
    before: list[str | None] = []
    if not is_new:
        with writing(path, create=True) as log:
            log.append("refused", note="before")
        before = ["before"]
    count = 0
    while True:

        def work(tell: int, count: int = count) -> None:
            sqlite3.connect = dying_at(count)
            append(path, f"at {count}", tell)

        killed, told = end(*begin(work))
        after = notes_of(path)
        assert after in (before, [*before, f"at {count}"]) and set(told) <= set(after)
        if not killed:
            assert told == [f"at {count}"]
            return count
        if is_new:
            path.unlink()
        else:
            before = after
        count += 1


def by_time(folder: Path, dice: random.Random, kills: int) -> tuple[int, int]:
    """Kill one writer after another, each somewhere; return how many events were acknowledged, how many journals left."""
    path, half_written = folder / "timed.sqlite", 0
    acknowledged: list[str] = []
    for turn in range(kills):

        def work(tell: int, turn: int = turn) -> None:
            for index in range(10_000):
                append(path, f"{turn}.{index}", tell, LONG)

        number, pipe = begin(work)
        acknowledged += [pipe.readline().strip() for _ in range(dice.randint(1, 4))]
        time.sleep(dice.uniform(0, 0.01))
        os.kill(number, signal.SIGKILL)
        killed, notes = end(number, pipe)
        assert killed
        acknowledged += notes
        half_written += path.with_name(f"{path.name}-journal").exists()
        after = notes_of(path)
        # one more may have been stored than there was time to tell
        assert [note for note in after if note in set(acknowledged)] == acknowledged
        assert len(after) <= len(acknowledged) + turn + 1
    return len(acknowledged), half_written


if __name__ == "__main__":
    where, seed, timed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    created, appended = by_instruction(where, is_new=True), by_instruction(where, is_new=False)
    kept, journals = by_time(where, random.Random(seed), timed)
    sys.stdout.write(json.dumps({"created": created, "appended": appended, "kept": kept, "journals": journals}) + "\n")
