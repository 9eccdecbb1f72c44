"""Servers that stream completions over HTTP (vLLM, SGLang, TGI, llama.cpp, others) as an engine: one address for each arm."""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from draftproof.engines.base import Capabilities, ControlArm, OnCompletion, WrapRule
from draftproof.engines.http.body import as_text, completion_body, require_honoured, scoring_body
from draftproof.engines.http.calls import Call, Limits, complete_all
from draftproof.engines.http.client import Client
from draftproof.engines.http.counters import Counts, between
from draftproof.engines.http.endpoint import Endpoint, describe
from draftproof.engines.http.stream import Answer, WireError, checked, likeliest
from draftproof.engines.load import load_tokenizer
from draftproof.engines.lossy import LossyFinding, lossy_settings, settings_of
from draftproof.engines.prompts import encode_prompt, pair_with_params
from draftproof.errors import InputError, ServerError
from draftproof.records import Completion, SpeculationMetrics
from draftproof.request import Prompt, SamplingParams

ROUNDING = "the two arms run passes of different shapes on a server, which round differently; not measured"
DTYPES = ("bfloat16", "float16", "float32")
PROBE_TEXT = "1 2 3 4"
PROBE_TOKENS = 4
# a server counts a request shortly after it has sent its last token
CATCH_UP_S = 1.0
CATCH_UP_STEP_S = 0.02


class Servers(Protocol):
    """Where the arms are: attached or launched."""

    is_one: bool
    flags: dict[str, Any]
    target_only: Sequence[str] | None
    speculative: Sequence[str] | None

    def url(self, speculate: bool) -> str:
        """Return an arm's address; may start its server."""
        ...

    def close(self) -> None:
        """Stop what was started."""
        ...


class _Clock:
    """Milliseconds, without those in which the engine did something that is not the request's."""

    def __init__(self) -> None:
        self._left_out = 0.0

    def now_ms(self) -> float:
        return time.perf_counter() * 1e3 - self._left_out

    @contextmanager
    def stopped(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._left_out += (time.perf_counter() - began) * 1e3


class HttpEngine:
    """
    A target-only server and a speculative one, asked alike; see `connect`.

    Notes
    -----
    Times are the client's: a chunk is an event with at least one token, at the moment it was read. They include the network,
    the connection's set-up and all retries. Starting servers and reading their counters is outside the clock.

    A request that fails ends with ``finish_reason="error"`` and what had come: it was refused, its connection broke, an event
    was malformed, the stream ended without a finish reason, the server's counts are not those of the tokens that came, or it was
    not over in time. Only a server that cannot be reached or is busy (429, 503) is asked again, before the first token.
    """

    def __init__(
        self,
        servers: Servers,
        tokenizer: PreTrainedTokenizerBase,
        *,
        kind: str,
        max_batch: int,
        max_len: int,
        timeout_s: float,
        deadline_s: float | None,
        samples: bool,
    ) -> None:
        self._servers, self.tokenizer, self._kind = servers, tokenizer, kind
        self.max_batch, self.max_len = max_batch, max_len
        self._timeout_s, self._deadline_s, self._samples = timeout_s, deadline_s, samples
        self._client, self._clock = Client(), _Clock()
        self._asked: dict[bool, Endpoint] = {}
        self._reports_token_ids = True
        self.vocab_size = len(tokenizer)

    @classmethod
    def connect(
        cls,
        servers: Servers,
        *,
        target: str,
        server: str = "auto",
        max_batch: int = 1,
        max_len: int = 1024,
        timeout_s: float = 300.0,
        deadline_s: float | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        samples: bool = True,
        progress: Callable[[str], None] = lambda message: None,
    ) -> "HttpEngine":
        """
        Start or find the servers, ask what they are, and let each answer one short request.

        Parameters
        ----------
        servers : `engines.launch.Attached` or `engines.launch.Launched`
            Closed by `close`, also if this fails.
        target : str
            The model whose tokenizer is used: "smollm2-135m-instruct", a folder, a .gguf file, or a hub name.
        server : {"auto", "vllm", "sglang", "tgi", "llamacpp", "openai"}
            "auto" asks.
        max_batch : int, 1 or more
            Requests that run at once.
        max_len : int, 2 or more
            Longest sequence in tokens, prompt included; the server's own limit if that is lower.
        timeout_s : float, s, above 0
            For each request, its retries included.
        deadline_s : float, s, or None
            For each call of `generate`. None: only ``timeout_s`` limits it, which begins when a request gets its place.
        tokenizer : PreTrainedTokenizerBase or None
            In place of ``target``'s.
        samples : bool
            Whether anything asked of the engine is to follow the target's law, and not only be its most likely token.
        progress : callable
            Gets one line for each slow step.

        Raises
        ------
        ModelError
            The tokenizer cannot be loaded.
        ServerError
            A server cannot be started or asked, or the two differ in more than speculation.
        InputError
            A value is out of its range.
        """
        try:
            for name, value, least in (("max_batch", max_batch, 1), ("max_len", max_len, 2)):
                if value < least:
                    raise InputError(f"{name} = {value}: allowed {least} or more")
            if timeout_s <= 0 or (deadline_s is not None and deadline_s <= 0):
                raise InputError(f"timeout_s = {timeout_s}, deadline_s = {deadline_s}: allowed above 0")
            tokenizer = tokenizer or load_tokenizer(target, progress)
        except BaseException:
            servers.close()
            raise
        engine = cls(
            servers,
            tokenizer,
            kind=server,
            max_batch=max_batch,
            max_len=max_len,
            timeout_s=timeout_s,
            deadline_s=deadline_s,
            samples=samples,
        )
        try:
            engine._meet()
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def capabilities(self) -> Capabilities:
        """What both servers can do together; what they do not report is None."""
        plain, drafting = self._asked[False], self._asked[True]
        dialect, lossy = plain.dialect, self._lossy()
        return Capabilities(
            name=dialect.name,
            claim="lossy" if lossy else "up_to_ties",
            claim_basis=f"lossy by configuration: {'; '.join(map(str, lossy))}" if lossy else ROUNDING,
            max_batch=self.max_batch,
            max_len=self.max_len,
            reports_rounds=False,
            allowed_token_ids="allowed_token_ids" in dialect.names,
            score=False,
            replaceable_rule=False,
            num_speculative_tokens=None,
            details={
                "target_only": plain.facts,
                "speculative": drafting.facts,
                "switch": dialect.switch_off if self._servers.is_one else None,
                "token_ids": "reported" if self._reports_token_ids else "of the text, by our tokenizer",
                "prompts": "token ids" if dialect.takes_token_ids else "text",
                "speculation_counters": drafting.has_counts,
                "logprobs": dialect.logprobs is not None,
                "prompt_logprobs": dialect.scored is not None,
                "timeout_s": self._timeout_s,
                "launch": self._servers.flags,
                "configuration": "known" if self._servers.speculative or drafting.settings else None,
                "lossy": [asdict(found) for found in lossy],
                **self._dtype(),
            },
            score_top=dialect.scored is not None,
            logprobs=dialect.logprobs is not None,
            ignore_eos="ignore_eos" in dialect.names,
        )

    def now_ms(self) -> float:
        """See `EngineProtocol.now_ms`; starting a server and reading its counters take no time on this clock."""
        return self._clock.now_ms()

    def encode(self, prompt: Prompt) -> list[int]:
        """See `EngineProtocol.encode`."""
        return encode_prompt(self.tokenizer, prompt, self.vocab_size, self.max_len)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        speculate: bool = True,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """
        Send the prompts, up to ``max_batch`` at a time, and return one completion each, in order.

        All are submitted at once: the times of one that waits for a place include the wait.

        Parameters
        ----------
        prompts : sequence of str, chat messages or token ids
        params : SamplingParams, or one for each prompt
        speculate : bool
            Which server is asked; with one server, whether its speculation is turned off.
        on_completion : callable
            Gets (index, completion) as each request ends.

        Raises
        ------
        PromptError, InputError
            Something given cannot be used, or asks for what the server would ignore; nothing was sent then.
        ServerError
            A server that has to be started cannot be.
        """
        pairs = pair_with_params(prompts, params, self.vocab_size)
        calls = [self._call(self.encode(prompt), item, speculate) for prompt, item in pairs]
        with self._clock.stopped():
            endpoint = self._endpoint(speculate)
            before = self._read_counts(endpoint) if speculate and endpoint.has_counts else None
        done = self._complete(endpoint, calls, on_completion)
        if before is not None and not any(item.speculation or item.error for item in done):
            with self._clock.stopped():
                counted = self._counts_since(before, endpoint, len(done))
            done = [replace(item, speculation=counted) for item in done]
        return done

    def score(self, prompt_token_ids: Sequence[int], token_ids: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """
        Refuse: no server gives all logits.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(
            "a server gives no raw logits; use score_top where capabilities.score_top, or engine 'native' or 'hf'"
        )

    def score_top(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], num_top: int
    ) -> list[tuple[float, dict[int, float]]]:
        """
        See `Reporting.score_top`; the target-only server is asked.

        Raises
        ------
        InputError
            The server does not score prompts (``capabilities.score_top``).
        ServerError
            It gave no answer, or one for other tokens.
        """
        with self._clock.stopped():
            endpoint = self._endpoint(False)
        dialect = endpoint.dialect
        if dialect.scored is None or dialect.prompt_logprobs is None:
            raise InputError(f"a {dialect.name} server does not score prompts; see capabilities.score_top")
        sequence = [*prompt_token_ids, *token_ids]
        body = scoring_body(dialect, endpoint.model, sequence, len(prompt_token_ids), num_top)
        try:
            answer = self._client.run(self._client.post(endpoint.url + dialect.path, body, self._timeout_s))
            places = dialect.prompt_logprobs(answer)[-len(token_ids) :]
            known = [checked(place) for place in places if place is not None]
        except (WireError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            why = str(error) or "its answer has another shape"
            raise ServerError(f"the server did not score {len(sequence)} tokens: {why}") from None
        if len(known) != len(token_ids):
            raise ServerError(f"the server scored {len(known)} of {len(token_ids)} tokens")
        return [
            (top.get(token_id, own), likeliest(top, num_top))
            for token_id, (own, top) in zip(token_ids, known, strict=True)
        ]

    def score_passes(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], passes: Sequence[tuple[int, int]]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """
        Refuse: the passes of a server cannot be chosen.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError("the passes of a server cannot be chosen; use engine 'native' or 'hf'")

    def control_arm(self, name: ControlArm) -> "HttpEngine":
        """
        Refuse: what a server runs is chosen when it is started.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(f"control arm '{name}' cannot be made of a server; use engine 'native' or 'hf'")

    def sibling(self, *, max_batch: int, max_len: int, accept: WrapRule | None = None) -> "HttpEngine":
        """
        Return an engine on the same servers that sends more requests at once.

        Raises
        ------
        InputError
            A rule was given: the accept rule is inside the server.
        """
        if accept is not None:
            raise InputError("an accept rule was given, and that of a server cannot be replaced; give None")
        twin = copy.copy(self)
        twin.max_batch = max_batch
        return twin

    def memory(self) -> dict[str, int | None]:
        """See `EngineProtocol.memory`; servers do not report it."""
        return dict.fromkeys(("target_weights", "target_cache", "draft_weights", "draft_cache"))

    def close(self) -> None:
        """Close the connections and stop the servers that were started for this engine."""
        try:
            self._client.close()
        finally:
            self._servers.close()

    def _lossy(self) -> list[LossyFinding]:
        """Look at how the speculative server was started, and at what it says of itself."""
        command = self._servers.speculative or ()
        started = settings_of(command, self._servers.flags.get("env"))
        return lossy_settings({"launch": started, "facts": self._asked[True].settings}, samples=self._samples)

    def _dtype(self) -> dict[str, str]:
        """Return the dtype of the target-only server's passes, where it was started with one or says it."""
        told = (settings_of(self._servers.target_only or ()), self._asked[False].settings)
        return next(({"dtype": str(found["dtype"])} for found in told if found.get("dtype") in DTYPES), {})

    def _meet(self) -> None:
        """Ask both servers what they are, and see that only speculation tells them apart."""
        for speculate in (False, True):
            self._endpoint(speculate)
        plain, drafting = self._asked[False], self._asked[True]
        for name, value in plain.facts.items():
            if drafting.facts[name] != value:
                raise ServerError(
                    f"the servers differ in {name}: target-only {value!r}, speculative {drafting.facts[name]!r}; "
                    "both must serve one target by one version"
                )
        if self._servers.is_one and plain.dialect.switch_off is None:
            raise ServerError(
                f"one {plain.dialect.name} server was given for both arms, and it cannot turn speculation off for one request; "
                "give speculative_base_url too"
            )
        self.max_len = min(self.max_len, plain.max_len or self.max_len)

    def _endpoint(self, speculate: bool) -> Endpoint:
        """Return an arm's server; one that was started anew is asked again, and answers a first request."""
        url = self._servers.url(speculate)
        known = self._asked.get(speculate)
        if known is None or known.asked_at != url:
            found = self._client.run(describe(self._client, url, self._kind))
            if known is not None and found.facts != known.facts:
                raise ServerError(
                    f"the server was {known.facts} and is now {found.facts}; the parts could not be compared"
                )
            self._asked[speculate] = found
            self._probe(found, speculate)
            if speculate and not found.has_counts:
                # some servers show a counter only once it has counted
                counts = self._read_counts(found)
                self._asked[speculate] = replace(found, has_counts=counts.has(found.dialect))
        return self._asked[speculate]

    def _probe(self, endpoint: Endpoint, speculate: bool) -> None:
        """Let a server answer one short request: does it name tokens by their ids?"""
        params = SamplingParams(
            max_tokens=PROBE_TOKENS, temperature=0.0, ignore_eos="ignore_eos" in endpoint.dialect.names
        )
        self._reports_token_ids = self._reports_token_ids and endpoint.dialect.token_ids is not None
        done = self._complete(endpoint, [self._call(self.encode(PROBE_TEXT), params, speculate)])[0]
        if done.error and self._reports_token_ids and not done.token_ids:
            self._reports_token_ids = False
            done = self._complete(endpoint, [self._call(self.encode(PROBE_TEXT), params, speculate)])[0]
        if done.error:
            raise ServerError(f"{endpoint.url} did not complete a first request of {PROBE_TOKENS} tokens: {done.error}")

    def _call(self, token_ids: list[int], params: SamplingParams, speculate: bool) -> Call:
        """
        Return a request as its server is to get it.

        Raises
        ------
        InputError, PromptError
            The server would ignore a part of it, or takes only text and this prompt is none.
        """
        endpoint = self._asked[speculate]
        dialect, room = endpoint.dialect, self.max_len - len(token_ids)
        require_honoured(dialect, params)
        body = completion_body(
            dialect,
            endpoint.model,
            token_ids if dialect.takes_token_ids else as_text(self.tokenizer, token_ids),
            params.model_copy(update={"max_tokens": min(params.max_tokens, room)}),
            speculate=speculate,
            switched_off=self._servers.is_one and not speculate,
        )
        answer = Answer(
            dialect,
            partial(_ids_of, self.tokenizer),
            reports_token_ids=self._reports_token_ids,
            num_prompt_tokens=len(token_ids),
            vocab_size=self.vocab_size,
            num_logprobs=params.logprobs,
            speculates=speculate,
        )
        return Call(body=body, answer=answer)

    def _complete(
        self, endpoint: Endpoint, calls: Sequence[Call], on_completion: OnCompletion | None = None
    ) -> list[Completion]:
        limits = Limits(max_batch=self.max_batch, timeout_s=self._timeout_s, deadline_s=self._deadline_s)
        url = endpoint.url + endpoint.dialect.path
        return self._client.run(complete_all(self._client, url, calls, limits, self.now_ms, on_completion))

    def _read_counts(self, endpoint: Endpoint) -> Counts:
        try:
            return Counts.read(self._client.run(self._client.page(f"{endpoint.url}/metrics")) or "")
        except WireError:
            return Counts({})

    def _counts_since(self, before: Counts, endpoint: Endpoint, num_requests: int) -> SpeculationMetrics | None:
        until = time.monotonic() + CATCH_UP_S
        while True:
            after = self._read_counts(endpoint)
            if after.caught_up(endpoint.dialect, before, num_requests) or time.monotonic() > until:
                return between(endpoint.dialect, before, after, num_requests)
            time.sleep(CATCH_UP_STEP_S)


def _ids_of(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
