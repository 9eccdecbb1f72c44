"""How a run says what it is doing; a terminal, or nothing, is behind it."""

from typing import Protocol


class Advance(Protocol):
    """Moves a bar."""

    def __call__(self, steps: int) -> None:
        """Say that so many steps more are done."""
        ...

    def tell(self, text: str) -> None:
        """Show what was found so far beside the bar."""
        ...


class Progress(Protocol):
    """Where a run says what it is doing."""

    def say(self, message: str) -> None:
        """Say one line."""
        ...

    def start(self, title: str, total: int) -> Advance:
        """Begin a bar of ``total`` steps and return what advances it."""
        ...
