"""Asks over HTTP, with retries that are counted and nothing without a deadline. Knows no dialect and no token."""

import asyncio
import functools
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import httpx
from httpx_sse import SSEError, aconnect_sse

from draftproof.engines.http.stream import WireError, said
from draftproof.errors import InputError

T = TypeVar("T")
BUSY = (429, 503)
MAX_RETRIES = 3
FIRST_WAIT_S = 0.1
# servers keep an idle connection for 5 s or more; one that is closed just as it is used would look like a failure
KEEP_ALIVE_S = 2.0
FACT_S = 10.0


class Client:
    """
    A loop and its connections, for one thread at a time.

    Proxies and credentials of the environment are not used: a measurement goes where it is told.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._http = httpx.AsyncClient(
            timeout=None,
            trust_env=False,
            verify=_certificates(),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S),
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Run a coroutine to its end; Ctrl-C cancels it.

        Raises
        ------
        InputError
            A loop runs in this thread already.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._runner.run(work)
        work.close()
        raise InputError("a server is asked from inside a running event loop, such as a notebook's; ask from a thread")

    def close(self) -> None:
        """Close the connections and the loop."""
        self._runner.run(self._http.aclose())
        self._runner.close()

    async def json(self, url: str) -> Any:
        """Return what a server says of itself at an address, or None where there is nothing, or no JSON."""
        page = await self.page(url)
        try:
            return None if page is None else httpx.Response(200, text=page).json()
        except (ValueError, RecursionError):
            return None

    async def page(self, url: str, timeout_s: float = FACT_S) -> str | None:
        """
        Return a page, or None where there is none.

        Raises
        ------
        WireError
            There is no answer, or it is not over in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._http.get(url, follow_redirects=True)
        except TimeoutError:
            raise WireError(f"{url} does not answer: not over within {timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise WireError(f"{url} does not answer: {_reason(error)}") from None
        return response.text if response.status_code == httpx.codes.OK else None

    async def post(self, url: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """
        Ask for an answer in one piece.

        Raises
        ------
        WireError
            There is none in time, or it is an error or no JSON object.
        """
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._http.post(url, json=body)
        except TimeoutError:
            raise WireError(f"{url} does not answer: not over within {timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise WireError(f"{url} does not answer: {_reason(error)}") from None
        answer = _read(response)
        if response.status_code != httpx.codes.OK or not isinstance(answer, dict):
            raise WireError(f"HTTP {response.status_code}: {said(answer)}")
        return answer

    async def stream(
        self, url: str, body: dict[str, Any], take: Callable[[str], None], retry: Callable[[], None]
    ) -> None:
        """
        Ask for a stream of events and hand each one on; the caller sets the deadline.

        Parameters
        ----------
        take : callable
            Gets the data of each event; comments, which keep a connection alive, are none.
        retry : callable
            Called before each new attempt: only while the server cannot be reached, or is busy, and so before any event.

        Raises
        ------
        WireError
            The request is refused, or the connection breaks.
        """
        for attempt in range(MAX_RETRIES + 1):
            try:
                async with aconnect_sse(self._http, "POST", url, json=body) as source:
                    status = source.response.status_code
                    if status == httpx.codes.OK:
                        async for event in source.aiter_sse():
                            take(event.data)
                        return
                    refusal = f"HTTP {status}: {await _refusal(source.response)}"
                    wait_s = _wait_s(source.response, attempt)
                    final = status not in BUSY
            except httpx.ConnectError as error:
                refusal, wait_s, final = f"cannot connect: {_reason(error)}", FIRST_WAIT_S * 2**attempt, False
            except SSEError as error:
                raise WireError(f"the answer is no stream of events: {_reason(error)}") from None
            except httpx.HTTPError as error:
                raise WireError(f"the connection broke: {_reason(error)}") from None
            if final or attempt == MAX_RETRIES:
                raise WireError(refusal + (f", also after {attempt} retries" if attempt and not final else ""))
            await asyncio.sleep(wait_s)
            retry()


@functools.cache
def _certificates() -> ssl.SSLContext:
    # reading them takes longer than a short request
    return httpx.create_ssl_context(trust_env=False)


def _wait_s(response: httpx.Response, attempt: int) -> float:
    """Return what the server asks to wait, or else twice as long each time; its deadline is the request's."""
    try:
        asked_s = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return float(FIRST_WAIT_S * 2**attempt)
    return max(0.0, asked_s)


async def _refusal(response: httpx.Response) -> str:
    if response.has_redirect_location:
        return f"it points to {response.headers['location']}, and a request is not sent on; give that address"
    await response.aread()
    return said(_read(response))


def _read(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return response.text


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
