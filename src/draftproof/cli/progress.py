"""Progress on the terminal; plain lines where there is no terminal."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


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
            disable=not console.is_terminal,
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

    def start(self, title: str, total: int) -> Callable[[int], None]:
        """Begin a bar; without a terminal, a line for each tenth, at most one every ten seconds."""
        if self._console.is_terminal:
            task = self._bars.add_task(title, total=total)
            return lambda steps: self._bars.update(task, advance=steps)
        self.say(f"{title}: {total} steps")
        began = told = time.monotonic()
        done = 0

        def advance(steps: int) -> None:
            nonlocal done, told
            before, done = done, done + steps
            now = time.monotonic()
            if done < total and done * 10 // total > before * 10 // total and now - told >= SECONDS_BETWEEN_LINES:
                told = now
                left = (now - began) / done * (total - done)
                self.say(f"{title}: {done} of {total}, about {left:.0f} s left")

        return advance
