"""Reading the history of a job piece by piece, while the job adds to it."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trilateral.common.jobs.folder import JobFolder

PIECE_BYTES = 256 * 1024
"""How much of a history to read at a time: some 600 rounds."""


REST = "waiting"
"""What the time of a process is called that no kind of work has taken."""


@dataclass(frozen=True)
class HistoryPiece:
    """A part of a history.

    Attributes:
        lines: each round or attempt that is over, as `History` writes it.
        place: from where to read on, in bytes.
        is_from_start: whether the piece begins with the first line. It does so, too, if the file was replaced.
        is_more: whether there is more to read already.
    """

    lines: tuple[dict[str, Any], ...]
    place: int
    is_from_start: bool
    is_more: bool = False


def read_history(folder: JobFolder, place: int = 0, max_bytes: int = PIECE_BYTES) -> HistoryPiece:
    """Read a part of the history of a job, whether or not the job has ended.

    Args:
        folder: the folder of the job.
        place: the place of the last piece; 0 to begin with the first line.
        max_bytes: how much to read; far more than a line has.

    Returns:
        The piece; an empty one if there is no history.
    """
    # A job renames its history when it finishes.
    for path in (folder.unfinished_history, folder.history):
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if place > size:  # another file
                    place = 0
                if place:
                    file.seek(place - 1)
                    if file.read(1) != b"\n":  # another file
                        place = 0
                file.seek(place)
                content = file.read(max_bytes)
        except OSError:
            continue
        whole = content[: content.rfind(b"\n") + 1]
        is_more = bool(whole) and place + len(content) < size
        return HistoryPiece(_parse(whole), place + len(whole), is_from_start=place == 0, is_more=is_more)
    return HistoryPiece((), 0, is_from_start=True)


def seconds_by_work(history: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], float]:
    """Return the seconds of each kind of work, the longest first, and those of the whole training."""
    seconds: defaultdict[str, float] = defaultdict(float)
    total = 0.0
    for line in history:
        for name, value in line.get("seconds", {}).items():
            if name == "all":
                total += value
            else:
                seconds[name] += value
    rest = total - sum(seconds.values())
    if rest > 0:
        seconds[REST] = rest
    return dict(sorted(seconds.items(), key=lambda each: -each[1])), total


def _parse(content: bytes) -> tuple[dict[str, Any], ...]:
    lines = []
    for line in content.splitlines():
        try:
            fields = json.loads(line)
        except ValueError:  # `History` did not write it.
            continue
        if isinstance(fields, dict) and isinstance(fields.get("round"), int):
            lines.append(fields)
    return tuple(lines)
