"""Speculative decoding with proof."""

from typing import TYPE_CHECKING, Any

from draftproof.records import Completion
from draftproof.request import SamplingParams

if TYPE_CHECKING:
    from draftproof.engines.native import Engine

__version__ = "0.1.0"
__all__ = ["Completion", "Engine", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and most commands do not need it to refuse a bad argument
    if name == "Engine":
        from draftproof.engines.native import Engine

        return Engine
    raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
