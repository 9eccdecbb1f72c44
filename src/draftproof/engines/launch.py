"""
Start a server for each arm and stop it again, in any case. Knows no dialect, and touches no server that it did not start.

Each server runs under a supervisor process (`engines.supervisor`) that watches a pipe from here: however this process ends, the
pipe closes, and the server goes.
"""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from draftproof.engines import supervisor
from draftproof.engines.http.client import Client
from draftproof.engines.http.endpoint import root_of
from draftproof.engines.http.stream import WireError
from draftproof.errors import InputError, ServerError

HOST = "127.0.0.1"
READY_PATHS = ("/health", "/v1/models")
POLL_S = 0.2
ASK_S = 2.0
GRACE_S = 10.0
LOG_LINES = 8
LOG_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """
    How both servers are started.

    Attributes
    ----------
    target_only, speculative : sequence of str
        Command and arguments; ``{port}`` stands for a free port, ``{host}`` for 127.0.0.1 and ``{target}`` for the
        target's folder.
    env : mapping
        Added to the environment.
    ready_s : float, s
        Until when a server must answer.
    together : bool
        Both at once. Otherwise one is stopped before the other is started.

    Raises
    ------
    InputError
        A command is empty or takes no port.
    """

    target_only: Sequence[str]
    speculative: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = 600.0
    together: bool = True

    def __post_init__(self) -> None:
        for name in ("target_only", "speculative"):
            command = getattr(self, name)
            if not command or not any("{port}" in part for part in command):
                raise InputError(
                    f"launch.{name} has no {{port}}: give the command as a list, such as "
                    '["server", "--host", "{host}", "--port", "{port}"]'
                )


class Server:
    """
    One server process, running until `stop`.

    Parameters
    ----------
    command : sequence of str
        With ``{port}`` and ``{host}``.
    env : mapping
    ready_s : float, s
    progress : callable
        Gets one line before the wait.
    grace_s : float, s
        Between asking a server to stop and killing it.

    Raises
    ------
    ServerError
        It ended, did not answer in time, or answers from outside this machine too; the message has the last lines of its log.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        ready_s: float,
        progress: Callable[[str], None] = lambda message: None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="draftproof-server-")
        self._log = Path(self._folder.name) / "log"
        self._port, self._grace_s = free_port(), grace_s
        self.url = f"http://{HOST}:{self._port}"
        argv = [part.replace("{port}", str(self._port)).replace("{host}", HOST) for part in command]
        progress(f"starting {argv[0]} on {self.url}")
        # a script's own folder comes first in its import path, unless told otherwise
        watched = [sys.executable, "-P", supervisor.__file__, str(self._log), str(grace_s), *argv]
        self._process = subprocess.Popen(
            watched, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, **env}, start_new_session=True
        )
        atexit.register(self.stop)
        try:
            self._wait(argv[0], ready_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and everything that it started; may be called again."""
        atexit.unregister(self.stop)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with _undisturbed():
            try:
                self._process.wait(self._grace_s + ASK_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    def _wait(self, name: str, ready_s: float) -> None:
        until = time.monotonic() + ready_s
        with contextlib.closing(Client()) as client:
            while not self._answers(client):
                code = self._process.poll()
                if code is not None:
                    raise ServerError(
                        f"{name} ended with exit code {code} before it was ready; its log ends: {self._tail()}"
                    )
                if time.monotonic() > until:
                    raise ServerError(
                        f"{name} was not ready within {ready_s:g} s; raise ready_s, or see its log, which ends: {self._tail()}"
                    )
                time.sleep(POLL_S)
        listening = self._listening()
        if not listening:
            raise ServerError(
                f"{self.url} is answered by a process that is not ours; run the study again for another port"
            )
        outside = [address for address in listening if not address.startswith("127.") and address != "::1"]
        if outside:
            raise ServerError(
                f"{name} listens on {outside[0]}, and only {HOST} is allowed; add its option for the host, with {{host}}"
            )

    def _answers(self, client: Client) -> bool:
        for path in READY_PATHS:
            with contextlib.suppress(WireError):
                if client.run(client.page(self.url + path, ASK_S)) is not None:
                    return True
        return False

    def _listening(self) -> list[str]:
        """Addresses on which processes of ours hold the port."""
        found: list[str] = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found += [
                    item.laddr.ip
                    for item in process.net_connections("tcp")
                    if item.status == psutil.CONN_LISTEN and item.laddr.port == self._port
                ]
        return found

    def _tail(self) -> str:
        try:
            lines = self._log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        return " | ".join(line.strip() for line in lines[-LOG_LINES:] if line.strip()) or "(empty)"


class Attached:
    """
    Servers that somebody else runs; only asked.

    Parameters
    ----------
    target_only : str
    speculative : str or None
        None: one server for both arms.
    """

    def __init__(self, target_only: str, speculative: str | None) -> None:
        self._urls = {False: target_only, True: speculative or target_only}
        self.is_one = len({root_of(url) for url in self._urls.values()}) == 1
        self.flags: dict[str, Any] = {}
        self.target_only: Sequence[str] | None = None
        self.speculative: Sequence[str] | None = None

    def url(self, speculate: bool) -> str:
        """Return an arm's address."""
        return self._urls[speculate]

    def close(self) -> None:
        """Leave them running."""


class Launched:
    """
    Servers of our own, started when first asked for.

    Parameters
    ----------
    launch : Launch
    progress : callable
    target : str
        The model's folder, for which ``{target}`` stands.
    """

    def __init__(
        self, launch: Launch, progress: Callable[[str], None] = lambda message: None, target: str = ""
    ) -> None:
        self._launch, self._progress, self._target = launch, progress, target
        self._servers: dict[bool, Server] = {}
        self.is_one = False
        self.target_only: Sequence[str] | None = launch.target_only
        self.speculative: Sequence[str] | None = launch.speculative
        self.flags: dict[str, Any] = {
            "target_only": " ".join(launch.target_only),
            "speculative": " ".join(launch.speculative),
            "env": dict(launch.env),
            "together": launch.together,
        }

    def url(self, speculate: bool) -> str:
        """
        Return an arm's address; start its server if it does not run, and stop the other one first if both may not.

        Raises
        ------
        ServerError
            It cannot be started.
        """
        if speculate not in self._servers:
            if not self._launch.together:
                self.close()
            parts = self._launch.speculative if speculate else self._launch.target_only
            command = [part.replace("{target}", self._target) for part in parts]
            self._servers[speculate] = Server(
                command, env=self._launch.env, ready_s=self._launch.ready_s, progress=self._progress
            )
        return self._servers[speculate].url

    def close(self) -> None:
        """Stop what runs."""
        while self._servers:
            self._servers.popitem()[1].stop()


def free_port() -> int:
    """Return a TCP port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _undisturbed() -> Any:
    """Let a second Ctrl-C wait until the servers are gone."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread has signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
