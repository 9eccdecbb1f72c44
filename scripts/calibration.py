"""
Measure the sampled check itself: how often it finds each planted defect, and how often it blames a decoder that is right.

Runs the toy plan with every control over many seeds and prints a table. Exit code 1 when a defect is missed in more than 1 of
20 seeds, when anything that is right is blamed in more than 1 of 200, or when the correct decoder passes in fewer than 19 of 20
where its plan covers every place.
"""

import argparse
import math
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.pool import Pool

import torch

from draftproof.verify.controls import DEFECTS, LOSSLESS
from draftproof.verify.toy.run import ToyPlan, run_toy
from draftproof.verify.toy.verdict import ALPHA_FAIL, Verdict, judge_toy

CORRECT = "(correct decoder)"
SECONDS_BETWEEN_LINES = 15


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A configuration, and over how many seeds it is run: defects, lossless variants, the correct decoder."""

    plan: ToyPlan
    defects: int
    lossless: int
    correct: int
    covered: bool = False


STAGES = (
    Stage(plan=ToyPlan(vocab_size=16, sequences=3000), defects=20, lossless=0, correct=0),
    Stage(plan=ToyPlan(vocab_size=16), defects=0, lossless=0, correct=20, covered=True),
    # how often what is right is blamed does not depend on the size, so that the many seeds are of a smaller plan
    Stage(plan=ToyPlan(vocab_size=16, sequences=500), defects=0, lossless=200, correct=200),
    Stage(plan=ToyPlan(vocab_size=16, draft="near"), defects=0, lossless=0, correct=20, covered=True),
    Stage(plan=ToyPlan(vocab_size=8), defects=1, lossless=2, correct=10),
    Stage(plan=ToyPlan(vocab_size=64), defects=1, lossless=2, correct=10),
)


def verdict_of(job: tuple[int, str, int]) -> tuple[str, Verdict]:
    """Run one seed of one control of one stage."""
    torch.set_num_threads(1)
    stage, name, seed = job
    control = (DEFECTS | LOSSLESS).get(name)
    plan = replace(STAGES[stage].plan, seed=seed)
    return name, judge_toy(run_toy(plan, control.plant) if control else run_toy(plan))


def main() -> None:
    """Run all stages on all cores and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="processes")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the seeds, for a quick look")
    arguments = parser.parse_args()
    missed: list[str] = []
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for index, stage in enumerate(STAGES):
            jobs = []
            for names, seeds in ((DEFECTS, stage.defects), (LOSSLESS, stage.lossless), ((CORRECT,), stage.correct)):
                count = math.ceil(seeds * arguments.fraction)
                jobs += [(index, name, seed) for name in names for seed in range(count)]
            print(f"\nstage {index + 1} of {len(STAGES)}: {len(jobs)} checks, {arguments.jobs} at a time", flush=True)
            missed += report(stage, run(pool, jobs))
    print(f"\n{time.perf_counter() - began:.0f} s; missed targets: {'; '.join(missed) or 'none'}")
    sys.exit(bool(missed))


def run(pool: Pool, jobs: Sequence[tuple[int, str, int]]) -> dict[str, list[Verdict]]:
    """Run checks, say how far they are, and return the verdicts by control."""
    began = told = time.perf_counter()
    found: dict[str, list[Verdict]] = defaultdict(list)
    for done, (name, verdict) in enumerate(pool.imap_unordered(verdict_of, jobs), start=1):
        found[name].append(verdict)
        now = time.perf_counter()
        if now - told >= SECONDS_BETWEEN_LINES:
            told = now
            print(f"{done} of {len(jobs)}, about {(now - began) / done * (len(jobs) - done):.0f} s left", flush=True)
    return found


def report(stage: Stage, found: dict[str, list[Verdict]]) -> list[str]:
    """Print a stage's table and return the targets that it missed."""
    plan, missed = stage.plan, []
    print(
        f"V = {plan.vocab_size}, draft {plan.draft}, K = {plan.num_speculative_tokens}, {plan.sequences} sequences of "
        f"{plan.tokens} tokens, FAIL at alpha {ALPHA_FAIL}"
    )
    print(f"{'control':38} {'part':10} {'kind':9} {'FAIL':>9} {'PASS':>9}  loudest test")
    for name in (*DEFECTS, *LOSSLESS, CORRECT):
        verdicts = found.get(name, [])
        if not verdicts:
            continue
        control = (DEFECTS | LOSSLESS).get(name)
        kind, seeds = control.kind if control else "correct", len(verdicts)
        failed = sum(verdict.outcome == "FAIL" for verdict in verdicts)
        passed = sum(verdict.outcome == "PASS" for verdict in verdicts)
        tests = [verdict.test for verdict in verdicts if verdict.outcome == "FAIL"]
        print(
            f"{name:38} {control.part if control else '':10} {kind:9} {f'{failed}/{seeds}':>9} {f'{passed}/{seeds}':>9}  "
            f"{max(set(tests), key=tests.count) if tests else ''}"
        )
        where = f"V = {plan.vocab_size}: {name}"
        if kind == "defect" and failed * 20 < seeds * 19:
            missed.append(f"{where} found in {failed} of {seeds}")
        if kind in ("lossless", "correct") and failed > max(1, seeds // 200):
            missed.append(f"{where} blamed in {failed} of {seeds}")
        if kind == "correct" and stage.covered and passed * 20 < seeds * 19:
            missed.append(f"{where} passed in {passed} of {seeds}")
    return missed


if __name__ == "__main__":
    main()
