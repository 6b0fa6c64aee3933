"""Pages of an audit log, the newest lines first, while a process adds to it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilateral.common.observe.audit_chain import log_files

BLOCK_BYTES = 64 * 1024
MAX_LINE_BYTES = 1024 * 1024
"""A longer line is not shown: no process writes one."""
MAX_LOOKED_AT = 50_000
"""Lines to look at for one page. The answer then says from where to look on."""
_NUMBER = re.compile(rb'"number": ([0-9]{1,15}), "previous": "[0-9a-f]{64}"\}$')


@dataclass(frozen=True)
class AuditPage:
    """Some lines of an audit log.

    Attributes:
        lines: as the log has them, without the hash of the line before; the newest first.
        before: number to ask for the next page with; None if there are no older lines.
    """

    lines: tuple[dict[str, Any], ...]
    before: int | None


def read_audit_page(
    path: Path, is_wanted: Callable[[Mapping[str, Any]], bool], *, before: int | None = None, n_lines: int = 50
) -> AuditPage:
    """Read a page of an audit log. Lines of release 0.1.0, which have no number, are left out.

    Args:
        path: the newest file of the log.
        is_wanted: whether to show a line.
        before: show lines with a smaller number only.
        n_lines: how many lines to show.

    Raises:
        OSError: a file cannot be read.
    """
    found: list[dict[str, Any]] = []
    for looked_at, (number, line) in enumerate(_lines_before(path, before)):
        if len(found) == n_lines or looked_at == MAX_LOOKED_AT:
            return AuditPage(tuple(found), number + 1)
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):  # The process did not write it.
            continue
        if is_wanted(fields):
            fields.pop("previous", None)
            found.append(fields)
    return AuditPage(tuple(found), None)


def _lines_before(path: Path, before: int | None) -> Iterator[tuple[int, bytes]]:
    files = log_files(path)
    for place in reversed(range(len(files))):
        # The name of a full file has the number of its last line.
        last_of_older = int(files[place - 1].stem[-12:]) if place else 0
        if before is not None and before <= last_of_older + 1:
            continue
        for line in _backwards(files[place]):
            match = _NUMBER.search(line)
            if match is not None and (before is None or int(match[1]) < before):
                yield int(match[1]), line


def _backwards(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, the last one first, without an incomplete last line."""
    with path.open("rb") as file:
        place = file.seek(0, 2)
        rest = b""
        is_end = True
        while place:
            n_bytes = min(BLOCK_BYTES, place)
            place -= n_bytes
            file.seek(place)
            first, *lines = (file.read(n_bytes) + rest).split(b"\n")
            if is_end and lines:
                lines.pop()  # what follows the last newline: nothing, or a line that is being written
                is_end = False
            yield from reversed(lines)
            # Without its end, a line has no number, and is left out.
            rest = first if len(first) <= MAX_LINE_BYTES else b""
        if rest and not is_end:
            yield rest
