"""Python that generates by transformers as a rung says. Knows the names that transformers gives to the same settings."""

from collections.abc import Callable
from typing import Any

from draftproof.gate.commands import Parallel, Settings

# each gives the keyword arguments of `generate`, as code
PROPOSERS: dict[str, Callable[[Settings], dict[str, str]]] = {
    "prompt-lookup": lambda settings: {
        "prompt_lookup_num_tokens": repr(settings.k),
        "max_matching_ngram_size": repr(settings.speculation("prompt_lookup_max", 4)),
    },
    "draft-model": lambda settings: {"assistant_model": "draft"},
    "cross-tokenizer": lambda settings: {
        "assistant_model": "draft",
        "tokenizer": "tokenizer",
        "assistant_tokenizer": "draft_tokenizer",
    },
    "early-exit": lambda settings: {"assistant_early_exit": repr(settings.speculation("exit_layer"))},
}


ACROSS_TOKENIZERS = (
    "# a sampled request changes the draft for those that follow, and in transformers 5.24 its law is not the target's: be greedy",
)


def write(settings: Settings, proposed: dict[str, str], comment: list[str], parallel: Parallel) -> str:
    """Return a module with ``generate(prompt, **settings)``."""
    device, dtype = settings.engine("device", "cpu"), settings.engine("dtype", "bfloat16")
    draft = settings.speculation("draft")
    lines = [
        *(f"# {' '.join(line.split())}" for line in comment),
        "import torch",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"target_name = {settings.engine('target')!r}",
        "tokenizer = AutoTokenizer.from_pretrained(target_name)",
        f"model = AutoModelForCausalLM.from_pretrained(target_name, dtype=torch.{dtype}).to({device!r}).eval()",
    ]
    if draft:
        lines += [
            f"draft_name = {draft!r}",
            f"draft = AutoModelForCausalLM.from_pretrained(draft_name, dtype=torch.{dtype}).to({device!r}).eval()",
        ]
    if "assistant_tokenizer" in proposed:
        lines += ["draft_tokenizer = AutoTokenizer.from_pretrained(draft_name)", *ACROSS_TOKENIZERS]
    lines += [*_drafting(settings, "draft" if draft else "model"), "", "", *_function(proposed)]
    return "\n".join([*lines, ""])


def _drafting(settings: Settings, drafter: str) -> list[str]:
    """Fix K, which transformers would change from round to round by itself; prompt lookup has no such settings."""
    if settings.speculation("proposer") == "prompt-lookup":
        return []
    values: dict[str, Any] = {
        "num_assistant_tokens": settings.k,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": settings.speculation("confidence_threshold", 0.0),
    }
    return [f"{drafter}.generation_config.{name} = {value!r}" for name, value in values.items()]


def _function(proposed: dict[str, str]) -> list[str]:
    arguments = ", ".join(f"{name}={code}" for name, code in proposed.items())
    return [
        "def generate(prompt: str, **settings):",
        '    """Return token ids, the prompt\'s included; settings are those of transformers\' own generate."""',
        '    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)',
        f"    return model.generate(**inputs, {arguments}, **settings)",
    ]
