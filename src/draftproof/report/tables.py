"""Tables and text of a terminal, the same in every command. Lays nothing out itself."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from draftproof.report import words


def text(value: object, style: str = "") -> Text:
    """Return a value as it is: markup in it has no effect."""
    return Text(words.clean(str(value)), style=style)


def table(title: str, names: Sequence[str]) -> Table:
    """Return an empty table that folds what is too long; no title where that is empty."""
    made = Table(title=text(title, "bold") if title else None, title_justify="left")
    for name in names:
        made.add_column(text(name), overflow="fold")
    return made
