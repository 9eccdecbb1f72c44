"""
A server on the loopback that speaks each dialect from a tabulated model, and shows each fault that a client can see.

The next token is a function of the last two tokens and, where a request samples, of its seed; a speculative server sends
several tokens in an event and counts what it drafted. Every answer waits on an event that `close` sets, so nothing outlives a test.
"""

import json
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

# those of `toy_engines.numbered_words`, which is not imported: a server that is launched is to be there at once
VOCAB, UNKNOWN, EOS, FIRST_WORD = 64, 0, 1, 2
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "tgi": "somebody", "openai": "somebody"}
MAX_LEN = 256
DRAFTED = 4


@dataclass
class Behaviour:
    """What the server does; a fault that says "after" comes once so many tokens of a request are sent."""

    dialect: str = "vllm"
    seed: int = 0
    chunk: int = 1
    speculates: bool = False
    gap_s: float = 0.0
    statuses: list[int] = field(default_factory=list)
    retry_after: str | None = None
    role_chunk: bool = False
    reasoning: bool = False
    keep_alive: bool = False
    usage: bool = True
    usage_off_by: int = 0
    prompt_off_by: int = 0
    token_ids: bool = True
    per_request: bool = True
    metrics: bool = True
    late_counters: bool = False
    heeds_switch: bool = True
    fixed_seed: int | None = None
    ends_early: bool = False
    eos_after: int | None = None
    cut_after: int | None = None
    defect_after: int | None = None
    model: str = "toy"
    version: str = "1.2.3"
    settings: dict[str, Any] = field(default_factory=dict)
    strange_end: str | None = None
    stall_after: int | None = None
    chatter_after: int | None = None
    break_after: int | None = None
    malformed_after: int | None = None
    error_after: int | None = None


def spell(token_ids: Sequence[int]) -> str:
    return " ".join(f"w{token_id:02}" for token_id in token_ids if token_id >= FIRST_WORD)


def read(text: str) -> list[int]:
    return [int(word[1:]) if word[1:].isdecimal() else UNKNOWN for word in text.split()]


class Table:
    """The law: logits that depend on the last two tokens alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def logprobs(self, token_ids: Sequence[int]) -> np.ndarray:
        before, last = ([0, *token_ids])[-2:]
        logits = np.random.default_rng((self._seed, before, last)).standard_normal(VOCAB)
        # neither the unknown word nor the end comes by itself
        logits[:FIRST_WORD] = -40.0
        return logits - np.log(np.exp(logits).sum())

    def generate(self, prompt: Sequence[int], count: int, temperature: float, seed: int) -> list[int]:
        sequence = list(prompt)
        draw = np.random.default_rng(seed)
        for _ in range(count):
            law = self.logprobs(sequence)
            if temperature == 0:
                sequence.append(int(law.argmax()))
            else:
                law = np.exp(law / temperature)
                sequence.append(int(draw.choice(VOCAB, p=law / law.sum())))
        return sequence[len(prompt) :]


class FakeServer:
    """A running server; `requests` are the bodies that it was sent."""

    def __init__(self, behaviour: Behaviour, port: int = 0) -> None:
        self.behaviour, self.table = behaviour, Table(behaviour.seed)
        self.requests: list[dict[str, Any]] = []
        self.counts = dict.fromkeys(("drafts", "drafted", "accepted", "finished", "running"), 0)
        self.closing = threading.Event()
        self.connections: list[socket.socket] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"fake": self}))
        self._http.daemon_threads = False
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._http.server_close()
        self._thread.join()


@contextmanager
def serving(**behaviour: Any) -> Iterator[FakeServer]:
    server = FakeServer(Behaviour(**behaviour))
    try:
        yield server
    finally:
        server.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeServer
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.fake.connections.append(self.connection)

    def log_message(self, *args: Any) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client hung up, as some tests make it

    # --- what the server says of itself

    def do_GET(self) -> None:
        does = self.fake.behaviour
        answers: dict[str, Any] = {"/v1/models": _models(does), "/health": {}}
        if does.dialect == "vllm":
            answers["/version"] = {"version": does.version}
        if does.dialect == "sglang":
            answers["/get_server_info"] = {"version": does.version, **does.settings}
        if does.dialect == "tgi":
            answers["/info"] = {"version": does.version, "model_id": does.model, "max_total_tokens": MAX_LEN}
        if does.dialect == "llamacpp":
            answers["/props"] = {"build_info": does.version, "default_generation_settings": {"n_ctx": MAX_LEN}}
        if self.path == "/metrics" and does.metrics:
            return self._answer(200, self._page().encode(), "text/plain")
        if self.path in answers:
            return self._answer(200, json.dumps(answers[self.path]).encode())
        self._answer(404, b'{"error": "not found"}')

    def _page(self) -> str:
        counts, kind = self.fake.counts, self.fake.behaviour.dialect
        lines = ["# HELP something a text", "# TYPE something counter", 'something_else{le="+Inf"} NaN']
        if kind in ("vllm", "llamacpp") and self.fake.behaviour.speculates:
            prefix = {"vllm": "vllm", "llamacpp": "llamacpp"}[kind]
            lines += [
                f'{prefix}:spec_decode_num_drafts_total{{engine="0"}} {counts["drafts"]}.0',
                f'{prefix}:spec_decode_num_draft_tokens_total{{engine="0"}} {counts["drafted"]}.0',
                f'{prefix}:spec_decode_num_accepted_tokens_total{{engine="0"}} {counts["accepted"]}.0',
            ]
        if kind == "vllm":
            # two labels, to be added up
            lines += [
                f'vllm:request_success_total{{finished_reason="stop"}} {counts["finished"] // 2}.0',
                f'vllm:request_success_total{{finished_reason="length"}} {counts["finished"] - counts["finished"] // 2}.0',
                f'vllm:num_requests_running{{engine="0"}} {counts["running"]}.0',
            ]
        if kind == "llamacpp":
            lines.append(f"llamacpp:requests_processing {counts['running']}")
        late = self.fake.behaviour.late_counters and not counts["finished"]
        if kind == "tgi" and self.fake.behaviour.speculates and not late:
            lines += [
                f"tgi_request_skipped_tokens_sum {counts['accepted']}",
                f"tgi_request_skipped_tokens_count {counts['finished']}",
            ]
        return "\n".join(lines) + "\n"

    # --- completions

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.fake.requests.append(body)
        does = self.fake.behaviour
        if does.statuses:
            status = does.statuses.pop(0)
            headers = {"retry-after": does.retry_after} if does.retry_after else {}
            if status != 200:
                return self._answer(status, b'{"error": {"message": "not now", "code": 1}}', **headers)
        asked = _asked(does.dialect, body)
        if not asked["stream"]:
            return self._answer(200, json.dumps(_scored(does.dialect, self.fake.table, body, asked)).encode())
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if self._stream(asked, _Voice(does, asked)):
            self.wfile.write(b"0\r\n\r\n")

    def _stream(self, asked: dict[str, Any], voice: "_Voice") -> bool:
        """Send the events; false where the connection is to break."""
        does, fake = self.fake.behaviour, self.fake
        prompt, count = asked["prompt"], asked["max_tokens"]
        drafting = does.speculates and not (asked["switched_off"] and does.heeds_switch)
        seed = asked["seed"] if does.fixed_seed is None else does.fixed_seed
        tokens = fake.table.generate(prompt, count, asked["temperature"], seed)
        if does.defect_after is not None and len(tokens) > does.defect_after:
            tokens[does.defect_after :] = [FIRST_WORD] * (len(tokens) - does.defect_after)
        tokens, ended = tokens[: does.cut_after], "length"
        if does.eos_after is not None and len(tokens) > does.eos_after and not asked["ignore_eos"]:
            tokens, ended = [*tokens[: does.eos_after], EOS], "stop"
        size = max(does.chunk, 3) if drafting else does.chunk
        counts = {"drafts": 0, "drafted": 0, "accepted": 0}
        fake.counts["running"] += 1
        try:
            if does.role_chunk:
                self._event(voice.role())
            sent = 0
            while sent < len(tokens):
                new = tokens[sent : sent + size]
                if drafting:
                    counts = {
                        "drafts": counts["drafts"] + 1,
                        "drafted": counts["drafted"] + DRAFTED,
                        "accepted": counts["accepted"] + len(new) - 1,
                    }
                fault = self._fault(sent)
                if fault is not None:
                    return fault
                if does.keep_alive:
                    self._piece(b": keep-alive\n\n")
                if fake.closing.wait(does.gap_s):
                    return False
                for event in voice.tokens(new, [*prompt, *tokens[:sent]], fake, reasoning=does.reasoning and sent == 0):
                    self._event(event)
                sent += len(new)
            fault = self._fault(sent)
            if fault is not None:
                return fault
            if does.ends_early:
                return True
            for event in voice.end(len(tokens), does.strange_end or ended, counts if drafting else None):
                self._event(event)
            return True
        finally:
            fake.counts["running"] -= 1
            fake.counts["finished"] += 1
            for name, value in counts.items():
                fake.counts[name] += value

    def _fault(self, sent: int) -> bool | None:
        """Show what is due after so many tokens; None: go on."""
        does = self.fake.behaviour

        def due(after: int | None) -> bool:
            return after is not None and sent >= after

        if due(does.stall_after):
            self.fake.closing.wait()
            return False
        if due(does.chatter_after):
            while not self.fake.closing.wait(0.05):
                self._piece(b": still here\n\n")
            return False
        if due(does.break_after):
            self.close_connection = True
            return False
        if due(does.malformed_after):
            self._piece(b'data: {"choices": [{"te\n\n')
            return True
        if due(does.error_after):
            self._event({"error": {"message": "out of memory", "code": 500}})
            return True
        return None

    def _event(self, event: dict[str, Any] | str) -> None:
        data = event if isinstance(event, str) else json.dumps(event)
        self._piece(f"data: {data}\n\n".encode())

    def _piece(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _answer(self, status: int, data: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)


def _models(does: Behaviour) -> dict[str, Any]:
    row = {"id": does.model, "owned_by": OWNERS[does.dialect]}
    return {"data": [row | ({"max_model_len": MAX_LEN} if does.dialect in ("vllm", "sglang") else {})]}


def _asked(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """A request in one language."""
    inner = {"sglang": body.get("sampling_params"), "tgi": body.get("parameters")}.get(kind) or body
    prompt = body["input_ids"] if kind == "sglang" else body["inputs"] if kind == "tgi" else body["prompt"]
    count = {"sglang": "max_new_tokens", "tgi": "max_new_tokens", "llamacpp": "n_predict"}.get(kind, "max_tokens")
    seed = {"sglang": "sampling_seed"}.get(kind, "seed")
    logs = {"sglang": "top_logprobs_num", "llamacpp": "n_probs", "tgi": "top_n_tokens"}.get(kind, "logprobs")
    return {
        "prompt": read(prompt) if isinstance(prompt, str) else prompt,
        "max_tokens": inner[count],
        "temperature": inner.get("temperature", 0.0) if inner.get("do_sample", True) else 0.0,
        "seed": inner.get(seed, 0),
        "stream": body["stream"],
        "ignore_eos": inner.get("ignore_eos", False),
        "num_logprobs": (inner if kind == "tgi" else body).get(logs),
        "switched_off": body.get("speculative.n_max") == 0,
        "with_usage": body.get("stream_options", {}).get("include_usage", False),
    }


def _top(law: np.ndarray, count: int) -> list[int]:
    return [int(token_id) for token_id in np.argsort(-law)[:count]]


def _scored(kind: str, table: Table, body: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request for the log-probabilities of the prompt."""
    ids = asked["prompt"]
    laws = [table.logprobs(ids[:place]) for place in range(1, len(ids))]
    if kind == "vllm":
        count = body["prompt_logprobs"]
        places = [
            {str(token_id): {"logprob": law[token_id]} for token_id in dict.fromkeys([own, *_top(law, count)])}
            for own, law in zip(ids[1:], laws, strict=True)
        ]
        return {"choices": [{"text": "", "prompt_logprobs": [None, *places]}]}
    start, count = body["logprob_start_len"], body["top_logprobs_num"]
    rows = [(law[own], own, None) for own, law in zip(ids[1:], laws, strict=True)]
    tops = [[(law[token_id], token_id, None) for token_id in _top(law, count)] for law in laws]
    own = [(None, ids[start], None), *rows[start:]]
    return {"meta_info": {"input_token_logprobs": own, "input_top_logprobs": [None, *tops[start:]]}}


class _Voice:
    """Tokens in the words of a dialect."""

    def __init__(self, does: Behaviour, asked: dict[str, Any]) -> None:
        self.does, self.asked, self.so_far = does, asked, list[int]()
        self.logs: list[tuple[float, dict[int, float]]] = []

    def role(self) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}

    def tokens(self, new: list[int], before: list[int], fake: FakeServer, *, reasoning: bool) -> Iterator[Any]:
        logs = []
        for place, own in enumerate(new):
            law = fake.table.logprobs([*before, *new[:place]])
            logs.append((float(law[own]), {i: float(law[i]) for i in _top(law, self.asked["num_logprobs"] or 0)}))
        self.so_far += new
        self.logs += logs
        text = (" " if len(self.so_far) > len(new) and spell(new) else "") + spell(new)
        ids = new if self.does.token_ids else None
        speak = getattr(self, f"_{self.does.dialect}")
        yield from speak(new, ids, text, logs, fake, reasoning)

    def _vllm(self, new: list[int], ids: Any, text: str, logs: Any, fake: FakeServer, reasoning: bool) -> Iterator[Any]:
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": None}
        if reasoning:
            choice = {"index": 0, "delta": {"reasoning_content": text}, "finish_reason": None}
        if ids is not None:
            choice["token_ids"] = ids
        if self.asked["num_logprobs"] is not None:
            choice["logprobs"] = {
                "tokens": [f"token_id:{token_id}" for token_id in new],
                "token_logprobs": [own for own, _ in logs],
                "top_logprobs": [{f"token_id:{i}": value for i, value in top.items()} for _, top in logs],
            }
        yield {"id": "cmpl-1", "object": "text_completion", "choices": [choice]}

    def _openai(self, *parts: Any) -> Iterator[Any]:
        for event in self._vllm(*parts):
            event["choices"][0].pop("token_ids", None)
            yield event

    def _sglang(
        self, new: list[int], ids: Any, text: str, logs: Any, fake: FakeServer, reasoning: bool
    ) -> Iterator[Any]:
        yield {"text": spell(self.so_far), "output_ids": list(self.so_far), "meta_info": self._meta()}

    def _meta(self) -> dict[str, Any]:
        found: dict[str, Any] = {"completion_tokens": len(self.so_far), "finish_reason": None}
        if self.asked["num_logprobs"] is not None:
            found["output_token_logprobs"] = [(own, 0, None) for own, _ in self.logs]
            found["output_top_logprobs"] = [[(value, i, None) for i, value in top.items()] for _, top in self.logs]
        return found

    def _tgi(self, new: list[int], ids: Any, text: str, logs: Any, fake: FakeServer, reasoning: bool) -> Iterator[Any]:
        for place, (token_id, (own, top)) in enumerate(zip(new, logs, strict=True)):
            spelt = spell([token_id])
            first = len(self.so_far) - len(new) + place == 0
            yield {
                "token": {
                    "id": token_id,
                    "text": (spelt if first else " " + spelt) or "</s>",
                    "logprob": own,
                    "special": token_id == EOS,
                },
                "top_tokens": [{"id": i, "logprob": value} for i, value in top.items()],
                "generated_text": None,
                "details": None,
            }

    def _llamacpp(
        self, new: list[int], ids: Any, text: str, logs: Any, fake: FakeServer, reasoning: bool
    ) -> Iterator[Any]:
        event: dict[str, Any] = {"content": text, "tokens": ids, "stop": False, "tokens_predicted": len(self.so_far)}
        if self.asked["num_logprobs"]:
            event["completion_probabilities"] = [
                {"id": own_id, "logprob": own, "top_logprobs": [{"id": i, "logprob": v} for i, v in top.items()]}
                for own_id, (own, top) in zip(new, logs, strict=True)
            ]
        yield event

    def end(self, count: int, reason: str, counts: dict[str, int] | None) -> Iterator[Any]:
        count += self.does.usage_off_by
        prompt = len(self.asked["prompt"]) + self.does.prompt_off_by
        counts = counts if self.does.per_request else None
        kind = self.does.dialect
        if kind == "tgi":
            reason = {"stop": "eos_token"}.get(reason, reason)
            details = {"finish_reason": reason}
            if self.does.usage:
                details |= {"generated_tokens": count, "input_length": prompt}
            yield {"token": None, "generated_text": None, "details": details}
        elif kind == "llamacpp":
            event = {
                "content": "",
                "tokens": [],
                "stop": True,
                "stop_type": {"length": "limit", "stop": "eos"}.get(reason, reason),
            }
            if self.does.usage:
                event |= {"tokens_predicted": count, "tokens_evaluated": prompt}
            event["timings"] = {"predicted_ms": 1.0}
            if counts and counts["drafted"]:
                event["timings"] |= {"draft_n": counts["drafted"], "draft_n_accepted": counts["accepted"]}
            yield event
        elif kind == "sglang":
            meta = self._meta() | {"finish_reason": {"type": reason}, "prompt_tokens": prompt}
            meta["completion_tokens"] = count
            if not self.does.usage:
                del meta["prompt_tokens"]
            if counts:
                meta |= {
                    "spec_verify_ct": counts["drafts"],
                    "spec_num_proposed_drafts": counts["drafted"],
                    "spec_num_correct_drafts": counts["accepted"],
                }
            yield {"output_ids": list(self.so_far), "meta_info": meta}
            yield "[DONE]"
        else:
            yield {"choices": [{"index": 0, "text": "", "token_ids": [], "finish_reason": reason}]}
            if self.does.usage and self.asked["with_usage"]:
                event = {"choices": [], "usage": {"completion_tokens": count, "prompt_tokens": prompt}}
                if counts and kind == "vllm":
                    event["metrics"] = {
                        "speculative_decoding": {
                            "num_spec_steps": counts["drafts"],
                            "num_draft_tokens": counts["drafted"],
                            "num_accepted_draft_tokens": counts["accepted"],
                            "num_spec_tokens": DRAFTED,
                            "acceptance_histogram": [0, 0, counts["drafts"], 0, 0],
                        }
                    }
                yield event
            yield "[DONE]"


if __name__ == "__main__":
    # python fake_server.py PORT NAME=JSON ...
    FakeServer(
        Behaviour(**{name: json.loads(value) for name, _, value in (part.partition("=") for part in sys.argv[2:])}),
        int(sys.argv[1]),
    )
