import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from draftproof.errors import PromptError
from draftproof.workload.loaders import load_prompts


def own(identifier: str, category: str = "chat", prompt: str = "Say hello.") -> dict[str, Any]:
    return {"id": identifier, "category": category, "prompt": prompt}


def write(folder: Path, *lines: Any) -> str:
    path = folder / "set.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_demo_has_four_prompts_in_each_of_six_categories() -> None:
    prompts = load_prompts("demo", None, 0)
    assert Counter(prompt.category for prompt in prompts) == {
        "code edit": 4,
        "extraction": 4,
        "summary with quotes": 4,
        "translation": 4,
        "question answering": 4,
        "free writing": 4,
    }


def test_a_file_keeps_its_order(tmp_path: Path) -> None:
    path = write(tmp_path, own("b"), "", own("a"), own("c"))
    assert [prompt.id for prompt in load_prompts(path, None, 0)] == ["b", "a", "c"]
    assert [prompt.id for prompt in load_prompts(path, 3, 5)] == ["b", "a", "c"]


def test_foreign_formats_give_their_first_user_turn(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
        {"id": "x", "conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "H"}]},
        {"conversations": [{"from": "user", "value": "U\u2028V"}]},
    )
    prompts = load_prompts(path, None, 0)
    assert [(prompt.id, prompt.category, prompt.text) for prompt in prompts] == [
        ("81", "writing", "First."),
        ("x", "chat", "H"),
        ("line-3", "chat", "U\u2028V"),
    ]


@pytest.mark.parametrize("limit", [1, 5, 6, 7, 13, 23])
def test_a_limit_is_spread_evenly_and_repeats_with_its_seed(limit: int) -> None:
    prompts = load_prompts("demo", limit, 3)
    counts = Counter(prompt.category for prompt in prompts)
    assert len(prompts) == limit
    assert max(counts.values()) - min(counts.get(name, 0) for name in _categories()) <= 1
    assert prompts == load_prompts("demo", limit, 3)
    order = [prompt.id for prompt in load_prompts("demo", None, 0)]
    assert [prompt.id for prompt in prompts] == sorted((prompt.id for prompt in prompts), key=order.index)


def test_another_seed_chooses_other_prompts() -> None:
    assert len({load_prompts("demo", 6, seed) for seed in range(5)}) > 1


def test_small_categories_do_not_shorten_the_choice(tmp_path: Path) -> None:
    path = write(tmp_path, own("a", "one"), own("b", "two"), own("c", "two"), own("d", "two"))
    assert len(load_prompts(path, 3, 0)) == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param([own("a"), "{"], "line 2: not valid JSON", id="bad-json"),
        pytest.param(["[1]"], "line 1: got list", id="not-an-object"),
        pytest.param([{"id": "a", "category": "c"}], "line 1: no 'prompt', 'turns' or 'conv", id="no-text-field"),
        pytest.param([{"id": "a", "prompt": "p"}], "line 1: 'category' is missing", id="no-category"),
        pytest.param([{"category": "c", "prompt": "p"}], "line 1: 'id' is missing", id="no-id"),
        pytest.param([{"category": "c", "turns": ["p"]}], "line 1: 'question_id' is missing", id="no-question-id"),
        pytest.param([own("a"), own("a")], "line 2: id 'a' was already used on line 1", id="duplicate-id"),
        pytest.param([own("a", prompt=" ")], "line 1: the prompt text is empty", id="empty-text"),
        pytest.param([own("")], "line 1: 'id' is empty", id="empty-id"),
        pytest.param([{"id": "a", "category": "c", "prompt": 3}], "'prompt' must be a string; got 3", id="number"),
        pytest.param([{"question_id": 1, "category": "c", "turns": []}], "'turns' must be a list", id="no-turns"),
        pytest.param([{"conversations": [{"from": "gpt", "value": "v"}]}], "has no turn with", id="no-human"),
        pytest.param([], "is empty", id="empty-set"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: list[Any], message: str) -> None:
    with pytest.raises(PromptError, match=message) as caught:
        load_prompts(write(tmp_path, *lines), None, 0)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_shipped_sets() -> None:
    with pytest.raises(PromptError, match=r"unknown prompt set 'demos': allowed are demo or the path of a \.jsonl"):
        load_prompts("demos", None, 0)


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="does not exist"):
        load_prompts(str(tmp_path / "none.jsonl"), None, 0)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(PromptError, match="cannot be read"):
        load_prompts(str(tmp_path / "folder.jsonl"), None, 0)
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9")
    with pytest.raises(PromptError, match="not UTF-8"):
        load_prompts(str(tmp_path / "latin.jsonl"), None, 0)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(PromptError, match="limit = 0: allowed 1 or more"):
        load_prompts("demo", 0, 0)


def _categories() -> set[str]:
    return {prompt.category for prompt in load_prompts("demo", None, 0)}
