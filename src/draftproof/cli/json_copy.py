"""The file of ``--json``: a copy of what a command found, refused before anything runs if it could not be written."""

from pathlib import Path

from draftproof.errors import OutputError
from draftproof.evidence import require_writable


def require_copy(path: Path | None, out: Path | None = None) -> None:
    """
    See that a copy can be written.

    Parameters
    ----------
    path : Path or None
        None: no copy is asked for.
    out : Path or None
        The command's own folder, which need not be there yet and sees to what lies in it itself.

    Raises
    ------
    OutputError
        Its folder cannot be written, or it is a folder itself.
    """
    if path is None:
        return
    if out is not None and path.resolve() == out.resolve():
        raise OutputError(f"cannot write {path}: it is the folder of --out; give the path of a file")
    if out is None or path.parent.resolve() != out.resolve() or path.is_dir():
        require_writable(path)
