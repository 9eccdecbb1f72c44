"""Interleaved benchmark: our target-only arm, transformers' generate and prompt lookup, on the shipped prompts."""

import argparse
import json
import time
from pathlib import Path

import torch

from draftproof import Engine, SamplingParams
from draftproof.engines.load import load_model
from draftproof.environment import describe_environment
from draftproof.evidence import write_whole
from draftproof.measure.run import as_chat
from draftproof.proposers import PromptLookup
from draftproof.workload.loaders import load_prompts

TOKENS = 48


def main() -> None:
    """Run every prompt through the three in turn and write one row per engine, arm and category."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    parser.add_argument("--limit", type=int, default=None, help="prompts, spread over the categories")
    options = parser.parse_args()
    engine = Engine.from_pretrained("smollm2-135m-instruct", proposer=PromptLookup(), max_len=1024, progress=print)
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
    write_whole(options.out, json.dumps({"rows": rows, "environment": describe_environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
