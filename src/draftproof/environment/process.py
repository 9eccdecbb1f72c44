"""The memory of this process, and whether its output folder can be written."""

import contextlib
import resource
import sys
import tempfile
from pathlib import Path

from draftproof.errors import OutputError


def peak_rss_bytes() -> int:
    """Return the most memory this process has held at once, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def write_probe(folder: Path) -> None:
    """
    Create `folder` and make sure that files can be written into it.

    Raises
    ------
    OutputError
        It cannot be created or written. Folders made on the way are removed again.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"draftproof")
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise OutputError(
            f"output folder '{folder}' cannot be written: {why}; choose a folder that you may write to"
        ) from None
