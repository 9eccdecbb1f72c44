"""Shell scripts that start a server as a rung says: what vLLM, SGLang and llama.cpp call the same settings."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.errors import InputError
from draftproof.gate.rung import Rung

PLACES = {"{host}": '"$HOST"', "{port}": '"$PORT"'}
AT = ["--host", "{host}", "--port", "{port}"]
# a word among the first of a launch command, and the server that it starts
PROGRAMS = {
    "vllm": "vllm",
    "vllm.entrypoints.openai.api_server": "vllm",
    "sglang": "sglang",
    "sglang.launch_server": "sglang",
    "llama-server": "llamacpp",
    "text-generation-launcher": "tgi",
}
PROGRAM_WORDS = 3

VLLM_NOTES = (
    "Some versions of vLLM refuse speculation under pipeline parallelism when they start.",
    "The CPU build 0.32.0 samples from a wrong law with speculation; greedy output is not affected.",
)
SGLANG_NOTES = ("On CPU and XPU this server verifies greedily: sampled output is not the target's law there.",)
LLAMACPP_NOTES = (
    "The weights are the file's: its quantization, not the study's dtype. Older builds name --spec-* otherwise.",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """A rung's settings by name."""

    rung: Rung

    @property
    def k(self) -> int:
        """K, the most tokens drafted per round."""
        return int(self.rung.speculation["num_speculative_tokens"])

    @property
    def max_len(self) -> int | None:
        """Longest sequence in tokens, or None where the study left it to the engine."""
        value = self.rung.engine.get("max_len")
        return value if isinstance(value, int) else None

    def engine(self, name: str, default: Any = None) -> Any:
        """Return a value of the engine's table."""
        return self.rung.engine.get(name, default)

    def speculation(self, name: str, default: Any = None) -> Any:
        """Return a value of the speculation's table."""
        return self.rung.speculation.get(name, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """
    How one replica is spread.

    Attributes
    ----------
    tensor, pipeline : int
        Devices that share each layer, and groups of layers.
    nodes : int
        Machines; more than one are joined by Ray.

    Raises
    ------
    InputError
        One is below 1, or the devices cannot be shared out evenly.
    """

    tensor: int = 1
    pipeline: int = 1
    nodes: int = 1

    def __post_init__(self) -> None:
        for option, value in (
            ("tensor-parallel", self.tensor),
            ("pipeline-parallel", self.pipeline),
            ("nodes", self.nodes),
        ):
            if value < 1:
                raise InputError(f"--{option} {value}: allowed 1 or more")
        if self.tensor * self.pipeline % self.nodes:
            raise InputError(
                f"{self.tensor} x {self.pipeline} devices cannot be shared by {self.nodes} nodes evenly; "
                "make --tensor-parallel times --pipeline-parallel a multiple of --nodes"
            )

    @property
    def in_words(self) -> str:
        """The layout for a reader."""
        return f"{self.tensor} devices per layer, {self.pipeline} groups of layers, {self.nodes} nodes"


def server_of(command: Sequence[str]) -> str:
    """Name the server that a launch command starts, or "auto" where no program is known."""
    words = (Path(word).name for word in command[:PROGRAM_WORDS])
    return next((PROGRAMS[word] for word in words if word in PROGRAMS), "auto")


def _vllm_prompt_lookup(settings: Settings) -> dict[str, Any]:
    shortest, longest = settings.speculation("prompt_lookup_min", 1), settings.speculation("prompt_lookup_max", 4)
    return {"method": "ngram", "prompt_lookup_min": shortest, "prompt_lookup_max": longest}


def _llamacpp_prompt_lookup(settings: Settings) -> list[str]:
    # it drafts 48 tokens unless told; in some builds an n-gram longer than the draft finds nothing
    longest = min(settings.speculation("prompt_lookup_max", 4), settings.k)
    sizes = ("--spec-ngram-simple-size-n", str(longest), "--spec-ngram-simple-size-m", str(settings.k))
    return ["--spec-type", "ngram-simple", *sizes]


# as vLLM, SGLang and llama.cpp name them; each gives what turns the proposer on
VLLM: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "prompt-lookup": _vllm_prompt_lookup,
    "draft-model": lambda settings: {"method": "draft_model", "model": settings.speculation("draft")},
}
SGLANG: dict[str, Callable[[Settings], list[str]]] = {
    "prompt-lookup": lambda settings: ["--speculative-algorithm", "NGRAM"],
    "draft-model": lambda settings: [
        *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", settings.speculation("draft")),
        *("--speculative-num-steps", str(settings.k), "--speculative-eagle-topk", "1"),
    ],
}
LLAMACPP: dict[str, Callable[[Settings], list[str]]] = {
    "prompt-lookup": _llamacpp_prompt_lookup,
    "draft-model": lambda settings: ["--spec-type", "draft-simple", "--model-draft", settings.speculation("draft")],
}


def vllm(settings: Settings, proposed: dict[str, Any], comment: list[str], parallel: Parallel) -> str:
    """Return a script that starts vLLM."""
    speculation = json.dumps({**proposed, "num_speculative_tokens": settings.k})
    command = [
        *("vllm", "serve", settings.engine("target"), *AT, "--dtype", settings.engine("dtype", "bfloat16")),
        *_if_set("--max-model-len", settings.max_len),
        *("--max-num-seqs", str(settings.rung.batch), "--speculative-config", speculation),
        *("--per-request-spec-decode-metrics", "summary"),
    ]
    return script([*command, *parallel_options(parallel, command)], comment)


def sglang(settings: Settings, proposed: list[str], comment: list[str], parallel: Parallel) -> str:
    """Return a script that starts SGLang."""
    command = [
        *("python3", "-m", "sglang.launch_server", "--model-path", settings.engine("target"), *AT),
        *("--dtype", settings.engine("dtype", "bfloat16"), *_if_set("--context-length", settings.max_len)),
        *("--max-running-requests", str(settings.rung.batch), *proposed),
        # the last verified token is counted as one of them
        *("--speculative-num-draft-tokens", str(settings.k + 1)),
    ]
    return script(command, [*comment, *_sizes(settings)])


def llamacpp(settings: Settings, proposed: list[str], comment: list[str], parallel: Parallel) -> str:
    """Return a script that starts llama.cpp's server."""
    batch = settings.rung.batch
    command = [
        *("llama-server", "--model", settings.engine("target"), *AT, "--parallel", str(batch)),
        # one context is divided by the requests that run at once
        *_if_set("--ctx-size", settings.max_len and settings.max_len * batch),
        *(*proposed, "--spec-draft-n-max", str(settings.k), "--spec-draft-n-min", "0"),
        *("--spec-draft-p-min", str(settings.speculation("confidence_threshold", 0.0))),
    ]
    return script(command, [*comment, *_sizes(settings)])


def parallel_options(parallel: Parallel, command: Sequence[str]) -> list[str]:
    """
    Return vLLM's options for a layout.

    Raises
    ------
    InputError
        The command sets one of them already.
    """
    if parallel == Parallel():
        return []
    options = {"--tensor-parallel-size": parallel.tensor, "--pipeline-parallel-size": parallel.pipeline}
    short = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size"}
    words = [word.partition("=")[0] for word in command]
    for word in words:
        if (named := short.get(word, word)) in (*options, "--distributed-executor-backend"):
            raise InputError(
                f"the study's command sets {named} itself; leave the parallel layout to it, and study it so"
            )
    found = [part for name, value in options.items() for part in (name, str(value))]
    return found + (["--distributed-executor-backend", "ray"] if parallel.nodes > 1 else [])


def script(command: Sequence[str], comment: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """
    Return a shell script that becomes a command.

    Parameters
    ----------
    command : sequence of str
        ``{host}`` and ``{port}`` stand for the variables HOST and PORT; all else is quoted.
    comment : sequence of str
        Put on top, a line each.
    env : mapping or None
        Added to the environment.
    """
    settings = [f"{name}={value}" for name, value in (env or {}).items()]
    words = [_quoted(word) for word in (["env", *settings, *command] if settings else command)]
    # an option and its value on a line of their own
    lines = [words[0]]
    for word in words[1:]:
        if word.startswith("-") or len(lines) == 1:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return "\n".join(
        [
            "#!/bin/sh",
            *(f"# {_one_line(line)}" for line in comment),
            "set -eu",
            "HOST=${HOST:-127.0.0.1}",
            "PORT=${PORT:-8000}",
            "exec " + " \\\n    ".join(lines),
            "",
        ]
    )


def _quoted(word: str) -> str:
    pieces = re.split(r"(\{host\}|\{port\})", word)
    return "".join(PLACES.get(piece) or shlex.quote(piece) for piece in pieces if piece) or "''"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _if_set(option: str, value: Any) -> list[str]:
    return [] if value is None else [option, str(value)]


def _sizes(settings: Settings) -> list[str]:
    if settings.speculation("proposer") != "prompt-lookup":
        return []
    return ["The study looked up n-grams in its own way, the longest first; this server's search is its own."]
