"""Prompt sets from the package or from a .jsonl file. Knows no model and no tokenizer."""

import json
import random
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from draftproof.errors import PromptError
from draftproof.workload.prompts import WorkloadPrompt

SHIPPED_SETS = ("demo",)
FORMATS = '{"id", "category", "prompt"}, {"question_id", "category", "turns"} or {"conversations"}'
HUMAN = ("human", "user")


def load_prompts(name_or_path: str, limit: int | None, seed: int) -> tuple[WorkloadPrompt, ...]:
    """
    Load a prompt set, in the order of its file.

    Parameters
    ----------
    name_or_path : str
        "demo", the set that ships with draftproof, or the path of a .jsonl file. Each line is one of

        - ``{"id": ..., "category": ..., "prompt": ...}``;
        - Spec-Bench: ``{"question_id": ..., "category": ..., "turns": [...]}``, of which the first turn is used;
        - ShareGPT: ``{"conversations": [{"from": ..., "value": ...}, ...]}``, of which the first human turn is used;
          its category is "chat", its id is the line's "id", or "line-N" when it has none.
    limit : int, 1 or more, or None
        Most prompts to return. Prompts are then chosen evenly over the categories, by `seed`. None: all of them.
    seed : int
        Same seed, same choice. Without effect when every prompt is returned.

    Returns
    -------
    tuple of WorkloadPrompt
        Never empty.

    Raises
    ------
    PromptError
        The set is unknown, missing, unreadable or empty, or a line of it cannot be used.
    """
    if limit is not None and limit < 1:
        raise PromptError(f"limit = {limit}: allowed 1 or more, or none for the whole set")
    prompts = tuple(_parse(_read(name_or_path), name_or_path))
    if not prompts:
        raise PromptError(f"prompt set '{name_or_path}' is empty; give it at least one line such as {FORMATS}")
    if limit is None or limit >= len(prompts):
        return prompts
    return _choose(prompts, limit, seed)


def _read(name_or_path: str) -> str:
    if name_or_path in SHIPPED_SETS:
        return (resources.files("draftproof.workload") / "sets" / f"{name_or_path}.jsonl").read_text(encoding="utf-8")
    path = Path(name_or_path)
    if path.suffix != ".jsonl":
        raise PromptError(
            f"unknown prompt set '{name_or_path}': allowed are {', '.join(SHIPPED_SETS)} or the path of a .jsonl file"
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise PromptError(f"prompt file '{name_or_path}' does not exist; check the path") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"prompt file '{name_or_path}' is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise PromptError(f"prompt file '{name_or_path}' cannot be read: {error.strerror}; check the path") from None


def _parse(content: str, source: str) -> Iterator[WorkloadPrompt]:
    first_line_of: dict[str, int] = {}
    # not splitlines(): JSON strings may hold U+2028 and its kin unescaped
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            raise PromptError(f"{where}: not valid JSON ({reason}); write one JSON object on each line") from None
        if not isinstance(fields, dict):
            raise PromptError(f"{where}: got {type(fields).__name__}, allowed is an object: {FORMATS}")
        prompt = _prompt_of(fields, where, number)
        if not prompt.text.strip():
            raise PromptError(f"{where}: the prompt text is empty; write a prompt or delete the line")
        if prompt.id in first_line_of:
            raise PromptError(
                f"{where}: id '{prompt.id}' was already used on line {first_line_of[prompt.id]}; ids must differ"
            )
        first_line_of[prompt.id] = number
        yield prompt


def _prompt_of(fields: dict[str, Any], where: str, number: int) -> WorkloadPrompt:
    if "prompt" in fields:
        return WorkloadPrompt(
            id=_identifier(fields, "id", where),
            category=_text(fields, "category", where),
            text=_text(fields, "prompt", where),
        )
    if "turns" in fields:
        turns = fields["turns"]
        if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
            raise PromptError(f"{where}: 'turns' must be a list of strings with at least one; got {_short(turns)}")
        return WorkloadPrompt(
            id=_identifier(fields, "question_id", where), category=_text(fields, "category", where), text=turns[0]
        )
    if "conversations" in fields:
        return WorkloadPrompt(
            id=_identifier(fields, "id", where) if "id" in fields else f"line-{number}",
            category="chat",
            text=_first_human_turn(fields["conversations"], where),
        )
    raise PromptError(f"{where}: no 'prompt', 'turns' or 'conversations'; allowed lines are {FORMATS}")


def _first_human_turn(turns: Any, where: str) -> str:
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, dict) and turn.get("from") in HUMAN:
            return _text(turn, "value", where)
    raise PromptError(f'{where}: \'conversations\' has no turn with "from": "human"; add one or delete the line')


def _text(fields: dict[str, Any], name: str, where: str) -> str:
    if name not in fields:
        raise PromptError(f"{where}: '{name}' is missing; allowed lines are {FORMATS}")
    value = fields[name]
    if not isinstance(value, str):
        raise PromptError(f"{where}: '{name}' must be a string; got {_short(value)}")
    return value


def _identifier(fields: dict[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    identifier = _text(fields, name, where)
    if not identifier.strip():
        raise PromptError(f"{where}: '{name}' is empty; give each prompt its own id")
    return identifier


def _short(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."


def _choose(prompts: tuple[WorkloadPrompt, ...], limit: int, seed: int) -> tuple[WorkloadPrompt, ...]:
    """Take one prompt of each category in turn, both in seeded order, until there are `limit`; then file order."""
    generator = random.Random(seed)
    waiting: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        waiting.setdefault(prompt.category, []).append(index)
    for indices in waiting.values():
        generator.shuffle(indices)
    categories = list(waiting)
    generator.shuffle(categories)
    chosen: list[int] = []
    while len(chosen) < limit:
        for category in categories:
            if waiting[category] and len(chosen) < limit:
                chosen.append(waiting[category].pop())
    return tuple(prompts[index] for index in sorted(chosen))
