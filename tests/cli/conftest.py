"""Every command is called in the same way, on a wide terminal."""

import pytest

from support.command_line import Call, Done, exit_code


@pytest.fixture
def draftproof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line; its exit code and what it said come back."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        code = exit_code(*arguments)
        said = capsys.readouterr()
        return Done(code=code, out=said.out, err=said.err)

    return call
