"""Prompts on which drafts of the scripted engine hold for a while: neither never nor always."""

import json
import random
from pathlib import Path

SCRIPT = {"spread": 0.2, "copying": 1.0, "noise": 0.0}


def write_repeating(folder: Path, count: int = 8) -> Path:
    """Each says the same thirty words three times and begins a fourth time."""
    dice, path = random.Random(3), folder / "repeating.jsonl"
    lines = []
    for number in range(count):
        words = dice.choices([f"w{word}" for word in range(40)], k=30)
        lines.append({"id": f"p{number}", "category": "c", "prompt": " ".join([*words * 3, words[0]])})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
