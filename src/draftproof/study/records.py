"""The requests that a run has stored, in whole groups: read back, and appended to."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftproof.errors import OutputError
from draftproof.evidence import write_whole
from draftproof.measure.run import BLOCKS, Save
from draftproof.study.append import append_record
from draftproof.workload.prompts import WorkloadPrompt

GROUP = ("prompt_id", "repeat", "concurrency")


def read_records(path: Path, prompts: Sequence[WorkloadPrompt]) -> list[dict[str, Any]]:
    """
    Read ``requests.jsonl``, and leave in the file only whole groups, so that appending is safe.

    A line that a kill has cut, or that is no record of one of the study's prompts, is dropped, and its group is run again.

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
    known = {prompt.id for prompt in prompts}
    for line in text.split("\n"):
        try:
            record = json.loads(line)
            if record["prompt_id"] not in known:
                continue
            blocks.setdefault(tuple(record[key] for key in GROUP), []).append(record["block"])
            records.append(record)
        except (ValueError, TypeError, KeyError):
            continue
    whole = {group for group, seen in blocks.items() if seen == [name for name, _ in BLOCKS]}
    records = [record for record in records if tuple(record[key] for key in GROUP) in whole]
    write_whole(path, "".join(json.dumps(record) + "\n" for record in records))
    return records


def groups_of(records: Sequence[dict[str, Any]]) -> set[tuple[str, int, int]]:
    """Return (prompt id, repeat, concurrency) of what is stored."""
    return {(item["prompt_id"], item["repeat"], item["concurrency"]) for item in records}


@contextmanager
def appending(path: Path, records: list[dict[str, Any]]) -> Iterator[Save]:
    """Open a file of requests; what is yielded appends a record to it and to ``records``, and raises as `append_record` does."""
    with path.open("ab", buffering=0) as file:

        def save(record: dict[str, Any]) -> None:
            append_record(file, record)
            records.append(record)

        yield save
