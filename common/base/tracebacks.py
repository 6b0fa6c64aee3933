"""The origin of an unexpected error, without its text, which may quote a row, a label or a key."""

import traceback


def where(error: BaseException) -> str:
    """Describe an error and its causes by class names and code locations, which are safe to log.

    Args:
        error: the error.

    Returns:
        For the error and each error that led to it, its class and the calls of its traceback, one per line.
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
        parts.append("\n    ".join([type(link).__qualname__, *calls]))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n  after ".join(parts)
