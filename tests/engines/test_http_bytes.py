"""Answers that only a broken, slow or strange server gives: the right tokens, or one clear error, and never after the deadline."""

import gzip
import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from draftproof.engines.http.client import FACT_S, Client
from draftproof.engines.http.stream import WireError
from draftproof.engines.launch import Attached
from draftproof.engines.openai_http import HttpEngine
from draftproof.errors import ServerError
from draftproof.measure.times import inter_chunk_gaps, inter_token_gaps, time_per_output_token, time_to_first_token
from draftproof.records import Completion
from draftproof.request import SamplingParams
from support.leftovers import no_thread_stays
from support.raw_server import (
    CHUNKED,
    CLOSED,
    NEVER,
    STREAM,
    TOKEN,
    Piece,
    RawServer,
    chunk,
    raw_server,
    said,
    tokens,
    usage,
    whole,
)
from support.toy_engines import numbered_words

COUNT = 4
GREEDY = SamplingParams(max_tokens=COUNT, temperature=0.0)
PATIENT_S, TIMEOUT_S = 20.0, 0.6
# a request may be over a little later than it has to be; a hang is much longer
SLACK_S = 8.0
GOOD = whole(COUNT)
END = tokens(finish="length")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    with no_thread_stays():
        yield


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[RawServer, HttpEngine]]:
    with raw_server() as plain, raw_server() as other:
        engine = HttpEngine.connect(
            Attached(plain.url, other.url), target="", tokenizer=numbered_words(), timeout_s=PATIENT_S
        )
        with closing(engine):
            yield plain, engine


def ask(servers: tuple[RawServer, HttpEngine], script: list[Piece], params: SamplingParams = GREEDY) -> Completion:
    """What a request becomes; the next one must be well."""
    plain, engine = servers
    plain.script = script
    done = engine.generate([[5, 9, 11]], params, speculate=False)[0]
    plain.let_go()
    plain.script, engine._timeout_s = None, PATIENT_S
    assert engine.generate([[5, 9, 11]], params, speculate=False)[0].error is None
    return done


def cut_up(data: bytes, size: int) -> list[Piece]:
    """In pieces of so many bytes, each in a TCP segment of its own."""
    return [piece for at in range(0, len(data), size) for piece in (data[at : at + size], 0.001)]


TEXT = "\u00fc\u20ac\U0001f600 \u2028\u0085"
ESCAPED = tokens(TOKEN, text=TEXT)
# as servers write that do not escape: what some take for the end of a line is text here
UNESCAPED = said(json.dumps({"choices": [{"text": TEXT, "token_ids": [TOKEN]}]}, ensure_ascii=False).encode())

WELL: dict[str, list[Piece]] = {
    "chunked": [CHUNKED, chunk(GOOD), chunk(b"")],
    "closed by the server": [CLOSED, GOOD],
    "HTTP/1.0": [CLOSED.replace(b"HTTP/1.1", b"HTTP/1.0"), GOOD],
    "events split anywhere": [CLOSED, *cut_up(GOOD, 7)],
    "chunks split anywhere": [CHUNKED, *cut_up(chunk(GOOD[:50]) + chunk(GOOD[50:]) + chunk(b""), 11)],
    "CRLF": [CLOSED, GOOD.replace(b"\n", b"\r\n")],
    "CR": [CLOSED, GOOD.replace(b"\n", b"\r")],
    "CRLF split between its bytes": [
        CLOSED,
        *cut_up(GOOD[:40].replace(b"\n", b"\r\n"), 1),
        GOOD[40:].replace(b"\n", b"\r\n"),
    ],
    "slow headers in time": [STREAM[:20], 0.05, STREAM[20:], 0.05, b"\r\n", GOOD],
    "gzip": [STREAM + b"content-encoding: gzip\r\nconnection: close\r\n\r\n", gzip.compress(GOOD)],
    "an event of 2 MB": [CLOSED, tokens(*[TOKEN] * COUNT, padding="x" * 2_000_000) + END],
    "no [DONE]": [CLOSED, tokens(*[TOKEN] * COUNT) + END + usage(COUNT)],
    "no usage": [CLOSED, tokens(*[TOKEN] * COUNT) + END],
    "usage before the end": [CLOSED, tokens(*[TOKEN] * COUNT) + usage(COUNT) + END],
    "a usage that grows": [CLOSED, tokens(TOKEN) + usage(1) + tokens(*[TOKEN] * 3) + usage(4) + END],
    "unknown fields and events": [CLOSED, b"id: 4\nretry: 5\nevent: x\n\n" + said({"new": [None]}) + GOOD],
    "a comment between the lines of an event": [CLOSED, b"event: message\n: still here\n" + GOOD],
    "end and tokens in one event": [CLOSED, tokens(*[TOKEN] * COUNT, finish="length") + usage(COUNT)],
}


@pytest.mark.parametrize("name", WELL)
def test_a_strange_but_whole_answer_is_read(servers: tuple[RawServer, HttpEngine], name: str) -> None:
    done = ask(servers, WELL[name])
    assert (done.error, done.finish_reason, done.token_ids) == (None, "length", (TOKEN,) * COUNT)
    assert sum(item.num_tokens for item in done.chunks) == COUNT and done.retries == 0


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("event", [ESCAPED, UNESCAPED], ids=["escaped", "as it is"])
def test_a_character_in_two_segments_is_one_character(
    servers: tuple[RawServer, HttpEngine], size: int, event: bytes
) -> None:
    done = ask(servers, [CLOSED, *cut_up(event, size), tokens(*[TOKEN] * 3, text="!") + END])
    assert (done.error, done.text) == (None, TEXT + "!")


def logprobs(own: str, top: str = "{}") -> bytes:
    inner = f'{{"token_logprobs": [{own}], "top_logprobs": [{top}]}}'
    return said(b'{"choices": [{"text": "", "token_ids": [7], "logprobs": %s}]}' % inner.encode())


def spoken(metrics: Any) -> bytes:
    return said({"choices": [], "metrics": {"speculative_decoding": metrics}})


FOUR = tokens(*[TOKEN] * COUNT)
LATE = "not over within 0.6 s (timeout_s)"
ILL: dict[str, tuple[list[Piece], str]] = {
    "accepted and never answered": ([NEVER], LATE),
    "headers without end": ([STREAM, NEVER], LATE),
    "headers a byte at a time": ([*cut_up(STREAM * 99, 1)], LATE),
    "half an event, then nothing": ([CLOSED, FOUR[:30], NEVER], LATE),
    "comments for ever": ([CLOSED, FOUR, *[b": still here\n\n", 0.02] * 500], LATE),
    "bytes of one event for ever": ([CLOSED, b"data: ", *[b"x" * 100, 0.01] * 500], LATE),
    "nothing after the end": ([CLOSED, GOOD, NEVER], LATE),
    "an error page without end": ([b"HTTP/1.1 500 No\r\n\r\n", *[b"x", 0.02] * 500], LATE),
    "closed before an answer": ([], "the connection broke"),
    "closed in the headers": ([STREAM], "the connection broke"),
    "cut off inside a chunk": ([CHUNKED, chunk(GOOD)[:60]], "the connection broke"),
    "cut off between chunks": ([CHUNKED, chunk(GOOD)], "the connection broke"),
    "a chunk of no size": ([CHUNKED, b"zz\r\n"], "the connection broke"),
    "shorter than it says": ([STREAM + b"content-length: 9999\r\n\r\n", GOOD], "the connection broke"),
    "no HTTP at all": ([b"\x16\x03\x01 hello\r\n\r\n"], "the connection broke"),
    "gzip that is none": (
        [STREAM + b"content-encoding: gzip\r\nconnection: close\r\n\r\n", GOOD],
        "the connection broke",
    ),
    "closed inside an event": ([CLOSED, FOUR + END[:20]], "without a finish reason"),
    "an event without its empty line": ([CLOSED, FOUR + END[:-1]], "without a finish reason"),
    "no finish reason": ([CLOSED, FOUR + usage(COUNT) + said(b"[DONE]")], "without a finish reason"),
    "half a character in the JSON": ([CLOSED, said(b'{"choices": [{"text": "\xc3"') + END], "malformed event"),
    "another content type": (
        [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n", b"{}"],
        "no stream of events",
    ),
    "another address": (
        [b"HTTP/1.1 307 There\r\nlocation: http://127.0.0.1:9/x\r\ncontent-length: 0\r\n\r\n"],
        "HTTP 307: it points to http://127.0.0.1:9/x, and a request is not sent on",
    ),
    "404": ([b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n"], "HTTP 404"),
    "an error in HTML": ([b"HTTP/1.1 502 Bad\r\nconnection: close\r\n\r\n", b"<p>\nno\n</p>"], "HTTP 502: <p> no </p>"),
    "an error nested without end": ([b"HTTP/1.1 500 No\r\nconnection: close\r\n\r\n", b"[" * 90_000], "HTTP 500: [["),
    "an event nested without end": ([CLOSED, said(b"[" * 90_000)], "malformed event"),
    "a log-probability that is no number": ([CLOSED, logprobs("NaN")], "malformed event"),
    "an infinite log-probability": ([CLOSED, logprobs("-1.0", '{"token_id:3": Infinity}')], "malformed event"),
    "one beyond a double": ([CLOSED, logprobs("1e999")], "malformed event"),
    "one that is missing": ([CLOSED, logprobs("null")], "malformed event"),
    "a count that is no number": (
        [CLOSED, FOUR + END + said(b'{"usage": {"completion_tokens": NaN}}')],
        "malformed event",
    ),
    "a count with a fraction": ([CLOSED, FOUR + END + usage(4.5)], "malformed event"),
    "a count below zero": ([CLOSED, FOUR + END + usage(-4)], "malformed event"),
    "another count": ([CLOSED, FOUR + END + usage(5)], "the server counted 5 generated tokens and 4 came"),
    "another count of the prompt": ([CLOSED, FOUR + END + usage(4, 5)], "the server counted 5 prompt tokens"),
    "an id that no tokenizer has": ([CLOSED, tokens(7, 64)], "named token id 64, and our tokenizer has 0 to 63"),
    "an id below zero": ([CLOSED, tokens(-1)], "malformed event"),
    "a truth value for an id": ([CLOSED, said({"choices": [{"text": "", "token_ids": [True]}]})], "malformed event"),
    "a number for a text": ([CLOSED, said({"choices": [{"text": 4, "token_ids": [4]}]})], "malformed event"),
    "another completion": (
        [CLOSED, tokens(7) + said({"choices": [{"index": 1, "text": "", "token_ids": [8]}]})],
        "more than one completion",
    ),
    "two at one index": (
        [CLOSED, said({"choices": [{"index": 0, "token_ids": [7]}, {"index": 0, "token_ids": [8]}]})],
        "more than one completion",
    ),
    "an event twice": ([CLOSED, tokens(7, 7) + FOUR + END + usage(COUNT)], "counted 4 generated tokens and 6 came"),
    "tokens after the end": ([CLOSED, FOUR + END + tokens(7)], "more tokens after it had ended"),
    "more accepted than drafted": (
        [CLOSED, FOUR + END + spoken({"num_draft_tokens": 0, "num_accepted_draft_tokens": 3})],
        "counted 3 accepted tokens of 0 drafted ones",
    ),
    "a draft count that is no number": ([CLOSED, FOUR + END + spoken({"num_draft_tokens": "4"})], "malformed event"),
}


@pytest.mark.parametrize("name", ILL)
def test_a_broken_answer_is_one_error_in_time(servers: tuple[RawServer, HttpEngine], name: str) -> None:
    script, expected = ILL[name]
    sent, began = servers[0].asked, time.monotonic()
    servers[1]._timeout_s = TIMEOUT_S if expected == LATE else PATIENT_S
    done = ask(servers, script, GREEDY.model_copy(update={"logprobs": 1}))
    assert time.monotonic() - began < servers[1]._timeout_s
    assert done.finish_reason == "error" and done.error is not None and "\n" not in done.error
    assert expected in done.error
    assert servers[0].asked == sent + 2 and done.retries == 0
    assert set(done.token_ids) <= {TOKEN}


ROLE = said({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})


def test_times_are_those_of_tokens_and_not_of_chunks(servers: tuple[RawServer, HttpEngine]) -> None:
    """B117, B118, B119: a role, a wait, 3 tokens, a stall, 3 and 3 tokens, a count. Nothing comes before it was sent."""
    three = tokens(TOKEN, TOKEN, TOKEN)
    script = [CLOSED, ROLE, 0.3, three, 0.2, three, 0.02, three, 0.02, tokens(finish="length") + usage(9)]
    done = ask(servers, script, GREEDY.model_copy(update={"max_tokens": 9}))
    assert done.error is None and [chunk.num_tokens for chunk in done.chunks] == [3, 3, 3]
    record = {"chunks": [[chunk.num_tokens, chunk.at_ms] for chunk in done.chunks]}
    assert time_to_first_token(record) >= 300.0
    gaps, each = inter_chunk_gaps(record), inter_token_gaps(record)
    assert len(gaps) == 2 and len(each) == 6 and time_to_first_token(record) + gaps[0] >= 500.0
    assert each == pytest.approx([gaps[0] / 3] * 3 + [gaps[1] / 3] * 3)
    assert time_per_output_token(record) == pytest.approx(sum(gaps) / 6)


def test_minus_infinity_is_a_log_probability(servers: tuple[RawServer, HttpEngine]) -> None:
    events = [logprobs("-1.0", '{"token_id:3": -Infinity}')] * COUNT
    done = ask(servers, [CLOSED, b"".join(events) + END], GREEDY.model_copy(update={"logprobs": 1}))
    assert done.error is None and done.top_logprobs is not None
    assert done.top_logprobs[0] == {3: float("-inf")}


PAGES: dict[str, list[Piece]] = {
    "a page a byte at a time": [b"HTTP/1.1 200 OK\r\n\r\n", *[b" ", 0.02] * 500],
    "headers a byte at a time": cut_up(b"HTTP/1.1 200 OK\r\nx: y\r\n" * 99, 1),
    "no answer": [NEVER],
    "round in circles": [
        b"HTTP/1.1 302 There\r\nlocation: /v1/models\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    ],
    "closed": [],
}


@pytest.mark.parametrize("name", PAGES)
def test_what_a_server_says_of_itself_has_a_deadline_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client.page, "__defaults__", (0.4,))
    with raw_server() as server:
        server.pages["/v1/models"] = PAGES[name]
        began = time.monotonic()
        with pytest.raises(ServerError, match=r"/v1/models does not answer: .*; start the server first"):
            HttpEngine.connect(Attached(server.url, server.url), target="", tokenizer=numbered_words())
        assert time.monotonic() - began < 0.4 + SLACK_S < FACT_S


def test_a_scoring_answer_has_a_deadline_and_a_shape(servers: tuple[RawServer, HttpEngine]) -> None:
    plain, engine = servers
    engine._timeout_s = TIMEOUT_S
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"

    def answered(body: Any) -> str:
        plain.script = body if isinstance(body, list) else [head, json.dumps(body).encode()]
        began = time.monotonic()
        with pytest.raises(ServerError) as error:
            engine.score_top([5, 9], [7], 2)
        assert time.monotonic() - began < TIMEOUT_S + SLACK_S and "\n" not in str(error.value)
        plain.let_go()
        return str(error.value)

    assert "not over within 0.6 s" in answered([head, *[b" ", 0.02] * 500])
    assert "HTTP 200" in answered([head, b"[" * 90_000])
    assert "the server scored 0 of 1 tokens" in answered({})
    for places in (
        [{"7": {"logprob": "x"}}],
        [[1]],
        [{"a": {"logprob": -1.0}}],
        [{"7": {}}],
        [{"7": {"logprob": float("nan")}}],
    ):
        assert "did not score 3 tokens" in answered({"choices": [{"prompt_logprobs": places}]})
    plain.script, engine._timeout_s = None, PATIENT_S


def test_a_refused_page_is_none_and_one_that_is_cut_off_is_an_error() -> None:
    with raw_server() as server, closing(Client()) as client:
        assert client.run(client.page(server.url + "/nothing")) is None
        server.pages["/cut"] = [b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n", b"x"]
        with pytest.raises(WireError, match="/cut does not answer"):
            client.run(client.page(server.url + "/cut"))
        server.pages["/deep"] = [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b"[" * 90_000]
        assert client.run(client.json(server.url + "/deep")) is None
