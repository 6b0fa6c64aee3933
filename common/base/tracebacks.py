"""The origin of an unexpected error, without its text, which may quote a row, a label or a key."""

import traceback
from pathlib import Path

from trilateral.common.base.permissions import explain


def where(error: BaseException) -> str:
    """Describe an error and its causes by class names and code locations, which are safe to log.

    Args:
        error: the error.

    Returns:
        For the error and each error that led to it, its class and the calls of its traceback, one per line. If the
        error is that this process may not use a file, also whose the file is and what to run.
    """
    parts = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        # Leave out the source lines as well: a literal in one of them may be a secret.
        calls = [
            f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(link.__traceback__)
        ]
        title = type(link).__qualname__
        if isinstance(link, PermissionError) and isinstance(link.filename, str):
            title = f"{title}: {explain(link, Path(link.filename))}"
        parts.append("\n    ".join([title, *calls]))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n  after ".join(parts)
