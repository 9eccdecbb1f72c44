"""How a run says what it is doing; a terminal, or nothing, is behind it."""

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """Where a run says what it is doing."""

    def say(self, message: str) -> None:
        """Say one line."""
        ...

    def start(self, title: str, total: int) -> Callable[[int], None]:
        """Begin a bar of ``total`` steps and return what advances it."""
        ...
