"""The command line, called in this process as ``python -m draftproof.cli.main`` would."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from draftproof.cli.main import main


class Done(NamedTuple):
    """What a command left: its exit code and what it said."""

    code: int
    out: str
    err: str


Call = Callable[..., Done]


def exit_code(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["draftproof", *map(str, arguments)])
        main()
    return int(left.value.code or 0)
