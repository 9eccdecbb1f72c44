"""
Compare both arms token for token on the real model, in bfloat16, over drafts, K and batches; print the counts.

Greedy under the rejection rule, and temperature 0.8 under the coupled rule. Exit code 1 when any token differs.
"""

import argparse
import itertools
import sys
import time

from draftproof import Engine, SamplingParams
from draftproof.measure.run import as_chat
from draftproof.proposers import EarlyExit, PromptLookup, Proposer
from draftproof.workload.loaders import load_prompts

TARGET = "smollm2-135m-instruct"
EXIT_LAYER = 6
TEMPERATURE = 0.8


def main() -> None:
    """Run every combination and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=48, help="per prompt")
    parser.add_argument("--limit", type=int, default=18, help="prompts, spread over the categories")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    prompts = [as_chat(prompt) for prompt in load_prompts("demo", options.limit, 0)]
    compared, differing = {"greedy": 0, "coupled": 0}, {"greedy": 0, "coupled": 0}
    alone: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    print("rule     K  batch  draft           claim      tokens  differing  from solo  accepted  seconds")
    for rule, k, batch in itertools.product(("greedy", "coupled"), options.k, options.batch):
        plain: list[tuple[int, ...]] = []
        proposers: dict[str, Proposer] = {"prompt lookup": PromptLookup(), "early exit": EarlyExit(EXIT_LAYER)}
        for name, proposer in proposers.items():
            began = time.perf_counter()
            engine = Engine.from_pretrained(
                TARGET,
                proposer=proposer,
                num_speculative_tokens=k,
                max_batch=batch,
                max_len=512,
                verification="rejection" if rule == "greedy" else "coupled",
            )
            params = SamplingParams(
                max_tokens=options.tokens, temperature=0.0 if rule == "greedy" else TEMPERATURE, seed=11
            )
            # once for both drafts: the arm does not know of them
            plain = plain or [done.token_ids for done in engine.generate(prompts, params, speculate=False)]
            drafted = engine.generate(prompts, params)
            solo = alone.setdefault((rule, k), plain)
            wrong = sum(different(one, two.token_ids) for one, two in zip(plain, drafted, strict=True))
            mates = sum(different(one, two) for one, two in zip(plain, solo, strict=True))
            rounds = [item for done in drafted for item in done.rounds]
            accepted = sum(item.num_accepted for item in rounds)
            total = sum(map(len, plain))
            compared[rule] += total
            differing[rule] += wrong + mates
            print(
                f"{rule:8} {k}  {batch:5}  {name:14}  {engine.capabilities.claim:9}  {total:6}  {wrong:9}  {mates:9}  "
                f"{accepted:8}  {time.perf_counter() - began:7.0f}",
                flush=True,
            )
            engine.close()
    for rule, count in compared.items():
        print(f"{rule}: {differing[rule]} differing of {count} tokens")
    sys.exit(any(differing.values()))


def different(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    """Return how many tokens differ, a difference in length included."""
    return sum(a != b for a, b in zip(one, two, strict=False)) + abs(len(one) - len(two))


if __name__ == "__main__":
    main()
