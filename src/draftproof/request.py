"""What a request asks for. Knows nothing about models, tokenizers or engines."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    ValidationError,
    field_validator,
    model_validator,
)

from draftproof.errors import InputError

FinishReason = Literal["stop", "length", "error"]

REFUSED = {
    "typical_p": "typical sampling has no exact rule here; use top_p or min_p",
    "echo": "the prompt is not repeated in the output; put it before the text yourself",
    "num_beams": "beam search keeps several sequences and is not speculative decoding",
    "best_of": "choosing among completions changes their law; use n",
}

Prompt = str | Sequence[int] | Sequence[dict[str, str]]
"""Text, token ids, or chat messages with ``role`` and ``content``."""


class SamplingParams(BaseModel):
    r"""
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
    min_p : float, [0, 1]
        Drop tokens less likely than this times the most likely one's probability.
    repetition_penalty : float, above 0
        Divide the positive and multiply the negative logits of tokens in prompt and output by it; 1 changes nothing.
    presence_penalty, frequency_penalty : float, -2 to 2
        Subtracted from the logits of generated tokens, once, and once for each time.
    logit_bias : dict of int to float
        Added to these tokens' logits.
    bad_words_ids : tuple of tuples of int
        Token sequences that may not be generated.
    seed : int, 0 or more
        Same request, seed and engine settings: same tokens.
    n : int, 1 to 128
        Completions of the prompt; they come next to each other and differ in their random numbers.
    min_tokens : int, 0 or more
        No end (EOS, stop token, stop string) before so many generated tokens.
    stop : tuple of str
        The text ends before the first of these. One that is a special token of the tokenizer's ends the request as a stop
        token does.
    stop_token_ids : tuple of int
        Tokens that end the request, besides EOS; they stay in the output's token ids.
    ignore_eos : bool
        Do not end at the model's end-of-sequence token.
    allowed_token_ids : tuple of int, or None
        The only tokens that may be generated.
    logits_processors : tuple of callables
        Each as transformers' LogitsProcessor: (input ids (1, n), scores (1, V)) to scores (1, V). It is asked for every
        position of a block, drafted tokens included, so it must be a function of what it is given.
    regex : str, or None
        The whole output matches this regular expression (Rust's syntax: no look-around, no backreferences, and ``\d`` is a
        digit of any script; ``[0-9]`` is one of these ten).
    json_schema : dict, str (JSON text), or None
        The output is JSON text of this schema, its keys in the schema's order; one of ``regex`` and ``json_schema``.
    logprobs : int, 0 to 100, or None
        Report each generated token's log-probability, and that of so many most likely ones.
    logprobs_mode : {"raw", "processed"}
        Of the target's logits as they are, or of the law that was sampled.

    Raises
    ------
    InputError
        A value is out of its range, or a name is unknown.

    Notes
    -----
    Of a model's generation config only the ends are used: temperature, penalties and the like are what is asked for here.

    The order is that of transformers: bias, penalties, bad words, minimum length, allowed ids, processors, temperature,
    top-k, top-p, min-p. ``regex`` and ``json_schema`` are a processor after the user's own.

    Under a constraint, EOS and those stop tokens that are no text (special tokens) come only where the text matches, and
    there the model chooses between them and more text. ``max_tokens``, the context limit and stop strings cut it anywhere, and
    what is cut need not match. Where nothing may follow and the request may not end (``ignore_eos``, ``min_tokens``), it ends
    with ``finish_reason="error"``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, le=100.0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, allow_inf_nan=False)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, allow_inf_nan=False)
    repetition_penalty: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, allow_inf_nan=False)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, allow_inf_nan=False)
    logit_bias: dict[NonNegativeInt, FiniteFloat] = Field(default_factory=dict)
    bad_words_ids: tuple[tuple[NonNegativeInt, ...], ...] = ()
    seed: int = Field(default=0, ge=0, lt=2**63)
    n: int = Field(default=1, ge=1, le=128)
    min_tokens: int = Field(default=0, ge=0)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[NonNegativeInt, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] | None = None
    logits_processors: tuple[Callable[..., Any], ...] = ()
    regex: str | None = None
    json_schema: dict[str, Any] | None = None
    logprobs: int | None = Field(default=None, ge=0, le=100)
    logprobs_mode: Literal["raw", "processed"] = "raw"

    def __init__(self, **values: Any) -> None:
        for name in values.keys() & REFUSED.keys():
            raise InputError(f"sampling parameters: '{name}' is refused: {REFUSED[name]}")
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(f"sampling parameters: {describe(error, type(self))}") from None

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

    @field_validator("json_schema", mode="before")
    @classmethod
    def _schema_is_json(cls, value: object) -> object:
        if value is None:
            return None
        try:
            schema = json.loads(value if isinstance(value, str) else json.dumps(value))
        except (TypeError, ValueError) as error:
            raise ValueError(f"it is not JSON ({error})") from None
        if not isinstance(schema, dict):
            raise ValueError("a schema is a JSON object; give a dict or its JSON text")
        return schema

    @field_validator("bad_words_ids")
    @classmethod
    def _no_empty_word(cls, value: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        if not all(value):
            raise ValueError("a bad word has no tokens; give at least one")
        return value

    @model_validator(mode="after")
    def _can_end(self) -> "SamplingParams":
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens = {self.min_tokens} is above max_tokens = {self.max_tokens}; lower it")
        return self

    @model_validator(mode="after")
    def _one_constraint(self) -> "SamplingParams":
        if self.regex is not None and self.json_schema is not None:
            raise ValueError("regex and json_schema are both given; give one")
        return self

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0.0


def describe(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """
    Put a pydantic error into one line: each field, what it got and what is allowed.

    Parameters
    ----------
    error : ValidationError
    model : type of BaseModel, or None
        What was validated; then an unknown key is told with the known ones.
    """
    said: dict[str, list[str]] = {}
    for item in error.errors():
        # where a value may be of several kinds, pydantic names the kind that it tried as the last piece
        pieces = [str(piece) for piece in item["loc"] if not _KIND.fullmatch(str(piece))]
        where = ".".join(pieces) or "value"
        if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            known = _keys_beside(model, pieces)
            said[f"'{where}' is not a known key" + (f", allowed are {known}" if known else "")] = []
        elif item["type"] == "missing":
            said[f"'{where}' is missing"] = []
        else:
            message = _PLAIN.get(item["type"]) or item["msg"].removeprefix("Value error, ").removeprefix("Input ")
            # a whole table would bury what is said of it
            got = "" if isinstance(item["input"], dict) else f" = {item['input']!r}"
            said.setdefault(f"'{where}'{got}" if pieces or got else "", []).append(message)
    return "; ".join(
        f"{where}: {', or '.join(messages)}" if where and messages else where or ", or ".join(messages)
        for where, messages in said.items()
    )


# what a file calls a model and a tuple
_PLAIN = {"model_type": "should be a table", "dataclass_type": "should be a table", "tuple_type": "should be a list"}
_KIND = re.compile(r"int|float|str|bool|(constrained-|literal\[|tuple\[|function-).*")


def _keys_beside(model: type[BaseModel] | None, pieces: Sequence[str]) -> str:
    """Return the known keys of the table in which an unknown one was found, or an empty text."""
    table: Any = model
    for piece in pieces[:-1]:
        field = _fields(table).get(piece)
        table = getattr(field, "annotation", None)
    return ", ".join(_fields(table))


def _fields(table: Any) -> dict[str, Any]:
    """Return the fields of a model or a dataclass by name; none of anything else."""
    return getattr(table, "model_fields", None) or getattr(table, "__dataclass_fields__", None) or {}
