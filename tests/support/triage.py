"""Our engine around a toy whose passes of several rows can be made to differ, and its greedy arms."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from draftproof import Engine
from draftproof.engines.base import EngineProtocol
from draftproof.measure.run import record
from draftproof.proposers import DraftModel
from draftproof.request import SamplingParams
from draftproof.workload.prompts import WorkloadPrompt
from support.toy_engines import ask, make_engine, noisy_copy
from support.toy_models import tiny_llama

PROMPTS = ([3, 4, 5, 3, 4, 5, 3, 4], [9, 10], [*range(10, 30)], [8, 8, 6, 8, 8, 6, 8])
MORE = (*PROMPTS, [40, 41, 42], [50, 2, 50], [11, 12], [20, 21, 22])
LENGTH = 16
Change = Callable[[Tensor, bool], Tensor]


def toy_model(dtype: str = "float64", bias: float = 0.0, base: float = 0.0, change: Change | None = None):
    """
    A tiny model whose logits are ``base`` higher. In a pass of several rows every even id gets ``bias`` more.

    ``change`` (logits, whether the pass has several rows) replaces the bias.
    """
    model = tiny_llama(0, getattr(torch, dtype))
    even = torch.arange(model.config.vocab_size) % 2 == 0

    def biased(logits: Tensor, several: bool) -> Tensor:
        return torch.where(even, logits + bias, logits) if several else logits

    def hook(module: object, inputs: object, logits: Tensor) -> Tensor:
        return (change or biased)(logits + base, logits.shape[1] > 1)

    model.lm_head.register_forward_hook(hook)
    return model


def toy_engine(model=None, **options: Any) -> Engine:
    """With a draft that is often right. Any shape may be used, so that one row and several really are what the arms run."""
    shape = {key: options.pop(key) for key in ("dtype", "bias", "base", "change") if key in options}
    model = model or toy_model(**shape)
    options.setdefault("proposer", DraftModel(noisy_copy(tiny_llama(0, model.dtype), 0.02)))
    return make_engine(model, **{"numerics": "fast", "max_len": 256, **options})


def compared_records(
    engine: EngineProtocol, params: SamplingParams | None = None, prompts: Sequence[list[int]] = PROMPTS
) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """Both greedy arms of each prompt and the target-only arm's repetition, and the prompts."""
    records = []
    for number, prompt in enumerate(prompts):
        named = WorkloadPrompt(id=f"p{number}", category="toy", text="ids")
        for block, speculate in (("A1", False), ("B", True), ("A2", False)):
            (done,) = engine.generate([prompt], params or ask(LENGTH), speculate=speculate)
            records.append(record(named, done, block, 0, 1, 0.0))
    return records, {f"p{number}": prompt for number, prompt in enumerate(prompts)}
