"""Append a record to a JSON-lines file, and not return before it is on disk."""

import errno
import json
import os
from io import FileIO
from pathlib import Path
from typing import Any

from draftproof.errors import OutputError


def append_record(file: FileIO, record: dict[str, Any]) -> None:
    """
    Append one line.

    Parameters
    ----------
    file : FileIO
        Opened for appending, without a buffer.

    Raises
    ------
    OutputError
        The disk is full, or writing failed.
    """
    line = (json.dumps(record) + "\n").encode()
    try:
        if (file.write(line) or 0) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError as error:
        raise OutputError(
            f"cannot write {Path(str(file.name))}: {error.strerror}; what was measured before is kept: make room, then --resume"
        ) from None
