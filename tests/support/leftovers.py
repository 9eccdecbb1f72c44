"""What a test may leave behind: nothing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

# a thread of the test's own server may still be closing its socket when the client has its answer
ENDING_S = 10.0


@contextmanager
def no_thread_stays() -> Iterator[None]:
    """Whatever starts inside has ended, at most `ENDING_S` after it."""
    before = set(threading.enumerate())
    yield
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(ENDING_S)
    assert not {thread for thread in started if thread.is_alive()}
