"""The events of one streamed answer, put together: tokens, times, counts, or what is wrong with it. Reads no socket."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from draftproof.engines.http.dialects import Dialect, Json, OnToken, look
from draftproof.records import Chunk, Completion, SpeculationMetrics, summarise_counts
from draftproof.request import FinishReason

Encode = Callable[[str], list[int]]
DONE = "[DONE]"
SHOWN = 120


class WireError(Exception):
    """An answer that cannot be used, in one line."""


class Answer:
    """
    One completion as it comes in.

    Parameters
    ----------
    dialect : Dialect
    encode : callable, text to token ids
        For a server that reports no token ids: the text's own ones stand for them.
    reports_token_ids : bool
    num_prompt_tokens : int
        As our tokenizer counts them.
    vocab_size : int or None
        Token ids are below it. None: that is not checked.
    num_logprobs : int or None
        Likeliest tokens that were asked for at each place.
    speculates : bool
        Whether this arm may draft.
    """

    def __init__(
        self,
        dialect: Dialect,
        encode: Encode,
        *,
        reports_token_ids: bool,
        num_prompt_tokens: int,
        vocab_size: int | None = None,
        num_logprobs: int | None = None,
        speculates: bool = True,
    ) -> None:
        self._dialect, self._encode, self._reports_token_ids = dialect, encode, reports_token_ids
        self._num_prompt_tokens, self._num_logprobs, self._speculates = num_prompt_tokens, num_logprobs, speculates
        self._vocab_size = vocab_size
        self._token_ids: list[int] = []
        self._chunks: list[Chunk] = []
        self._texts: list[tuple[int, float]] = []
        self._text = ""
        self._on_tokens: list[OnToken] = []
        self._finish: FinishReason | None = None
        self._retries = 0
        # as the server counted so far; the last one counts
        self._usage: list[int] = []
        self._prompt_usage: list[int] = []
        self._speculation: SpeculationMetrics | None = None

    def feed(self, data: str, at_ms: float) -> None:
        """
        Take in an event.

        Parameters
        ----------
        data : str
        at_ms : float, ms since the request was submitted

        Raises
        ------
        WireError
            It is not JSON, not of the dialect's shape, or an error, or it ends the request in a way that is no end.
        """
        if data.strip() == DONE or not data.strip():
            return
        try:
            self._take(_event(data), at_ms)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise WireError(f"malformed event: {_one_line(data)}") from None

    def count_retry(self) -> None:
        """Note that the server is asked again."""
        self._retries += 1

    def completion(self) -> Completion:
        """
        Return the whole, once the stream is over.

        Raises
        ------
        WireError
            It is cut off, or its counts do not agree.
        """
        if self._finish is None:
            raise WireError("the stream ended without a finish reason")
        if not self._reports_token_ids:
            self._count_texts()
        if not self._token_ids:
            raise WireError(
                "the answer has no token"
                + (", only text without token ids" if self._text else "")
                + "; see the server's log"
            )
        self._check_counts()
        return self._made(self._finish, None)

    def failed(self, error: str) -> Completion:
        """Return what came before something went wrong, marked as an error."""
        if not self._reports_token_ids:
            self._count_texts()
        came = f", after {len(self._token_ids)} tokens" if self._token_ids else ""
        return self._made("error", error + came)

    def _take(self, event: Json, at_ms: float) -> None:
        if any(look(event, path) for path in self._dialect.others):
            raise WireError("the server streams more than one completion, and one was asked for")
        ids, whole = self._new_ids(event)
        text = next((part for path in self._dialect.text if (part := look(event, path)) is not None), None)
        if text is not None and not isinstance(text, str):
            raise TypeError
        if self._finish is not None and (ids or (text and not self._reports_token_ids)):
            raise WireError("the server sent more tokens after it had ended the request")
        if text is not None and not look(event, self._dialect.hidden):
            self._text = text if whole else self._text + text
        final = look(event, self._dialect.final_text)
        self._text = self._text if final is None else final
        if ids:
            self._token_ids += ids
            self._chunks.append(Chunk(num_tokens=len(ids), at_ms=at_ms))
            if self._num_logprobs is not None and self._dialect.logprobs is not None:
                self._on_tokens += map(checked, self._dialect.logprobs(event)[-len(ids) :])
        elif text and not self._reports_token_ids:
            self._texts.append((len(self._text), at_ms))
        self._note_end(event)

    def _made(self, reason: FinishReason, error: str | None) -> Completion:
        logs, num = self._on_tokens, self._num_logprobs
        known = num is not None and len(logs) == len(self._token_ids) > 0
        return Completion(
            token_ids=tuple(self._token_ids),
            text=self._text,
            finish_reason=reason,
            logprobs=tuple(own for own, _ in logs) if known else None,
            top_logprobs=tuple(likeliest(top, num or 0) for _, top in logs) if known and num else None,
            rounds=(),
            speculation=self._speculation if self._speculates else None,
            chunks=tuple(self._chunks),
            num_prompt_tokens=self._num_prompt_tokens,
            error=error,
            retries=self._retries,
        )

    def _new_ids(self, event: Json) -> tuple[list[int], bool]:
        """Return the event's new token ids, and whether it holds the whole output so far."""
        found = look(event, self._dialect.token_ids) if self._reports_token_ids else None
        ids = [found] if isinstance(found, int) else list(found or ())
        if not all(_is_count(token_id) for token_id in ids):
            raise TypeError
        if self._vocab_size is not None and max(ids, default=0) >= self._vocab_size:
            raise WireError(f"the server named token id {max(ids)}, and our tokenizer has 0 to {self._vocab_size - 1}")
        count = look(event, self._dialect.num_tokens)
        whole = bool(ids) and len(ids) == count
        if whole and ids[: len(self._token_ids)] != self._token_ids:
            raise WireError("the server changed tokens that it had sent before")
        if whole:
            return ids[len(self._token_ids) :], True
        return (self._with_unsent(event, ids, count) if ids and _is_count(count) else ids), False

    def _with_unsent(self, event: Json, ids: list[int], count: int) -> list[int]:
        """
        Return an event's ids with those before them that the server counted and did not name.

        llama.cpp sends nothing while a character is not whole, and then the last token's id with the text of all. If that text ends
        with the same id, it has the others too; else the count at the end will not agree. The count may run ahead, by a whole block.
        """
        unsent = count - len(self._token_ids) - len(ids)
        spelt = self._encode(str(look(event, self._dialect.text[0]) or "")) if unsent > 0 else ids
        return spelt if len(ids) < len(spelt) <= unsent + len(ids) and spelt[-len(ids) :] == ids else ids

    def _note_end(self, event: Json) -> None:
        reason = look(event, self._dialect.finish)
        if reason not in (None, "", "none"):
            if reason not in self._dialect.ends:
                raise WireError(f"the server ended the request with finish reason '{reason}'")
            self._finish = self._dialect.ends[reason]
        for counts, path in ((self._usage, self._dialect.usage), (self._prompt_usage, self._dialect.prompt_usage)):
            if (count := look(event, path)) is not None:
                if not _is_count(count):
                    raise TypeError
                counts.append(count)
        self._speculation = self._counts(event) or self._speculation

    def _counts(self, event: Json) -> SpeculationMetrics | None:
        found: dict[str, Any] = {}
        for name, paths in self._dialect.speculation.items():
            value = next((item for path in paths if (item := look(event, path)) is not None), None)
            if value is not None:
                found[name] = tuple(value) if isinstance(value, list) else value
                if not all(map(_is_count, value if isinstance(value, list) else [value])):
                    raise TypeError
        return summarise_counts(**found) if found else None

    def _count_texts(self) -> None:
        """Take the text's own tokens for the generated ones, and the growth of their number for each chunk's."""
        self._token_ids, self._chunks = self._encode(self._text) if self._text else [], []
        before = 0
        for index, (length, at_ms) in enumerate(self._texts):
            last = index == len(self._texts) - 1
            now = len(self._token_ids) if last else len(self._encode(self._text[:length]))
            if now > before:
                self._chunks.append(Chunk(num_tokens=now - before, at_ms=at_ms))
                before = now

    def _check_counts(self) -> None:
        seen = len(self._token_ids)
        # a text does not show the token that ended it
        allowed = {seen} if self._reports_token_ids or self._finish != "stop" else {seen, seen + 1}
        if self._usage and self._usage[-1] not in allowed:
            what = "came as token ids" if self._reports_token_ids else "are in its text"
            raise WireError(f"the server counted {self._usage[-1]} generated tokens and {seen} {what}")
        if self._prompt_usage and self._prompt_usage[-1] != self._num_prompt_tokens:
            raise WireError(
                f"the server counted {self._prompt_usage[-1]} prompt tokens and our tokenizer {self._num_prompt_tokens}: "
                "it has another tokenizer, or puts tokens before the prompt"
            )
        counts = self._speculation
        drafted, accepted = (counts.num_draft_tokens, counts.num_accepted_draft_tokens) if counts else (None, None)
        if not self._speculates and drafted:
            raise WireError(f"the target-only arm drafted {drafted} tokens: its server speculates all the same")
        if drafted is not None and accepted is not None and accepted > drafted:
            raise WireError(f"the server counted {accepted} accepted tokens of {drafted} drafted ones")


def _event(data: str) -> Json:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise WireError(f"malformed event: {_one_line(data)}") from None
    if not isinstance(event, dict):
        raise WireError(f"malformed event: {_one_line(data)}")
    if event.get("error"):
        raise WireError(f"the server reported an error: {said(event)}")
    return event


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def checked(on_token: OnToken) -> OnToken:
    """Return log-probabilities that are numbers; minus infinity is one."""
    own, top = on_token
    for value in (own, *top.values()):
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value == math.inf:
            raise TypeError
    return on_token


def said(answer: Any) -> str:
    """Return the message of an error in JSON, in one short line; servers put it in different places."""
    message = answer
    while isinstance(message, dict):
        message = message.get("error") or message.get("message") or message.get("detail") or json.dumps(message)
    return _one_line(str(message))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[:SHOWN] + " ..."


def likeliest(top: dict[int, float], num: int) -> dict[int, float]:
    """Return the ``num`` likeliest of some tokens' log-probabilities, the likeliest first."""
    order: Sequence[tuple[int, float]] = sorted(top.items(), key=lambda item: -item[1])
    return dict(order[:num])
