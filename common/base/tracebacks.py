"""Where an unexpected error came from, without its text: that may quote a row, a label or a key."""

import traceback


def where(error: BaseException) -> str:
    """The kinds of an error and of those that led to it, each with its calls: fit for a log."""
    parts = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        # The lines of code are left out too: a constant in one may be somebody's.
        calls = [
            f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(link.__traceback__)
        ]
        parts.append("\n    ".join([type(link).__qualname__, *calls]))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n  after ".join(parts)
