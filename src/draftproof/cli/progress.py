"""Progress on the terminal; plain lines where there is no terminal."""

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


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
        self._console.print(message, markup=False, highlight=False)

    def start(self, title: str, total: int) -> Callable[[int], None]:
        """Begin a bar."""
        task = self._bars.add_task(title, total=total)
        if not self._console.is_terminal:
            self.say(f"{title}: {total} steps")
        return lambda steps: self._bars.update(task, advance=steps)
