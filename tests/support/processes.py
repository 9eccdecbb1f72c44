"""A study in a process of its own, to be interrupted or killed."""

import signal
import subprocess
import sys
from pathlib import Path


def begin(study: Path, out: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "draftproof.cli.main", "run", str(study), "--out", str(out), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_ctrl_c)


def _heed_ctrl_c() -> None:
    """A job in the background of a shell ignores what Ctrl-C sends, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
