"""The fake engine: its law is a table, its time is what the script says, its defects are the ones it names."""

import itertools

import numpy as np
import pytest
import torch

from draftproof.engines.scripted import VOCAB, Script, ScriptedEngine
from draftproof.errors import InputError, PromptError
from draftproof.proposers import PromptLookup
from draftproof.records import Completion
from draftproof.request import SamplingParams
from draftproof.sampling.accept import rejection
from draftproof.sampling.law import token_law
from draftproof.sampling.noise import Purpose
from support.toy_models import Scripted

K = 4
PROMPT = "one two three four two three one two three four two"
GREEDY = SamplingParams(max_tokens=20, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=20, temperature=1.0, top_k=5, seed=3)
# copies without fail, so that prompt lookup is right most of the time
COPIES = {"spread": 0.1, "copying": 3.0}


def make(proposer=None, *, max_batch: int = 1, max_len: int = 256, **script) -> ScriptedEngine:
    return ScriptedEngine(
        Script(**script), proposer=proposer, num_speculative_tokens=K, max_batch=max_batch, max_len=max_len
    )


def lookup() -> PromptLookup:
    return PromptLookup(1, 3)


def one(engine: ScriptedEngine, params: SamplingParams = GREEDY, prompt=PROMPT, **options) -> Completion:
    return engine.generate([prompt], params, **options)[0]


# the law


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_two_engines_of_one_script_agree_in_everything(params: SamplingParams) -> None:
    first, second = (make(lookup(), max_batch=2).generate([PROMPT, "a b a"] * 2, params) for _ in range(2))
    assert first == second
    assert make(lookup(), seed=1).generate([PROMPT], params)[0].token_ids != first[0].token_ids


def test_greedy_tokens_are_the_largest_scores_and_the_same_in_both_arms() -> None:
    engine = make(lookup(), **COPIES)
    plain, speculative = (one(engine, speculate=speculate) for speculate in (False, True))
    assert plain.token_ids == speculative.token_ids
    assert speculative.speculation.num_accepted_draft_tokens > 8
    scores = engine.score(engine.encode(PROMPT), [plain.token_ids])
    assert scores.shape == (1, 20, VOCAB) and scores.dtype == np.float32
    assert tuple(scores[0].argmax(-1)) == plain.token_ids


def test_the_law_is_a_function_of_the_sequence_alone() -> None:
    """Where a prompt ends, what came before in the engine, and the batch make no difference."""
    engine = make(lookup(), max_batch=3)
    ids = engine.encode(PROMPT)
    tail = list(one(engine).token_ids)
    whole = engine.score(ids, [tail])[0]
    for cut in (1, 7, 19):
        assert np.array_equal(engine.score([*ids, *tail[:cut]], [tail[cut:]])[0], whole[cut:])
        assert list(one(engine, GREEDY, [*ids, *tail[:cut]]).token_ids)[: 20 - cut] == tail[cut:]
    both = engine.score(ids, [tail, tail[::-1]])
    assert np.array_equal(both[0], whole) and not np.array_equal(both[1][1:], whole[1:])
    mixed = engine.generate(["x y", PROMPT, PROMPT], [SAMPLED, GREEDY, SAMPLED])
    assert list(mixed[1].token_ids) == tail
    assert mixed[2].token_ids == one(engine, SAMPLED).token_ids


def test_what_followed_the_same_token_before_is_more_likely() -> None:
    """The last place counts; the rest of the table stays as it is."""
    ids = [5, 9, 7, 5, 9, 8, 5, 9]
    flat = make(copying=0.0).score(ids, [[1]])[0, 0]
    raised = make(copying=2.5).score(ids, [[1]])[0, 0]
    assert np.flatnonzero(raised != flat).tolist() == [8]
    assert raised[8] - flat[8] == pytest.approx(2.5, abs=1e-6)
    assert np.array_equal(make(copying=2.5).score([5, 9], [[1]]), make(copying=0.0).score([5, 9], [[1]]))


def test_the_spread_is_that_of_the_scores() -> None:
    """Fixed table, 4096 scores: the standard deviation is within 5 of its own standard errors (false alarm 6e-7)."""
    for spread in (0.0, 0.6, 3.0):
        scores = make(spread=spread).score([5], [[1]])[0, 0]
        assert abs(scores.std() - spread) <= 5 * spread / (2 * VOCAB) ** 0.5


@pytest.mark.parametrize("speculate", [False, True])
def test_sampled_tokens_have_the_scored_law(speculate: bool) -> None:
    """
    2000 draws of two tokens over three allowed ids, each judged by its own score: 5 sigma, false alarm below 1e-5.

    The prompt makes lookup propose one of the three, which is then accepted or not.
    """
    engine = make(lookup(), max_batch=50, spread=0.6, copying=1.5)
    ids = engine.encode(PROMPT)
    allowed = tuple(sorted(set(ids)))[:3]
    prompt = [*allowed, *allowed[:2]]
    params = [SamplingParams(max_tokens=2, seed=seed, allowed_token_ids=allowed) for seed in range(2000)]
    seen = [completion.token_ids for completion in engine.generate([prompt] * 2000, params, speculate=speculate)]
    pairs = list(itertools.product(allowed, repeat=2))
    law = token_law(torch.from_numpy(engine.score(prompt, pairs)), [params[0]] * len(pairs))
    for index, (first, second) in enumerate(pairs):
        expected = (law[index, 0, first] * law[index, 1, second]).item()
        sigma = (expected * (1 - expected) / 2000) ** 0.5
        assert abs(seen.count((first, second)) / 2000 - expected) < 5 * sigma


# the clock


def at_ms(completion: Completion) -> list[float]:
    return [chunk.at_ms for chunk in completion.chunks]


def test_without_noise_a_plain_requests_times_are_sums_of_the_scripts() -> None:
    """Ten prompt tokens are read before the last one, which enters through the first round."""
    engine = make(noise=0.0, plain_ms=40.0, block_ms=44.0, prefill_ms=0.5)
    completion = one(engine)
    assert at_ms(completion) == pytest.approx([0.5 * 10 + 40.0 * step for step in range(1, 21)], rel=1e-9)
    assert completion.latency_ms == pytest.approx(5.0 + 800.0)
    assert all(item.score_ms == pytest.approx(40.0) and item.propose_ms == 0.0 for item in completion.rounds)
    assert engine.now_ms() == pytest.approx(805.0)
    # the clock goes on, the next request's time starts anew, and one token needs no prefill
    assert at_ms(one(engine, prompt="one"))[0] == pytest.approx(40.0)


def test_without_noise_a_speculative_requests_time_is_the_sum_over_its_rounds() -> None:
    sometimes = Scripted(lambda row, limit: [row.token_ids[-1]] * limit if row.num_generated % 3 else [])
    engine = make(sometimes, noise=0.0, plain_ms=40.0, block_ms=44.0, prefill_ms=0.5)
    completion = one(engine)
    costs = [44.0 if item.num_proposed else 40.0 for item in completion.rounds]
    assert {40.0, 44.0} <= set(costs)
    assert at_ms(completion) == pytest.approx([5.0 + spent for spent in itertools.accumulate(costs)])
    assert [item.score_ms for item in completion.rounds] == pytest.approx(costs)


def test_a_pass_of_a_batch_costs_what_one_does_and_requests_wait_for_a_slot() -> None:
    engine = make(max_batch=2, noise=0.0, plain_ms=10.0, prefill_ms=1.0)
    params = [SamplingParams(max_tokens=count, temperature=0.0) for count in (3, 2, 1)]
    first, second, third = engine.generate(["a b c", "a b", "a b c d"], params)
    # two prefills of 2 and 1 tokens, rounds of 10; the third joins in the third round, after its own 3 tokens
    assert at_ms(first) == pytest.approx([13.0, 23.0, 36.0])
    assert at_ms(second) == pytest.approx([13.0, 23.0])
    assert at_ms(third) == pytest.approx([36.0])


def test_the_noise_of_the_clock_is_the_scripts_and_has_its_size() -> None:
    """200 rounds: the standard deviation of the logarithms within 5 standard errors of .1 (false alarm 6e-7)."""
    params = SamplingParams(max_tokens=200, temperature=0.0)
    completion = one(make(noise=0.1), params)
    logs = np.log([item.score_ms / 40.0 for item in completion.rounds])
    assert abs(logs.std() - 0.1) < 5 * 0.1 / (2 * 200) ** 0.5 and abs(logs.mean()) < 5 * 0.1 / 200**0.5
    assert at_ms(one(make(noise=0.1), params)) == at_ms(completion)
    assert at_ms(one(make(noise=0.1, seed=2), params)) != at_ms(completion)
    assert all(earlier < later for earlier, later in itertools.pairwise(at_ms(completion)))


# the defects


def test_a_wrong_block_changes_the_speculative_arm_only() -> None:
    sound, wrong = make(lookup(), **COPIES), make(lookup(), defect="block", **COPIES)
    assert one(wrong, speculate=False) == one(sound, speculate=False)
    assert one(wrong).token_ids != one(sound).token_ids
    # the first row of a block is right: what a rejection leaves is the target's own token
    never = Scripted(lambda row, limit: [(row.token_ids[-1] + 1) % VOCAB] * limit)
    assert one(make(never, defect="block", **COPIES)).token_ids == one(sound).token_ids
    ids = wrong.encode(PROMPT)
    assert np.array_equal(wrong.score(ids, [[1, 2]]), sound.score(ids, [[1, 2]]))


def test_logits_that_are_not_finite_end_the_speculative_arms_requests() -> None:
    sound, broken = make(lookup(), **COPIES), make(lookup(), defect="not-finite", **COPIES)
    assert one(broken, speculate=False) == one(sound, speculate=False)
    for _ in range(2):
        completion = one(broken)
        assert (completion.finish_reason, completion.error) == ("error", "the target's logits are not finite")
        # what was committed before the first draft stays
        kept = len(completion.token_ids)
        assert completion.token_ids == one(sound).token_ids[:kept] and kept < 20
    # a request that drafts nothing has nothing to break it
    silent = make(Scripted(lambda row, limit: []), defect="not-finite", **COPIES)
    assert one(silent).token_ids == one(sound).token_ids


# the rest of the protocol


def test_words_are_tokens_and_come_back_as_words() -> None:
    engine = make()
    ids = engine.encode("red green  blue red")
    assert len(ids) == 4 and ids[0] == ids[3] and len(set(ids)) == 3 and max(ids) < VOCAB
    assert engine.encode([{"role": "user", "content": "red"}, {"role": "user", "content": "green"}]) == ids[:2]
    unknown = next(token_id for token_id in range(VOCAB) if token_id not in ids)
    said = one(engine, SamplingParams(max_tokens=1, allowed_token_ids=(unknown,)), prompt="red")
    assert said.text == str(unknown)
    assert one(engine, SamplingParams(max_tokens=2, allowed_token_ids=(ids[2],)), prompt="red").text == "blue blue"


def test_the_fake_says_what_it_can_do() -> None:
    engine = make(lookup(), max_batch=3, seed=9, target_bytes=100, draft_bytes=7)
    able = engine.capabilities
    assert (able.name, able.claim, able.max_batch, able.max_len) == ("scripted", "bitwise", 3, 256)
    assert able.reports_rounds and able.allowed_token_ids and able.score and able.replaceable_rule
    assert (able.num_speculative_tokens, make().capabilities.num_speculative_tokens) == (K, None)
    assert able.details["script"]["seed"] == 9
    assert engine.memory() == {
        "target_weights": 100,
        "target_cache": 0,
        "draft_weights": 7,
        "draft_cache": 0,
    }
    engine.close()


class Zero:
    """Every number is 0: the first token that has mass."""

    def uniform(self, keys, positions, purpose: Purpose, count: int):
        return torch.zeros(len(keys), count, dtype=torch.float64)


def test_a_sibling_keeps_the_script_the_rule_and_the_noise() -> None:
    calls: list[int] = []

    def counted(target_probs, proposal, keys, positions, noise):
        calls.append(len(keys))
        return rejection(target_probs, proposal, keys, positions, noise)

    engine = ScriptedEngine(
        Script(seed=4), proposer=lookup(), num_speculative_tokens=K, accept=counted, noise=Zero(), max_len=256
    )
    sibling = engine.sibling(max_batch=2, max_len=64)
    assert (sibling.capabilities.max_batch, sibling.capabilities.max_len) == (2, 64)
    assert sibling.capabilities.details == engine.capabilities.details
    assert one(sibling, SamplingParams(max_tokens=3), prompt="one").token_ids == (0, 0, 0) and calls
    calls.clear()
    assert (
        one(engine.sibling(max_batch=1, max_len=64, accept=lambda own: rejection)).token_ids
        == one(make(seed=4)).token_ids
    )
    assert not calls


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"seed": -1}, "seed = -1: allowed 0 or more", id="seed"),
        pytest.param({"spread": -0.1}, "spread = -0.1: allowed 0 or more", id="spread"),
        pytest.param({"copying": float("nan")}, "copying = nan: allowed 0 or more", id="nan"),
        pytest.param({"noise": float("inf")}, "noise = inf: allowed 0 or more", id="infinite"),
        pytest.param({"plain_ms": 0}, "plain_ms = 0: allowed above 0", id="plain"),
        pytest.param({"block_ms": -1.0}, "block_ms = -1.0: allowed above 0", id="block"),
        pytest.param({"prefill_ms": float("nan")}, "prefill_ms = nan: allowed above 0", id="prefill"),
        pytest.param({"target_bytes": 0}, "target_bytes = 0: allowed 1 or more", id="target-bytes"),
        pytest.param({"draft_bytes": -1}, "draft_bytes = -1: allowed 0 or more", id="draft-bytes"),
        pytest.param(
            {"defect": "blocks"},
            "defect",
            id="defect",
        ),
    ],
)
def test_a_script_out_of_range_is_refused(values: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Script(**values)


@pytest.mark.parametrize(
    "options",
    [{"num_speculative_tokens": 0}, {"num_speculative_tokens": 99}, {"max_batch": 0}, {"max_len": 1}],
    ids=str,
)
def test_options_out_of_range_are_refused_as_the_real_engine_refuses_them(options: dict) -> None:
    with pytest.raises(InputError):
        ScriptedEngine(**options)


def test_a_prompt_that_cannot_run_is_refused() -> None:
    engine = make(max_len=8)
    for prompt, message in (("", "no tokens"), ([VOCAB], "outside"), ("a " * 8, "has 8 tokens")):
        with pytest.raises(PromptError, match=message):
            one(engine, prompt=prompt)
    assert len(one(engine, prompt="a b c d e f").token_ids) == 2
