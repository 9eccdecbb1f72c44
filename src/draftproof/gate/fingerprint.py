"""What must be on this machine as it was in a study, so that its verdict still holds. Looks at nothing itself."""

from collections.abc import Mapping
from typing import Any

from draftproof.environment import facts_named

# keys of `environment.describe_environment`. Fewer than two compared studies must share (`environment.differences`): a verdict
# about the output and the speed-up outlives another kernel, load or variable of the shell, and a time does not
MUST_MATCH = (
    *("machine", "cpu_model", "cpu_flags", "num_physical_cores", "gpus", "gpu_driver", "python", "git_commit"),
    *("packages.torch", "packages.transformers", "packages.tokenizers", "packages.safetensors", "packages.numpy"),
)
# servers that are installed beside us; what a rung of another engine does not care about
SERVERS = ("packages.vllm", "packages.sglang", "packages.text-generation-server", "packages.llama-cpp-python")
MODELS = "models."
SHOWN = 40


def fingerprint(environment: Mapping[str, Any], version: str) -> dict[str, Any]:
    """
    Return what must match, by dotted name; what the environment does not tell is left out.

    Parameters
    ----------
    environment : mapping
        As `environment.describe_environment` gives it; ``models``, if present, maps a model's name to the SHA-256 of its parts.
    version : str
        Of draftproof.
    """
    known = {"draftproof": version, **facts_named(environment, (*MUST_MATCH, *SERVERS))}
    models = environment.get("models")
    for model, parts in models.items() if isinstance(models, Mapping) else ():
        if isinstance(parts, Mapping):
            known |= {f"{MODELS}{model}.{part}": digest for part, digest in parts.items() if isinstance(digest, str)}
    return known


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """
    Name what differs between two fingerprints, with both values.

    What was not recorded then is not compared, and neither is a model whose files cannot be reached now.
    """
    return [
        f"{name} ({_short(value)}, now {_short(now.get(name))})"
        for name, value in sorted(then.items())
        if now.get(name) != value and not (name.startswith(MODELS) and name not in now)
    ]


def _short(value: Any) -> str:
    text = " ".join(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
