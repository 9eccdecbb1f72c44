"""What a request's regex or JSON schema lets follow: a mask over the next token, a function of the tokens before it alone."""

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, regex_to_lark
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from draftproof.errors import InputError, ModelError
from draftproof.request import SamplingParams

KEPT_GRAMMARS = 64
# where only one text can follow, the library would allow one spelling of it in tokens; here the model chooses among all
EVERY_SPELLING = '%llguidance {"no_forcing": true}\nstart: '


class Constraint:
    """
    A processor (see `sampling.adjust.Processor`) that forbids every token with which the text could no longer match.

    Parameters
    ----------
    matcher : LLMatcher
        A compiled grammar at its start; it is copied.
    num_prompt : int
        Tokens of the prompt, which the grammar does not read.
    eos : sequence of int
        The model's ends; none of them is text.
    ends : frozenset of int
        Tokens that end the request and are no text: allowed where the text so far matches, and nothing follows them.

    Raises
    ------
    RuntimeError
        When called: the grammar passed a limit of its matcher.

    Notes
    -----
    The matcher stays where the last call left it and is moved by roll-back to the prefix that is asked for, so a block and
    what stays of it cost one token a position. That is speed only: the mask is that of a fresh matcher.
    """

    def __init__(self, matcher: LLMatcher, num_prompt: int, eos: Sequence[int], ends: frozenset[int]) -> None:
        self._start, self._num_prompt, self._eos, self._ends = matcher, num_prompt, list(eos), ends
        self._restart()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores, shape (1, V), with -inf for what may not follow."""
        allowed = torch.zeros(scores.shape[-1], dtype=torch.bool)
        generated = input_ids[0, self._num_prompt :].tolist()
        ended = bool(generated) and generated[-1] in self._ends
        if not ended and self._move_to(generated):
            text = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            allowed |= torch.from_numpy(np.unpackbits(text, count=len(allowed), bitorder="little").view(np.bool_))
            allowed[self._eos] = False
            if self._matcher.is_accepting():
                allowed[list(self._ends)] = True
        if self._matcher.is_error():
            problem = _one_line(self._matcher.get_error())
            self._restart()
            raise RuntimeError(f"the grammar's matcher stopped: {problem}")
        return scores.masked_fill(~allowed.to(scores.device), -torch.inf)

    def _restart(self) -> None:
        self._matcher, self._held = self._start.deep_copy(), list[int]()

    def _move_to(self, generated: list[int]) -> bool:
        """Make the matcher have read these tokens; return whether it could."""
        common = min(len(self._held), len(generated))
        while self._held[:common] != generated[:common]:
            common -= 1
        self._matcher.rollback(len(self._held) - common)
        read = self._matcher.try_consume_tokens(generated[common:])
        self._held = generated[: common + read]
        return common + read == len(generated)


class Constraints:
    """
    The constraints of one engine's requests; a grammar is compiled once for all rows that ask for it.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerFast, or another, with which a constraint is refused
    vocab_size : int
        Ids that the model has.
    eos : frozenset of int
        The model's ends.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos: frozenset[int]) -> None:
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, sorted(eos)
        self._compiled = functools.lru_cache(maxsize=KEPT_GRAMMARS)(self._compile)

    def of(self, params: SamplingParams, num_prompt: int, end_token_ids: frozenset[int]) -> tuple[Constraint, ...]:
        """
        Return the request's constraint: one, or none.

        Parameters
        ----------
        num_prompt : int
            Tokens of the prompt.
        end_token_ids : frozenset of int
            Tokens that end the request; those that are text follow the grammar like any other.

        Raises
        ------
        InputError
            The regex or the schema cannot be used.
        ModelError
            The tokenizer cannot be constrained.
        """
        if params.regex is not None:
            matcher = self._compiled("regex", params.regex)
        elif params.json_schema is not None:
            matcher = self._compiled("json_schema", json.dumps(params.json_schema))
        else:
            return ()
        special = self._words.is_special_token
        ends = frozenset(token_id for token_id in end_token_ids if token_id in self._eos or special(token_id))
        return (Constraint(matcher, num_prompt, self._eos, ends),)

    @functools.cached_property
    def _words(self) -> LLTokenizer:
        """The bytes of each token; takes about half a second, so only where something is constrained."""
        if not isinstance(self._tokenizer, PreTrainedTokenizerFast) or not self._eos:
            lack = "no end-of-sequence token" if self._eos == [] else f"the tokenizer {type(self._tokenizer).__name__}"
            raise ModelError(
                f"regex and json_schema cannot be honoured: this engine has {lack}; "
                "leave them out, or use a model with a transformers fast tokenizer and an end-of-sequence token"
            )
        size = max(self._vocab_size, *(token_id + 1 for token_id in self._tokenizer.get_vocab().values()))
        try:
            return from_tokenizer(self._tokenizer, n_vocab=size, eos_token=self._eos)
        except ValueError as error:
            raise ModelError(
                f"regex and json_schema cannot be honoured with this tokenizer: {_one_line(error)}; leave them out"
            ) from None

    def _compile(self, kind: str, text: str) -> LLMatcher:
        if kind == "regex" and (len(text) - len(text.rstrip("\\"))) % 2:
            # it would escape the sign that ends the regex in the grammar
            raise InputError(
                f"regex = {_shortened(text)}: nothing follows the last backslash; change or leave out that part"
            )
        rule = f"/{regex_to_lark(text)}/" if kind == "regex" else f"%json {text}"
        matcher = LLMatcher(self._words, EVERY_SPELLING + rule, log_level=0)
        problems = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
        if problems:
            raise InputError(f"{kind} = {_shortened(text)}: {_reason(problems[0])}; change or leave out that part")
        first = matcher.deep_copy()
        if not any(first.compute_bitmask()) or first.is_error():
            raise InputError(f"{kind} = {_shortened(text)}: no text matches it; change it")
        return matcher


def _reason(message: str) -> str:
    """Return what the library says without the picture that it draws of the place."""
    found = re.search(r"error: (.*)", message) or re.search(r"(?:\(in regex\)|JSON schema): (.*)", message)
    return _one_line(found[1] if found else message)


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
