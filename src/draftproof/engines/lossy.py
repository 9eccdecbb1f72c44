"""
Settings of engines that keep tokens which the target would not have chosen, recognised from an engine's configuration.

A table, one row for each setting, whatever the engine: names are unique among them. What only shows in the output is the
sampled check's to find. Text Generation Inference and llama.cpp keep a draft only where it is what the target sampled, and have
no such setting.
"""

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LossyFinding:
    """
    A setting that gives up the target's law.

    Attributes
    ----------
    name : str
        What is done, as the field calls it.
    setting, value : str
        As configured.
    """

    name: str
    setting: str
    value: str

    def __str__(self) -> str:
        return f"{self.name} ({self.setting} = {self.value})"


@dataclass(frozen=True, slots=True)
class _Row:
    setting: str
    name: str
    is_lossy: Callable[[Any], bool]


def _below_one(value: Any) -> bool:
    # a threshold that cannot be read is not known to be 1
    number = _number(value)
    return value is not None and not (number is not None and number >= 1)


def _above(limit: float) -> Callable[[Any], bool]:
    return lambda value: value is not None and not (_number(value) is not None and (_number(value) or 0.0) <= limit)


def _on(value: Any) -> bool:
    return value is True or str(value).lower() in ("true", "1", "yes", "on")


def _is(*names: str) -> Callable[[Any], bool]:
    return lambda value: str(value).lower() in names


def _given(value: Any) -> bool:
    return value is not None


TABLE = (
    # vLLM
    _Row("rejection_sample_method", "fly acceptance", _is("fly")),
    _Row("rejection_sample_method", "synthetic acceptance", _is("synthetic")),
    _Row("synthetic_acceptance_rate", "synthetic acceptance", _given),
    _Row("synthetic_acceptance_rates", "synthetic acceptance", _given),
    _Row("synthetic_acceptance_length", "synthetic acceptance", _given),
    _Row("acceptance_method", "typical acceptance", _is("typical_acceptance_sampler")),
    _Row("spec_decoding_acceptance_method", "typical acceptance", _is("typical_acceptance_sampler")),
    # SGLang
    _Row("speculative_accept_threshold_single", "acceptance threshold below 1", _below_one),
    _Row("speculative_accept_threshold_acc", "acceptance threshold below 1", _below_one),
    _Row("sglang_simulate_acc_len", "synthetic acceptance", _above(0)),
    # TensorRT-LLM
    _Row("use_relaxed_acceptance_for_thinking", "relaxed acceptance", _on),
    # Medusa and EAGLE in several engines
    _Row("posterior_threshold", "typical acceptance", _above(0)),
    _Row("typical_acceptance", "typical acceptance", _on),
    # transformers
    _Row("assistant_ensemble_weight", "ensemble of target and draft", _given),
)
# SGLang there takes the most likely token whatever the request's temperature is
GREEDY_ONLY, GREEDY_DEVICES = "greedy-only verification", ("cpu", "xpu")


def lossy_settings(settings: Mapping[str, Any], *, samples: bool = True) -> list[LossyFinding]:
    """
    Return what makes a configuration lossy; empty where nothing does, or nothing is known.

    Parameters
    ----------
    settings : mapping
        By name, tables inside tables too; dashes count as underscores. As `settings_of` gives them, as a server's
        description of itself has them, or a ``GenerationConfig.to_dict()``.
    samples : bool
        Whether requests draw from the law. Where they are greedy, greedy-only verification takes nothing away.
    """
    flat = list(_flat(settings))
    found = [
        LossyFinding(name=row.name, setting=name, value=str(value))
        for name, value in flat
        for row in TABLE
        if row.setting == name and row.is_lossy(value)
    ]
    known = dict(flat)
    if samples and known.get("speculative_algorithm") and str(known.get("device")) in GREEDY_DEVICES:
        found.append(LossyFinding(name=GREEDY_ONLY, setting="device", value=str(known["device"])))
    return list(dict.fromkeys(found))


def settings_of(command: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """
    Return the options of a launch command and its environment by name.

    Parameters
    ----------
    command : sequence of str
        Program and arguments; a whole command line inside one argument, as for a shell, is read too.
    env : mapping or None
    """
    words = [part for word in command for part in _words(word)]
    found: dict[str, Any] = dict(env or {})
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            following = words[place + 1] if place + 1 < len(words) else "--"
            # the last part of a dotted name is the key of a table
            found[name.removeprefix("--").rpartition(".")[2]] = (
                _value(value) if equals else True if following.startswith("--") else _value(following)
            )
        elif equals and name.isidentifier():
            found[name] = _value(value)
        elif isinstance(table := _value(word), dict):
            # of an option's short name
            found |= table
    return found


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        yield str(name).replace("-", "_").lower(), value
        for inner in value if isinstance(value, list | tuple) else (value,):
            if isinstance(inner, Mapping):
                yield from _flat(inner)


def _words(word: str) -> list[str]:
    if not any(space in word for space in " \n\t") or word.lstrip().startswith(("{", "[", "-")) or "--" not in word:
        return [word]
    try:
        return shlex.split(word)
    except ValueError:
        return [word]


def _value(text: str) -> Any:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number
