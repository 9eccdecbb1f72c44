"""Servers that we start: there when they answer, gone in every case, and nobody else's."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from draftproof.engines.launch import Attached, Launch, Launched, Server
from draftproof.errors import InputError, ServerError
from support import fake_server
from support.fake_server import serving

FAKE = (sys.executable, fake_server.__file__, "{port}")
WAIT_S = 30.0
# a server that answers, after it has started a process that leaves its group and ignores the request to stop
STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    signal.pause()
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
# a server whose headers have no end
DRIPPING = """
import contextlib, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK")
        while True:
            connection.sendall(bytes([13, 10]) + b"x: y")
            time.sleep(0.05)
"""
# a study's part in this: it starts a server, tells who runs, and waits
STUDY = """
import sys, time
import psutil
from draftproof.engines.launch import Server
server = Server(sys.argv[2:], env={}, ready_s=30, grace_s=5)
family = psutil.Process(server._process.pid)
print(server._folder.name, family.pid, *(child.pid for child in family.children(recursive=True)), flush=True)
{"sleep": lambda: time.sleep(600), "end": lambda: None, "fail": lambda: 1 / 0}[sys.argv[1]]()
"""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


def start(command: Any = FAKE, **options: Any) -> Server:
    return Server(command, **{"env": {}, "ready_s": WAIT_S, "grace_s": 5.0, **options})


def family(server: Server) -> list[psutil.Process]:
    supervisor = psutil.Process(server._process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_S
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def gone(processes: list[psutil.Process]) -> bool:
    return not any(item.is_running() and item.status() != psutil.STATUS_ZOMBIE for item in processes)


def test_a_server_answers_on_the_loopback_until_it_is_stopped() -> None:
    server = start()
    running = family(server)
    assert server.url.startswith("http://127.0.0.1:") and len(running) == 2
    assert httpx.get(server.url + "/v1/models").json()["data"][0]["id"] == "toy"
    server.stop()
    server.stop()
    assert gone(running)
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_its_environment_is_given() -> None:
    code = "import os, sys; os.execv(sys.executable, [sys.executable, os.environ['FAKE'], sys.argv[1]])"
    server = start((sys.executable, "-c", code, "{port}"), env={"FAKE": fake_server.__file__})
    assert httpx.get(f"{server.url}/v1/models").status_code == 200
    server.stop()


def test_what_a_server_started_and_did_not_stop_is_stopped_too() -> None:
    server = start((sys.executable, "-c", STUBBORN, *FAKE[1:]), grace_s=0.5)
    running = family(server)
    assert len(running) == 4
    server.stop()
    assert gone(running)


def test_one_that_ends_at_once_shows_the_last_lines_of_its_log() -> None:
    code = "import sys; print('loading'); print('no such model', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ServerError, match=r"ended with exit code 3 before it was ready; its log ends: .*no such model"):
        start((sys.executable, "-c", code, "{port}"))


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(ServerError, match="no-such-server: No such file or directory"):
        start(("no-such-server", "{port}"))


def test_one_that_is_never_ready_is_stopped_at_the_deadline() -> None:
    code = "import time; print('still loading', flush=True); time.sleep(600)"
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"not ready within 0.5 s; .* which ends: still loading"):
        start((sys.executable, "-c", code, "{port}"), ready_s=0.5)
    assert time.monotonic() - began < WAIT_S


def test_one_that_answers_a_byte_at_a_time_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.engines.launch.ASK_S", 0.3)
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"not ready within 0.5 s"):
        start((sys.executable, "-c", DRIPPING, "{port}"), ready_s=0.5)
    assert time.monotonic() - began < WAIT_S


def test_one_that_listens_to_other_machines_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "health").write_text("")
    module = ("-m", "http.server", "--bind", "0.0.0.0", "--directory", str(tmp_path), "{port}")
    with pytest.raises(ServerError, match=r"listens on 0.0.0.0, and only 127.0.0.1 is allowed"):
        start((sys.executable, *module))


def test_an_answer_from_somebody_else_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as other:
        monkeypatch.setattr("draftproof.engines.launch.free_port", lambda: int(other.url.rpartition(":")[2]))
        with pytest.raises(ServerError, match="answered by a process that is not ours"):
            start((sys.executable, "-c", "import time; time.sleep(600)", "{port}"))
        assert httpx.get(other.url + "/health").status_code == 200


@pytest.mark.parametrize(
    ("ending", "number"),
    [("sleep", signal.SIGKILL), ("sleep", signal.SIGTERM), ("sleep", signal.SIGINT), ("end", None), ("fail", None)],
    ids=["SIGKILL", "SIGTERM", "Ctrl-C", "end", "error"],
)
def test_however_the_study_ends_its_server_goes(ending: str, number: signal.Signals | None) -> None:
    study = subprocess.Popen(
        [sys.executable, "-c", STUDY, ending, *FAKE],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert study.stdout is not None
    with study.stdout:
        folder, *named = study.stdout.readline().split()
    pids = [int(pid) for pid in named]
    assert len(pids) == 2
    if number is not None:
        study.send_signal(number)
    study.wait(WAIT_S)
    assert until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert not Path(folder).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells a child of its parent's death on Linux only")
def test_a_server_ends_with_its_supervisor() -> None:
    server = start()
    running = family(server)
    os.kill(server._process.pid, signal.SIGKILL)
    assert until(lambda: gone(running[1:]))
    server.stop()


def test_arms_that_do_not_fit_together_take_turns() -> None:
    launched = Launched(Launch(target_only=FAKE, speculative=(*FAKE, "speculates=true"), together=False))
    try:
        plain = launched.url(False)
        assert launched.url(False) == plain and httpx.get(plain + "/health").status_code == 200
        drafting = launched.url(True)
        assert httpx.get(drafting + "/health").status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(plain + "/health")
        assert launched.url(False) != plain
    finally:
        launched.close()


def test_arms_that_fit_run_together_and_their_commands_are_recorded() -> None:
    launched = Launched(Launch(target_only=FAKE, speculative=(*FAKE, "speculates=true"), env={"A": "b"}))
    try:
        urls = [launched.url(speculate) for speculate in (False, True, False)]
        assert urls[0] == urls[2] != urls[1] and all(httpx.get(url + "/health").status_code == 200 for url in urls)
        # the port is another one each time, and no part of what was run
        assert launched.flags["speculative"].endswith("{port} speculates=true") and launched.flags["env"] == {"A": "b"}
    finally:
        launched.close()


def test_servers_that_somebody_else_runs_are_left_running() -> None:
    with serving() as server:
        attached = Attached(server.url, None)
        assert attached.is_one and attached.url(True) == server.url
        attached.close()
        assert httpx.get(server.url + "/health").status_code == 200


@pytest.mark.parametrize("command", [(), ("server", "--port", "8000")])
def test_a_command_without_a_port_is_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"launch.speculative has no \{port\}: give the command as a list"):
        Launch(target_only=FAKE, speculative=command)


def test_ports_are_free_and_folders_are_removed() -> None:
    server = start()
    folder = Path(server._folder.name)
    assert folder.is_dir()
    with socket.socket() as probe, pytest.raises(OSError):
        probe.bind(("127.0.0.1", server._port))
    server.stop()
    assert not folder.exists()


def test_the_targets_folder_takes_its_place_in_a_command_and_not_in_the_record(tmp_path: Path) -> None:
    command = (*FAKE, 'model="{target}"')
    servers = Launched(Launch(target_only=command, speculative=command, ready_s=WAIT_S), target=str(tmp_path))
    try:
        assert httpx.get(servers.url(False) + "/v1/models").json()["data"][0]["id"] == str(tmp_path)
    finally:
        servers.close()
    assert str(tmp_path) not in str(servers.flags)
