"""What a run has stored so far, in whole groups."""

import json
from pathlib import Path
from typing import Any

from draftproof.errors import OutputError
from draftproof.evidence import write_whole
from draftproof.measure.run import BLOCKS

GROUP = ("prompt_id", "repeat", "concurrency")


def read_records(path: Path) -> list[dict[str, Any]]:
    """
    Read ``requests.jsonl``, and leave in the file only whole groups, so that appending is safe.

    A line that a kill has cut or that is no record is dropped, and its group is run again.

    Raises
    ------
    OutputError
        It cannot be read.
    """
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror}; move it away, or choose another --out") from None
    records: list[dict[str, Any]] = []
    blocks: dict[tuple[Any, ...], list[str]] = {}
    for line in text.split("\n"):
        try:
            record = json.loads(line)
            blocks.setdefault(tuple(record[key] for key in GROUP), []).append(record["block"])
            records.append(record)
        except (ValueError, TypeError, KeyError):
            continue
    whole = {group for group, seen in blocks.items() if seen == [name for name, _ in BLOCKS]}
    records = [record for record in records if tuple(record[key] for key in GROUP) in whole]
    write_whole(path, "".join(json.dumps(record) + "\n" for record in records))
    return records
