"""The real vLLM: both arms over the servers of the shipped study, and nothing of them left. Skipped where it is not installed."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from draftproof.engines.launch import Launch, Launched
from draftproof.engines.openai_http import HttpEngine
from draftproof.engines.resolve import resolve
from draftproof.study.study_file import load_plan
from support.recorded import COUNT, PROMPT, TARGET, ask, params

ROOT = Path(__file__).parent.parent.parent
pytestmark = [
    pytest.mark.real_model,
    pytest.mark.real_vllm,
    pytest.mark.skipif(not (ROOT / ".venv-vllm" / ".installed").exists(), reason="vLLM is not installed: make vllm"),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[HttpEngine]:
    launch = load_plan(ROOT / "studies" / "vllm.toml").engine.launch
    assert launch is not None
    before = set(psutil.Process().children(recursive=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        servers = Launched(
            Launch(**{**launch.model_dump(), "together": True}), target=str(resolve(TARGET, lambda message: None))
        )
        made = HttpEngine.connect(servers, target=TARGET, timeout_s=120.0)
        yield made
        made.close()
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_real_server_drafts_and_its_greedy_tokens_are_the_targets_up_to_ties(engine: HttpEngine) -> None:
    plain, drafted = (ask(engine, "greedy", speculate=speculate) for speculate in (False, True))
    assert plain.error is None and drafted.error is None and plain.speculation is None
    counts = drafted.speculation
    assert counts is not None and counts.num_draft_tokens and counts.num_spec_tokens == 5
    prompt = engine.encode(PROMPT)
    for own, top in engine.score_top(prompt, drafted.token_ids, 3):
        assert max(top.values()) - own <= 0.5
    assert len(plain.token_ids) == len(drafted.token_ids) == COUNT


def test_a_real_server_heeds_what_it_is_asked_for(engine: HttpEngine) -> None:
    allowed = params(engine)["allowed"].allowed_token_ids
    assert allowed is not None
    first, again = (ask(engine, "allowed", speculate=False) for _ in range(2))
    assert first.token_ids == again.token_ids and set(first.token_ids) <= set(allowed)
    assert first.top_logprobs is not None and all(set(top) == set(allowed) for top in first.top_logprobs)
    stopped, constrained = (ask(engine, name, speculate=True) for name in ("stop", "regex"))
    assert stopped.error is None and " blue" not in stopped.text
    assert constrained.error is None and constrained.text.isdecimal() and len(constrained.text) == 3
