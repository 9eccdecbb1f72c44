"""
Interleaved benchmark: our target-only arm, transformers' generate and prompt lookup, on the shipped prompts.

Then the share of a round that is not spent in the model's forward passes, at batch 1.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from draftproof import Engine, SamplingParams
from draftproof.engines.load import load_model
from draftproof.engines.pack import pack_linears
from draftproof.environment import describe_environment
from draftproof.evidence import write_whole
from draftproof.measure.run import as_chat
from draftproof.proposers import PromptLookup
from draftproof.request import Prompt
from draftproof.workload.loaders import load_prompts

TOKENS = 48


class Forwards:
    """Milliseconds that a model has spent in its forward passes."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.spent_ms, self._began = 0.0, 0.0
        model.register_forward_pre_hook(self._start)
        model.register_forward_hook(self._stop)

    def _start(self, *_: object) -> None:
        self._began = time.perf_counter()

    def _stop(self, *_: object) -> None:
        self.spent_ms += (time.perf_counter() - self._began) * 1e3


def outside_forwards(engine: Engine, forwards: Forwards, chats: list[Prompt]) -> list[dict[str, Any]]:
    """Return one row per arm and temperature: how long a round takes, and the share that no forward pass accounts for."""
    rows = []
    for arm, temperature in product(("target_only", "prompt_lookup"), (0.0, 0.8)):
        params = SamplingParams(max_tokens=TOKENS, temperature=temperature, ignore_eos=True)
        round_ms, forward_ms, rounds = 0.0, 0.0, 0
        for chat in chats:
            engine.submit(chat, params, speculate=arm == "prompt_lookup")
            engine.step()  # reads the prompt too
            while engine.num_unfinished:
                inside, began = forwards.spent_ms, time.perf_counter()
                engine.step()
                round_ms += (time.perf_counter() - began) * 1e3
                forward_ms += forwards.spent_ms - inside
                rounds += 1
        rows.append(
            {
                "arm": arm,
                "temperature": temperature,
                "batch": 1,
                "num_rounds": rounds,
                "round_ms": round_ms / rounds,
                "outside_forwards": 1 - forward_ms / round_ms,
            }
        )
    return rows


def main() -> None:
    """Run every prompt through the three in turn and write one row per engine, arm and category."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    parser.add_argument("--limit", type=int, default=None, help="prompts, spread over the categories")
    options = parser.parse_args()
    # as Engine.from_pretrained does it, with the model in hand
    target, tokenizer = load_model("smollm2-135m-instruct", dtype="bfloat16", device="cpu", progress=print)
    pack_linears(target)
    engine = Engine(target, tokenizer, proposer=PromptLookup(), num_speculative_tokens=5, max_len=1024)
    # its own copy: the engine's has packed weights
    model, _ = load_model("smollm2-135m-instruct", dtype="bfloat16", device="cpu", progress=print)
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    seconds: dict[tuple[str, str, str], float] = {}
    tokens: dict[tuple[str, str, str], int] = {}
    differing: dict[tuple[str, str, str], int] = {}

    def generate(token_ids: list[int]) -> list[int]:
        ids = torch.tensor([token_ids])
        with torch.no_grad():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS, min_new_tokens=TOKENS
            )
        return output[0, len(token_ids) :].tolist()

    for number, prompt in enumerate([None, *load_prompts("demo", options.limit, 0)]):
        subject = prompt or load_prompts("demo", 1, 0)[0]
        chat = as_chat(subject)
        ids = engine.encode(chat)
        reference: list[int] = []
        for name, arm, work in (
            ("draftproof", "target_only", lambda: engine.generate([chat], params, speculate=False)[0].token_ids),
            ("draftproof", "prompt_lookup", lambda: engine.generate([chat], params)[0].token_ids),
            ("transformers", "target_only", lambda: generate(ids)),
        ):
            began = time.perf_counter()
            output = list(work())
            spent = time.perf_counter() - began
            reference = reference or output
            if prompt is None:
                continue  # the first pass over all three is the warm-up
            for category in ("overall", prompt.category):
                key = (name, arm, category)
                seconds[key] = seconds.get(key, 0.0) + spent
                tokens[key] = tokens.get(key, 0) + len(output)
                differing[key] = differing.get(key, 0) + sum(a != b for a, b in zip(output, reference, strict=False))
        print(f"{number} done", flush=True)
    rows = [
        {
            "engine": key[0],
            "arm": key[1],
            "dtype": "bfloat16",
            "category": key[2],
            "batch": 1,
            "tokens_per_second": tokens[key] / seconds[key],
            "differing_tokens": differing[key],
        }
        for key in seconds
    ]
    rate = {(row["engine"], row["arm"], row["category"]): row["tokens_per_second"] for row in rows}
    ours = rate["draftproof", "target_only", "overall"]
    print(
        f"target-only over transformers generate, all prompts: {ours / rate['transformers', 'target_only', 'overall']:.2f}"
    )
    edit = rate.get(("draftproof", "prompt_lookup", "code edit"))
    if edit:
        print(f"prompt lookup over target-only, code edit: {edit / rate['draftproof', 'target_only', 'code edit']:.2f}")
    shares = outside_forwards(engine, Forwards(target), [as_chat(item) for item in load_prompts("demo", 6, 0)])
    for row in shares:
        print(
            f"outside the forwards, {row['arm']}, temperature {row['temperature']}: "
            f"{row['outside_forwards']:.1%} of a round of {row['round_ms']:.1f} ms"
        )
    result = {"rows": rows, "outside_forwards": shares, "environment": describe_environment()}
    write_whole(options.out, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
