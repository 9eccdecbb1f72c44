"""A study in a process of its own, to be interrupted or killed."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 120


def begin(study: Path, out: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "draftproof.cli.main", "run", str(study), "--out", str(out), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_ctrl_c)


def _heed_ctrl_c() -> None:
    """A job in the background of a shell ignores what Ctrl-C sends, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt_once(process: "subprocess.Popen[str]", ready: Callable[[], bool]) -> tuple[int, str]:
    """Send what Ctrl-C sends as soon as ``ready``, and return the exit code and what stood on stderr."""
    until = time.monotonic() + WAIT_S
    try:
        while not ready():
            assert process.poll() is None and time.monotonic() < until, "the study ended before it was interrupted"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, said
