"""A small `make exactness`: the demo model in bfloat16, both arms, two drafts, alone and in a batch."""

import pytest

from draftproof import Engine, SamplingParams
from draftproof.measure.run import as_chat
from draftproof.proposers import EarlyExit, PromptLookup
from draftproof.workload.loaders import load_prompts

pytestmark = pytest.mark.real_model
TOKENS = 20


@pytest.mark.parametrize("verification", ["rejection", "coupled"])
def test_both_arms_give_the_same_tokens_alone_and_in_a_batch(verification: str) -> None:
    prompts = [as_chat(prompt) for prompt in load_prompts("demo", 4, 0)]
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0 if verification == "rejection" else 0.8, seed=5)
    outputs = []
    for proposer, batch in ((PromptLookup(), 1), (PromptLookup(), 4), (EarlyExit(6), 4)):
        engine = Engine.from_pretrained(
            "smollm2-135m-instruct",
            proposer=proposer,
            num_speculative_tokens=4,
            max_batch=batch,
            max_len=512,
            verification=verification,
        )
        assert engine.capabilities.claim == "bitwise"
        for speculate in (False, True):
            done = engine.generate(prompts, params, speculate=speculate)
            outputs.append((engine.capabilities.details["shape_class"]["shapes"], [item.token_ids for item in done]))
        engine.close()
    assert outputs[0][1] == outputs[1][1] and outputs[2][1] == outputs[3][1] and outputs[4][1] == outputs[5][1]
    assert outputs[0][1] == outputs[2][1] == outputs[4][1]
