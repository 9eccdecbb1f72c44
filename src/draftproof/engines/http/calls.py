"""Many requests to one server at once, each to its end or to its deadline. Chooses no server, and knows no dialect."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.engines.base import OnCompletion
from draftproof.engines.http.client import Client
from draftproof.engines.http.dialects import Json
from draftproof.engines.http.stream import Answer, WireError
from draftproof.records import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    One request.

    Attributes
    ----------
    body : dict
    answer : Answer
        Empty; what comes is put into it.
    """

    body: Json
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    How much at once, and for how long.

    Attributes
    ----------
    max_batch : int
    timeout_s : float, s
        For each request, from when it gets its place.
    deadline_s : float or None, s
        For all together.
    """

    max_batch: int
    timeout_s: float
    deadline_s: float | None


async def complete_all(
    client: Client,
    url: str,
    calls: Sequence[Call],
    limits: Limits,
    now_ms: Callable[[], float],
    on_completion: OnCompletion | None = None,
) -> list[Completion]:
    """
    Send requests and return one completion each, in order.

    All are submitted now: the times of one that waits for a place include the wait. If the caller's own function raises, the
    requests that run are cancelled.
    """
    loop, places = asyncio.get_running_loop(), asyncio.Semaphore(limits.max_batch)
    until = None if limits.deadline_s is None else loop.time() + limits.deadline_s
    submitted_ms = now_ms()
    done: dict[int, Completion] = {}

    async def send(index: int) -> tuple[int, Completion]:
        try:
            async with asyncio.timeout_at(until), places:
                return index, await _complete(
                    client, url, calls[index], limits.timeout_s, lambda: now_ms() - submitted_ms
                )
        except TimeoutError:
            late = f"not over within {limits.deadline_s:g} s, the deadline of all requests together"
            return index, calls[index].answer.failed(late)

    tasks = [asyncio.create_task(send(index)) for index in range(len(calls))]
    try:
        for next_done in asyncio.as_completed(tasks):
            index, completion = await next_done
            done[index] = completion
            if on_completion:
                on_completion(index, completion)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [done[index] for index in range(len(calls))]


async def _complete(client: Client, url: str, call: Call, timeout_s: float, age_ms: Callable[[], float]) -> Completion:
    answer = call.answer
    try:
        async with asyncio.timeout(timeout_s):
            await client.stream(url, call.body, take=lambda data: answer.feed(data, age_ms()), retry=answer.count_retry)
        return answer.completion()
    except TimeoutError:
        return answer.failed(f"not over within {timeout_s:g} s (timeout_s)")
    except WireError as error:
        return answer.failed(str(error))
