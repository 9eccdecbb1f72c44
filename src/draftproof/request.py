"""What a request asks for. Knows nothing about models, tokenizers or engines."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from draftproof.errors import InputError

FinishReason = Literal["stop", "length", "error"]

Prompt = str | Sequence[int] | Sequence[dict[str, str]]
"""Text, token ids, or chat messages with ``role`` and ``content``."""


class SamplingParams(BaseModel):
    """
    How the tokens of one request are chosen and when they end.

    ``temperature=0`` is greedy: the first of the largest logits, whatever the seed.

    Attributes
    ----------
    max_tokens : int, 1 or more
        Generated tokens at most.
    temperature : float, 0 to 100
        Logits are divided by it; 0 is greedy.
    top_k : int, 0 or more
        Keep the k most likely tokens (and what ties with the last of them); 0 keeps all.
    top_p : float, (0, 1]
        Keep the most likely tokens whose probabilities reach this sum.
    seed : int, 0 or more
        Same request, seed and engine settings: same tokens.
    stop : tuple of str
        The text ends before the first of these.
    ignore_eos : bool
        Do not end at the model's end-of-sequence token.
    allowed_token_ids : tuple of int, or None
        The only tokens that may be generated.

    Raises
    ------
    InputError
        A value is out of its range, or a name is unknown.

    Notes
    -----
    The order is that of transformers: allowed ids, temperature, top-k, top-p.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, le=100.0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, lt=2**63)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] | None = None

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(f"sampling parameters: {describe(error)}") from None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_tuple(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("a stop string is empty; give at least one character")
        return value

    @field_validator("allowed_token_ids")
    @classmethod
    def _some_allowed(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or min(value) < 0):
            raise ValueError("give at least one id, none below 0")
        return value

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0.0


def describe(error: ValidationError) -> str:
    """Put a pydantic error into one line: each field, what it got and what is allowed."""
    parts = []
    for item in error.errors():
        where = ".".join(str(piece) for piece in item["loc"]) or "value"
        if item["type"] == "extra_forbidden":
            parts.append(f"'{where}' is not a known key")
        elif item["type"] == "missing":
            parts.append(f"'{where}' is missing")
        else:
            message = item["msg"].removeprefix("Value error, ")
            parts.append(f"'{where}' = {item['input']!r}: {message}")
    return "; ".join(parts)
