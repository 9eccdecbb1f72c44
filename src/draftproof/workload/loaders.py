"""Read a prompt set: a shipped one by name, or a JSONL file in one of three formats."""

import json
import random
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from draftproof.errors import PromptError
from draftproof.workload.prompts import WorkloadPrompt

SHIPPED = ("demo",)


def load_prompts(name_or_path: str, limit: int | None = None, seed: int = 0) -> tuple[WorkloadPrompt, ...]:
    """
    Return the prompts of a set in file order.

    Parameters
    ----------
    name_or_path : str
        "demo", or the path of a .jsonl file with lines ``{"id", "category", "prompt"}``, Spec-Bench lines
        ``{"question_id", "category", "turns"}`` (the first turn), or ``{"conversations": [{"from", "value"}]}`` (the
        first human turn).
    limit : int or None
        Take this many, spread evenly over the categories and chosen by ``seed``.

    Raises
    ------
    PromptError
        The set is unknown, missing, empty, or a line is not a prompt.
    """
    if name_or_path in SHIPPED:
        text = files("draftproof.workload").joinpath("sets", f"{name_or_path}.jsonl").read_text(encoding="utf-8")
    else:
        try:
            text = Path(name_or_path).read_text(encoding="utf-8")
        except OSError as error:
            raise PromptError(
                f"cannot read prompt set '{name_or_path}': {error.strerror}; "
                f"allowed: {', '.join(SHIPPED)}, or the path of a .jsonl file"
            ) from None
        except UnicodeDecodeError:
            raise PromptError(f"prompt set '{name_or_path}' is not UTF-8 text; give a .jsonl file") from None
    prompts = tuple(_parse(text.splitlines(), name_or_path))
    if not prompts:
        raise PromptError(f"prompt set '{name_or_path}' is empty; give at least one prompt")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise PromptError(f"prompt set '{name_or_path}' has the id '{prompt.id}' twice; ids must differ")
        seen.add(prompt.id)
    return prompts if limit is None or limit >= len(prompts) else _spread(prompts, limit, seed)


def _parse(lines: Iterable[str], where: str) -> Iterable[WorkloadPrompt]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise PromptError(f"prompt set '{where}' line {number} is not JSON: {error.msg}") from None
        prompt = _prompt(values, number) if isinstance(values, dict) else None
        if prompt is None or not prompt.text.strip():
            raise PromptError(
                f"prompt set '{where}' line {number} holds no prompt; allowed: "
                "{id, category, prompt}, {question_id, category, turns} or {conversations}"
            )
        yield prompt


def _prompt(values: dict[str, Any], number: int) -> WorkloadPrompt | None:
    category = str(values.get("category", "chat"))
    if isinstance(values.get("prompt"), str):
        return WorkloadPrompt(id=str(values.get("id", number)), category=category, text=values["prompt"])
    turns = values.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return WorkloadPrompt(id=str(values.get("question_id", number)), category=category, text=turns[0])
    talk = values.get("conversations")
    if isinstance(talk, list):
        human = [turn for turn in talk if isinstance(turn, dict) and turn.get("from") in ("human", "user")]
        if human and isinstance(human[0].get("value"), str):
            return WorkloadPrompt(id=str(values.get("id", number)), category=category, text=human[0]["value"])
    return None


def _spread(prompts: tuple[WorkloadPrompt, ...], limit: int, seed: int) -> tuple[WorkloadPrompt, ...]:
    by_category: dict[str, list[WorkloadPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    chooser = random.Random(seed)
    for members in by_category.values():
        chooser.shuffle(members)
    chosen: set[str] = set()
    while len(chosen) < limit:
        for members in by_category.values():
            if members and len(chosen) < limit:
                chosen.add(members.pop().id)
    return tuple(prompt for prompt in prompts if prompt.id in chosen)
