"""Silence for the one warning that transformers' assisted generation gives of itself; every other still comes."""

import contextlib
import logging
from collections.abc import Iterator

_WARNS = logging.getLogger("transformers.generation.utils")
_OF_ITSELF = "Passing `generation_config` together with generation-related arguments"


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Hold back what no caller can change: the drafts are asked for by `generate` itself, in a way that it calls deprecated."""

    def other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_OF_ITSELF)

    _WARNS.addFilter(other)
    try:
        yield
    finally:
        _WARNS.removeFilter(other)
