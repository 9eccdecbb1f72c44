"""Progress on the terminal; plain lines where there is no terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from draftproof.study.progress import Advance

SECONDS_BETWEEN_LINES = 10.0
INTERRUPTED = 130


class TerminalProgress:
    """Bars of one run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=console.quiet or not console.is_terminal,
        )

    def __enter__(self) -> "TerminalProgress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, message: str) -> None:
        """Print one line."""
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def start(self, title: str, total: int) -> Advance:
        """Begin a bar; without a terminal, a line for each tenth, at most one every ten seconds."""
        if self._console.is_terminal:
            return Bar(self._bars, self._bars.add_task(title, total=total), title)
        self.say(f"{title}: {total} steps")
        return Lines(self.say, title, total)


@contextmanager
def progress_into(out: Path, console: Console) -> Iterator[TerminalProgress]:
    """Show what a command does that keeps what it has measured in a folder; an interruption is one line and exit code 130."""
    try:
        with TerminalProgress(console) as progress:
            yield progress
    except KeyboardInterrupt:
        # caught here, since the command-line library would end without a word
        sys.stderr.write(f"draftproof: interrupted; what was measured is in {out}, --resume goes on with it\n")
        raise typer.Exit(INTERRUPTED) from None


class Bar:
    """A bar on the terminal."""

    def __init__(self, bars: Progress, task: TaskID, title: str) -> None:
        self._bars, self._task, self._title = bars, task, title

    def __call__(self, steps: int) -> None:
        """Move it."""
        self._bars.update(self._task, advance=steps)

    def tell(self, text: str) -> None:
        """Show what was found so far."""
        self._bars.update(self._task, description=f"{self._title} ({text})")


class Lines:
    """The same as lines of text."""

    def __init__(self, say: Callable[[str], None], title: str, total: int) -> None:
        self._say, self._title, self._total = say, title, total
        self._began = self._told = time.monotonic()
        self._done, self._found = 0, ""

    def __call__(self, steps: int) -> None:
        """Say how far it is, at each tenth."""
        before, self._done = self._done, self._done + steps
        now, done, total = time.monotonic(), self._done, self._total
        if done < total and done * 10 // total > before * 10 // total and now - self._told >= SECONDS_BETWEEN_LINES:
            self._told = now
            left = (now - self._began) / done * (total - done)
            self._say(f"{self._title}: {done} of {total}, about {left:.0f} s left{self._found}")

    def tell(self, text: str) -> None:
        """Say it with the next line."""
        self._found = f"; {text}"
