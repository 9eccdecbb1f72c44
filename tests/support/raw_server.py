"""
A server whose every byte is chosen: what no library of a server would send.

It says of itself what vLLM says, and answers each completion with the pieces of its script: bytes are sent as they are, a number is
a pause in s, and `NEVER` lasts until the test is over. Then the connection is closed.
"""

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

Piece = bytes | float
NEVER = 1e9
TOKEN = 7
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = STREAM + b"transfer-encoding: chunked\r\n\r\n"
CLOSED = STREAM + b"connection: close\r\n\r\n"
MODELS = {"data": [{"id": "toy", "owned_by": "vllm", "max_model_len": 256}]}


def said(value: Any) -> bytes:
    """One event."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def tokens(*token_ids: int, text: str = "", finish: str | None = None, **more: Any) -> bytes:
    """An event with tokens."""
    return said({"choices": [{"index": 0, "text": text, "token_ids": token_ids, "finish_reason": finish, **more}]})


def usage(count: Any, prompt: Any = 3) -> bytes:
    """The event that counts."""
    return said({"choices": [], "usage": {"completion_tokens": count, "prompt_tokens": prompt}})


def chunk(data: bytes) -> bytes:
    """A piece in chunked encoding; an empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def whole(count: int, prompt: int = 3) -> bytes:
    """All events of a good answer."""
    return tokens(*[TOKEN] * count) + tokens(finish="length") + usage(count, prompt) + said(b"[DONE]")


class RawServer:
    """A running server; ``script`` is what a completion gets, and None is a good answer."""

    def __init__(self) -> None:
        self.script: Sequence[Piece] | None = None
        self.pages: dict[str, Sequence[Piece]] = {}
        self.asked = 0
        self._over, self._closed = threading.Event(), False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def let_go(self) -> None:
        """End every pause of the answers that are being given, and wait for their ends."""
        self._over.set()
        for thread in self._threads[1:]:
            thread.join()
        del self._threads[1:]
        self._over = threading.Event()

    def close(self) -> None:
        self._closed = True
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection, self._over))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, over: threading.Event) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(5.0)
            head, body = b"", b""
            while b"\r\n\r\n" not in head:
                if not (data := connection.recv(65536)):
                    return
                head += data
            head, _, body = head.partition(b"\r\n\r\n")
            method, path = head.split()[:2]
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            while len(body) < (int(lengths[0].split(b":")[1]) if lengths else 0):
                body += connection.recv(65536)
            for piece in self._answer(method, path.decode(), body):
                if isinstance(piece, bytes):
                    connection.sendall(piece)
                elif over.wait(piece):
                    return

    def _answer(self, method: bytes, path: str, body: bytes) -> Sequence[Piece]:
        if method == b"POST":
            self.asked += 1
            asked = json.loads(body)
            return [CLOSED, whole(asked["max_tokens"], len(asked["prompt"]))] if self.script is None else self.script
        if path in self.pages:
            return self.pages[path]
        found = {"/v1/models": MODELS, "/version": {"version": "1.2.3"}, "/health": {}}.get(path)
        status = b"404 Not Found" if found is None else b"200 OK"
        data = json.dumps(found).encode()
        return [b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(data), data)]


@contextmanager
def raw_server() -> Iterator[RawServer]:
    server = RawServer()
    try:
        yield server
    finally:
        server.close()
