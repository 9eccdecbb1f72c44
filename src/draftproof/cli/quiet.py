"""``--quiet``: of all that a command says on stdout only its last line, the verdict, is left."""

from typing import Annotated

import typer
from rich.console import Console

Quiet = Annotated[bool, typer.Option("--quiet", help="Print the last line only, which has the verdict.")]


def print_last(line: str) -> None:
    """Print the line that is printed whether a command is quiet or not, unbroken and without markup."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)
