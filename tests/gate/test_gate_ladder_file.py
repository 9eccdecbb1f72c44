"""The file: events are only ever added, whoever writes at once and whenever a writer dies."""

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from draftproof.errors import InputError, OutputError
from draftproof.gate import events
from draftproof.gate.events import APPLICATION_ID, SCHEMA_VERSION, read_events, writing
from support.ladder import climb

TESTS = Path(__file__).parents[1]
WAIT_S = 120
WRITER = """
import sys
from pathlib import Path
from draftproof.gate.events import writing
for index in range(20):
    with writing(Path(sys.argv[1]), create=True) as log:
        event = log.append("refused", note=f"{sys.argv[2]}.{index}")
    print(event.id, event.note, flush=True)
"""
CLIMBER = """
import sys
from pathlib import Path
from support.ladder import climb
print(climb(Path(sys.argv[1]), sys.argv[2])[1].id)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ladder.sqlite"


def together(script: str, path: Path, count: int) -> list[list[str]]:
    """Run a script in several processes at once, and return the lines of each."""
    commands = [[sys.executable, "-c", script, str(path), str(number)] for number in range(count)]
    begun = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TESTS) for command in commands]
    lines = [process.communicate(timeout=WAIT_S)[0].splitlines() for process in begun]
    assert [process.returncode for process in begun] == [0] * count
    return lines


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_ladder_is_one_file_and_says_what_it_is(path: Path) -> None:
    climb(path, "first")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with closing(sqlite3.connect(path)) as connection:
        pragmas = [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version", "journal_mode")
        ]
    assert pragmas == [APPLICATION_ID, SCHEMA_VERSION, "delete"]


def test_a_writer_waits_for_the_disk(path: Path) -> None:
    with events._opened(path, "rwc") as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)


@pytest.mark.parametrize("statement", ["UPDATE event SET verdict = 'ADOPT'", "DELETE FROM event WHERE id = 1"])
def test_events_are_neither_changed_nor_removed(path: Path, statement: str) -> None:
    climb(path, "first")
    before = read_events(path)
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.IntegrityError, match="events are never"):
        connection.execute(statement)
    assert read_events(path) == before


def test_events_come_back_as_they_were_appended(path: Path) -> None:
    _, event = climb(path, "first", reason="a ' and \" and \n and 語")
    assert read_events(path)[-1] == event and event.at.endswith("+00:00")


def test_a_block_that_fails_stores_nothing(path: Path) -> None:
    climb(path, "first")
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), writing(path) as log:
        log.append("refused", note=str(1 / 0))
    with pytest.raises(KeyboardInterrupt), writing(path) as log:
        log.append("refused")
        raise KeyboardInterrupt
    assert path.read_bytes() == before and [file.name for file in path.parent.iterdir()] == [path.name]


# --- what is no ladder ------------------------------------------------------------------------------------------------


def made(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        pytest.param(["CREATE TABLE t (x)"], "is a database of another program", id="tables"),
        pytest.param(["PRAGMA application_id = 7", "PRAGMA user_version = 1"], "is a database of another program", id="id"),
        pytest.param(
            [f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = 2"],
            "has schema version 2, and this draftproof reads 1; use the draftproof that wrote it", id="version",
        ),
    ],
)  # fmt: skip
def test_another_database_is_one_line_and_stays_as_it_is(path: Path, statements: list[str], said: str) -> None:
    before = made(path, *statements).read_bytes()
    for use in (lambda: read_events(path), lambda: climb(path, "first")):
        with pytest.raises(InputError, match=said) as refused:
            use()
        assert "\n" not in str(refused.value)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_one_line_and_stays_as_it_is(path: Path) -> None:
    path.write_text("words " * 500, encoding="utf-8")
    for use in (lambda: read_events(path), lambda: climb(path, "first")):
        with pytest.raises(InputError, match="is no ladder: the file is not a database; choose another --ladder"):
            use()
    assert path.read_text(encoding="utf-8") == "words " * 500


def test_a_ladder_that_is_not_there_is_not_made_by_reading(path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no ladder at .*begin one: draftproof ladder promote"):
        read_events(path)
    with pytest.raises(InputError, match="there is no ladder at"), writing(path):
        pass
    assert not path.exists()
    with pytest.raises(OutputError, match="cannot be used: unable to open database file; check the file, its folder"):
        climb(path / "no" / "folder", "first")


def test_an_empty_file_becomes_a_ladder_by_the_first_promotion_only(path: Path) -> None:
    path.touch()
    with pytest.raises(InputError, match="there is no ladder at"):
        read_events(path)
    with pytest.raises(InputError, match="there is no ladder at"), writing(path):
        pass
    assert path.stat().st_size == 0
    climb(path, "first")
    assert [event.kind for event in read_events(path)] == ["created", "promoted"]


def test_a_damaged_ladder_is_one_line(path: Path) -> None:
    climb(path, "first")
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(OutputError, match="cannot be used: database disk image is malformed"):
        read_events(path)


def test_a_ladder_that_stays_locked_is_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    climb(path, "first")
    monkeypatch.setattr(events, "BUSY_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for use in (lambda: read_events(path), lambda: climb(path, "second", batches=(4,))):
            with pytest.raises(OutputError, match=r"has been locked by another process for 0\.05 s; try again"):
                use()
    assert len(read_events(path)) == 2


# --- several writers, and writers that die ----------------------------------------------------------------------------


def test_writers_at_once_lose_nothing_and_begin_one_ladder(path: Path) -> None:
    lines = together(WRITER, path, 4)
    told = {int(line.split()[0]): line.split()[1] for each in lines for line in each}
    stored = read_events(path)
    assert len(told) == 80 and {event.id: event.note for event in stored[1:]} == told
    assert Counter(event.kind for event in stored) == {"created": 1, "refused": 80}
    for number, each in enumerate(lines):
        assert [line.split()[1] for line in each] == [f"{number}.{index}" for index in range(20)]


def test_of_writers_with_one_configuration_one_promotes_it(path: Path) -> None:
    assert together(CLIMBER, path, 4) == [["2"]] * 4
    assert [event.kind for event in read_events(path)] == ["created", "promoted"]


def test_a_kill_at_any_instruction_keeps_every_event_that_was_acknowledged(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "support.ladder_kills", str(tmp_path), "8", "25"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["created"] > 50 and found["appended"] > 20 and found["kept"] >= 25
