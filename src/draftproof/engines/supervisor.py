"""
Keeps one server, and ends with it: a script of its own, for which the standard library is enough.

Its standard input is a pipe that the study holds open. When the study ends in whatever way, SIGKILL too, the system closes the
pipe; then the server is asked to stop, and what is left of it after a while is killed. The server is killed as well if this
process is. What the server started and did not stop falls to this process (on Linux), and is killed with it.

Usage: ``python -P supervisor.py LOG GRACE_S COMMAND...``; the exit code is the server's.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

# from linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_S = 0.05
NOT_FOUND = 127
LIBC = ctypes.CDLL(None)


def main() -> int:
    """Start, wait for the end of one side, and leave nothing behind."""
    log, grace_s, command = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    over, alone = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: over.set())
    with log.open("wb") as output:
        try:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            output.write(f"{command[0]}: {error.strerror}\n".encode())
            return NOT_FOUND
    threading.Thread(target=_wait_for_study, args=(alone, over), daemon=True).start()
    while server.poll() is None and not over.is_set():
        over.wait(POLL_S)
    _signal_group(server.pid, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while time.monotonic() < until and (server.poll() is None or _children()):
        time.sleep(POLL_S)
    _signal_group(server.pid, signal.SIGKILL)
    code = server.wait()
    _kill_children()
    if alone.is_set():
        _remove(log)
    return code if code >= 0 else 128 - code


def _wait_for_study(alone: threading.Event, over: threading.Event) -> None:
    os.read(0, 1)
    alone.set()
    over.set()


def _remove(log: Path) -> None:
    """Take away the log and its folder, which nobody is left to read."""
    try:
        log.unlink()
        log.parent.rmdir()
    except OSError:
        pass  # the study was quicker, or the folder is somebody else's


def _die_with_parent() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        LIBC.prctl(option, value, 0, 0, 0)


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass  # nobody of it is left to be told


def _children() -> list[int]:
    """Processes whose parent is this one: the server, and what lost its own parent; zombies are taken away."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if int(parent) == os.getpid():
            pid = int(entry.parent.name)
            if state == "Z":
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass  # taken away already
            else:
                found.append(pid)
    return found


def _kill_children() -> None:
    # killing one may leave its own children to this process
    while children := _children():
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended by itself
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
