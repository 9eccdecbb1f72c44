"""Small studies of the scripted engine: prompts that speculation lives on, plans, progress that is silent or stops."""

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftproof.engines.base import Capabilities, EngineProtocol, OnCompletion
from draftproof.errors import InputError
from draftproof.records import Completion
from draftproof.request import Prompt, SamplingParams
from draftproof.study.plan import Plan, parse_plan

COLOURS = ("red", "green", "blue", "black", "white")
# greedy copies without fail, sampling copies about every second token, and both cost little
SCRIPT = {"spread": 0.1, "copying": 1.0}
SAMPLED = {
    "prompt": "red green blue red green red blue blue green red blue green red green blue green",
    "words": ["red", "green", "blue"],
    "temperature": 1.0,
    "sequences": 150,
    "control_sequences": 80,
    "tokens": 8,
    "batch": 32,
    "delta": 0.12,
    "delta_stratum": 0.4,
    "alpha_fail": 1e-3,
    "alpha_eq": 0.05,
    "min_stratum_tokens": 50,
    "seed": 1,
}
WITHOUT_SAMPLED: dict[str, Any] = {"sampled": {"enabled": False}, "policy": {"require_sampled": False}}


def write_prompts(folder: Path, count: int = 6) -> Path:
    """Prompts of two categories and different lengths; each ends with a word that it has already used."""
    path = folder / "prompts.jsonl"
    lines = []
    for number in range(count):
        turn = number % len(COLOURS)
        words = [*COLOURS[turn:], *COLOURS[:turn]] * 3 + [f"end{number}"] * (number + 1) + [COLOURS[turn]]
        lines.append({"id": f"p{number}", "category": ("list", "copy")[number % 2], "prompt": " ".join(words)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def study_values(folder: Path, *, count: int = 6, **tables: dict[str, Any]) -> dict[str, Any]:
    """A study that ends with ADOPT; ``tables`` change single keys of it, and ``script`` those of the engine's script."""
    values: dict[str, Any] = {
        "name": "small",
        "engine": {"kind": "scripted", "script": SCRIPT | tables.pop("script", {})},
        "speculation": {"num_speculative_tokens": 2, "prompt_lookup_max": 1},
        "workload": {"prompts": str(write_prompts(folder, count)), "max_tokens": 12},
        "sampled": SAMPLED,
    }
    for name, table in tables.items():
        values[name] = {**values.get(name, {}), **table}
    return values


def make_plan(folder: Path, *, count: int = 6, **tables: dict[str, Any]) -> Plan:
    return parse_plan(study_values(folder, count=count, **tables), "test")


def toml(table: dict[str, Any], head: str = "") -> str:
    """A table as TOML; JSON's strings, numbers and lists are TOML's too."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{head}{key}]", toml(value, f"{head}{key}.")]
    return "\n".join(lines)


def write_study(folder: Path, *, count: int = 6, **tables: Any) -> Path:
    """The study of `study_values` as a file."""
    values = study_values(folder, count=count, **tables)
    path = folder / "study.toml"
    path.write_text(toml(values), encoding="utf-8")
    assert tomllib.loads(path.read_text(encoding="utf-8")) == values
    return path


class Counting:
    """What `Progress.start` returns: passes steps on and remembers what it was told."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count, self.told = count, list[str]()

    def __call__(self, steps: int) -> None:
        self._count(steps)

    def tell(self, text: str) -> None:
        self.told.append(text)


class Silent:
    """Progress that shows nothing and remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stages: list[str] = []
        self.steps: dict[str, int] = {}
        self.totals: dict[str, int] = {}

    def say(self, message: str) -> None:
        self.said.append(message)

    def start(self, title: str, total: int) -> Counting:
        self.stages.append(title)
        self.steps[title], self.totals[title] = 0, total

        def advance(steps: int) -> None:
            self.steps[title] += steps

        return Counting(advance)


class Stopping(Silent):
    """Progress that is interrupted, as by Ctrl-C, once a stage has made some steps."""

    def __init__(self, stage: str, after: int) -> None:
        super().__init__()
        self._stage, self._after = stage, after

    def start(self, title: str, total: int) -> Counting:
        count = super().start(title, total)

        def advance(steps: int) -> None:
            count(steps)
            if title.startswith(self._stage) and self.steps[title] >= self._after:
                raise KeyboardInterrupt

        return Counting(advance)


class Restricted:
    """An engine that can do less, or claims less, than the one inside it."""

    def __init__(self, inner: EngineProtocol, **capabilities: Any) -> None:
        self.inner, self._changes = inner, capabilities

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, **self._changes)

    def now_ms(self) -> float:
        return self.inner.now_ms()

    def encode(self, prompt: Prompt) -> list[int]:
        return self.inner.encode(prompt)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        speculate: bool = True,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        done = self.inner.generate(prompts, params, speculate=speculate, on_completion=on_completion)
        return done if self.capabilities.reports_rounds else [replace(item, rounds=()) for item in done]

    def score(self, prompt_token_ids: Sequence[int], token_ids: Sequence[Sequence[int]]) -> Any:
        return self.inner.score(prompt_token_ids, token_ids)

    def score_passes(self, *request: Any) -> Any:
        return self.inner.score_passes(*request)

    def control_arm(self, name: Any) -> EngineProtocol:
        return self.inner.control_arm(name)

    def sibling(self, *, max_batch: int, max_len: int, accept: Any = None) -> "Restricted":
        if accept is not None and not self.capabilities.replaceable_rule:
            raise InputError("an accept rule was given, and this engine's cannot be replaced; give None")
        return type(self)(self.inner.sibling(max_batch=max_batch, max_len=max_len, accept=accept), **self._changes)

    def memory(self) -> dict[str, int | None]:
        return self.inner.memory()

    def close(self) -> None:
        self.inner.close()


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
