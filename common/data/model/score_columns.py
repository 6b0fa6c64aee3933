"""The names of the columns of a file of scores, beside those of the ID."""

import re
from collections.abc import Sequence

SCORE, PROBABILITY = "score", "probability"
FIGURES = (SCORE, PROBABILITY)
CLASS = "class"
"""The likeliest class of a row, in a model of several classes."""
_REASON = re.compile(r"(host_)?reason_\d+")


def figures_of_class(name: str | None) -> tuple[str, str]:
    """Return the names of the columns with the scores and probabilities of a class; None in a model of two values."""
    return FIGURES if name is None else (f"{SCORE}_{name}", f"{PROBABILITY}_{name}")


def figures_of_classes(names: Sequence[str]) -> list[str]:
    """Return the names of the columns with the scores and probabilities of all classes, in their order in a file."""
    return [f"{figure}_{name}" for figure in FIGURES for name in names]


def reason_headers(n_reasons: int, n_host_reasons: int) -> list[str]:
    """Return the names of the columns that hold the reasons of a row."""
    counts = (("reason", n_reasons), ("host_reason", n_host_reasons))
    return [f"{name}_{place}" for name, count in counts for place in range(1, count + 1)]


def is_reason(name: str) -> bool:
    """Return whether a column of this name holds reasons, and is no part of an ID."""
    return _REASON.fullmatch(name) is not None


def clash_of(id_columns: Sequence[str], classes: Sequence[str] | None) -> str | None:
    """Return what is wrong with the names of an ID of several columns; None if nothing is.

    A file has these columns under their own names. Whoever reads it could not tell them from those of scores and
    reasons. An ID of one column is called `id` there.

    Args:
        id_columns: the columns of the ID.
        classes: the names of the classes, in a model of several.
    """
    taken = FIGURES if classes is None else (CLASS, *figures_of_classes(classes))
    clash = [name for name in id_columns if name in taken or is_reason(name)] if len(id_columns) > 1 else []
    if not clash:
        return None
    return (
        f"`id` names the column {clash[0]!r}, and files of scores have a column of this name for a score, a class or a"
        " reason: rename the column in the table and in `id`"
    )
