"""
What real servers said, and a client that says it again.

``python tests/support/recorded.py`` asks the servers of studies/vllm.toml and writes the file anew; the paths are seen from the root.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from draftproof.engines.http.client import Client
from draftproof.engines.http.stream import WireError
from draftproof.engines.openai_http import HttpEngine
from draftproof.records import Completion
from draftproof.request import SamplingParams
from draftproof.study.study_file import load_plan

FILE = Path(__file__).parent.parent / "engines" / "recorded" / "vllm.json"
TARGET = "smollm2-135m-instruct"
PROMPT = "red green blue red green blue red green"
COLOURS = (" red", " green", " blue")
COUNT = 12
# the few samples of a metrics page that anything here reads
KEPT = ("vllm:spec_decode_num_", "vllm:request_success_total", "vllm:num_requests_running")


def params(engine: HttpEngine) -> dict[str, SamplingParams]:
    """What is asked of both arms, by name."""
    greedy = SamplingParams(max_tokens=COUNT, temperature=0.0)
    colours = tuple(engine.encode(word)[0] for word in COLOURS)
    return {
        "greedy": greedy,
        "log-probabilities": greedy.model_copy(update={"logprobs": 3, "max_tokens": 4}),
        "allowed": SamplingParams(
            max_tokens=6, temperature=1.0, seed=7, ignore_eos=True, allowed_token_ids=colours, logprobs=3
        ),
        "stop": greedy.model_copy(update={"stop": (" blue",)}),
        "bias": greedy.model_copy(update={"logit_bias": {colours[0]: 1.5}, "max_tokens": 4}),
        "regex": greedy.model_copy(update={"regex": "[0-9]{3}"}),
    }


def ask(engine: HttpEngine, name: str, *, speculate: bool) -> Completion:
    return engine.generate([PROMPT], params(engine)[name], speculate=speculate)[0]


class Recorder(Client):
    """Asks, and keeps what was said under ``said``, by address and body."""

    said: ClassVar[dict[str, Any]] = {}
    names: ClassVar[dict[str, str]] = {}

    def _key(self, url: str, body: Any = None) -> str:
        for root, name in self.names.items():
            url = url.replace(root, f"http://{name}")
        return url if body is None else f"{url} {json.dumps(body, sort_keys=True)}"

    async def page(self, url: str) -> str | None:
        text = await super().page(url)
        if text is not None and url.endswith("/metrics"):
            text = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(KEPT))
        self.said.setdefault(self._key(url), []).append(text)
        return text

    async def post(self, url: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.said[self._key(url, body)] = answer = await super().post(url, body, timeout_s)
        return answer

    async def stream(
        self, url: str, body: dict[str, Any], take: Callable[[str], None], retry: Callable[[], None]
    ) -> None:
        events = self.said[self._key(url, body)] = []

        def keep(data: str) -> None:
            events.append(data)
            take(data)

        try:
            await super().stream(url, body, keep, retry)
        except WireError as error:
            events.append({"error": str(error)})
            raise


class Replay(Client):
    """Says again what was said; an address or a body that was not recorded fails."""

    said: ClassVar[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}

    def __init__(self) -> None:
        super().__init__()
        self._pages = {key: list(value) for key, value in self.said.items() if " " not in key}

    async def page(self, url: str) -> str | None:
        pages = self._pages[url]
        text: str | None = pages.pop(0) if len(pages) > 1 else pages[0]
        return text

    async def post(self, url: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        answer: dict[str, Any] = self.said[f"{url} {json.dumps(body, sort_keys=True)}"]
        return answer

    async def stream(
        self, url: str, body: dict[str, Any], take: Callable[[str], None], retry: Callable[[], None]
    ) -> None:
        for event in self.said[f"{url} {json.dumps(body, sort_keys=True)}"]:
            if isinstance(event, dict):
                raise WireError(event["error"])
            take(event)


def record() -> None:
    from draftproof.engines import openai_http
    from draftproof.engines.launch import Launch, Launched
    from draftproof.engines.resolve import resolve

    launch = load_plan(Path("studies/vllm.toml")).engine.launch
    assert launch is not None
    folder = resolve(TARGET, print)
    servers = Launched(Launch(**{**launch.model_dump(), "together": True}), print, str(folder))
    openai_http.Client = Recorder  # type: ignore[misc]
    try:
        for speculate, name in ((False, "target-only"), (True, "speculative")):
            Recorder.names[servers.url(speculate)] = name
        engine = HttpEngine.connect(servers, target=TARGET, max_len=1024)
        for speculate in (False, True):
            for name in params(engine):
                done = ask(engine, name, speculate=speculate)
                sys.stdout.write(f"{name}, {speculate}: {done}\n")
        greedy = ask(engine, "greedy", speculate=False)
        sys.stdout.write(f"{engine.score_top(engine.encode(PROMPT), greedy.token_ids[:4], 3)}\n")
    finally:
        servers.close()
    FILE.parent.mkdir(exist_ok=True)
    text = json.dumps(Recorder.said, indent=1, sort_keys=True) + "\n"
    FILE.write_text(text.replace(str(folder), "{target}"), encoding="utf-8")


if __name__ == "__main__":
    record()
