"""The chain of hashes through the lines of an audit log, and through the files that it was split into.

Each line has a `number`, counted from 1, and in `previous` the SHA-256 of the line before it, without its end. In the
first line `previous` is the SHA-256 of everything before it in the file: lines that release 0.1.0 wrote, or nothing.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain

REPAIRED = "repaired"
"""The decision of a line that follows an incomplete one."""
MAX_LINE = 1 << 20
"""More bytes than any line has."""


@dataclass(frozen=True)
class ChainEnd:
    """Where a log ends.

    Attributes:
        number: number of the last line of the chain; 0 if there is none.
        digest: what `previous` of the next line must be, hexadecimal.
        is_torn: whether the last line of the file has no end.
    """

    number: int
    digest: str
    is_torn: bool = False

    def continued(self, fields: Mapping[str, Any]) -> tuple["ChainEnd", bytes]:
        """Return the end after a new line with these fields, and the line."""
        number = self.number + 1
        line = json.dumps({**fields, "number": number, "previous": self.digest}).encode()
        return ChainEnd(number, _hash(line)), line + b"\n"


@dataclass(frozen=True)
class Verified:
    """A log whose chain is whole.

    Attributes:
        first: number of the first line that is here; 0 if there is none.
        end: where the log ends.
        n_unchained: number of lines before the chain, which release 0.1.0 wrote.
        n_repaired: number of incomplete lines, each of which the next line reports.
    """

    first: int
    end: ChainEnd
    n_unchained: int = 0
    n_repaired: int = 0


def full_name(path: Path, number: int) -> Path:
    """Return the name of a log that is full, by the number of its last line."""
    return path.with_name(f"{path.stem}-{number:012}{path.suffix}")


def log_files(path: Path) -> list[Path]:
    """Return the files of a log that exist, in the order of their lines."""
    digits = "[0-9]" * 12
    full = sorted(path.parent.glob(f"{path.stem}-{digits}{path.suffix}"))
    return full + [path] * path.exists()


def find_end(path: Path) -> ChainEnd:
    """Find the end of a log, which may be empty or not exist.

    Raises:
        OSError: a file cannot be read.
    """
    files = [each for each in log_files(path) if each.stat().st_size]
    if not files:
        return ChainEnd(0, _hash(b""))
    with files[-1].open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - MAX_LINE))
        *lines, rest = file.read().split(b"\n")
        is_torn = bool(rest)
        if is_torn:
            lines.append(rest)
        number = next((link.number for line in reversed(lines) if (link := _parse(line))), 0)
        if number:
            return ChainEnd(number, _hash(lines[-1]), is_torn)
        file.seek(0)
        everything = hashlib.file_digest(file, "sha256")
    if is_torn:
        everything.update(b"\n")
    return ChainEnd(0, everything.hexdigest(), is_torn)


def verify_chain(path: Path, anchor: str | None = None) -> Verified:
    """Follow the chain through all files of a log, while a process may be adding to it.

    Args:
        path: the newest file of the log.
        anchor: the hash of a line that must be in the log, hexadecimal.

    Returns:
        What the log contains.

    Raises:
        ConfigError: the chain is broken, or no line has the hash of the anchor; the text names the first such line.
    """
    chain = _Chain()
    is_found = False
    try:
        for file in log_files(path):
            for place, line, is_whole in _lines(file):
                chain.take(place, line, is_whole=is_whole)
                is_found = is_found or _hash(line) == anchor
    except OSError as error:
        raise ConfigError(f"the audit log {path} cannot be read: {explain(error, path)}") from error
    if anchor is not None and not is_found:
        raise ConfigError(f"the audit log {path} has no line with the hash {anchor}: lines were removed or changed")
    return chain.result()


class _Chain:
    """The lines of a log so far."""

    def __init__(self) -> None:
        self._before = hashlib.sha256()
        self._first = 0
        self._end = ChainEnd(0, "")
        self._odd: str | None = None
        """Why the last line is not one of the chain; None if it is one."""
        self._n_unchained = self._n_repaired = 0

    def take(self, place: str, line: bytes, *, is_whole: bool) -> None:
        """Check a line; it must be whole unless it is the last line of a log that a process is writing."""
        link = _parse(line)
        if link is None and not self._first:
            self._before.update(line + b"\n")
            self._n_unchained += 1
            return
        if self._odd is not None and (link is None or link.decision != REPAIRED):
            raise ConfigError(self._odd)
        if link is None:
            self._odd = f"{place} is not a line that the process has written: it was changed or inserted"
        else:
            self._check(place, link)
            self._n_repaired += link.decision == REPAIRED
            self._odd = None
            self._first = self._first or link.number
        self._end = ChainEnd(link.number if link else self._end.number, _hash(line), not is_whole)

    def _check(self, place: str, link: "_Link") -> None:
        if not self._first:
            # If older files were moved away, the first line continues a line that is not here.
            if link.number == 1 and link.previous != self._before.hexdigest():
                raise ConfigError(f"{place} does not continue what is before it: lines before it were changed")
            return
        if link.number != self._end.number + 1:
            raise ConfigError(
                f"{place} has the number {link.number}, and the line before it {self._end.number}: lines were removed "
                "or inserted"
            )
        if link.previous != self._end.digest:
            raise ConfigError(f"{place} does not continue the line before it: that line was changed")

    def result(self) -> Verified:
        if self._odd is not None and not self._end.is_torn:
            raise ConfigError(self._odd)
        return Verified(self._first, self._end, self._n_unchained, self._n_repaired)


def _lines(file: Path) -> Iterator[tuple[str, bytes, bool]]:
    """Yield name and number, content, and whether it has an end, of each line of a file."""
    with file.open("rb") as content:
        for position, line in enumerate(content, start=1):
            yield f"{file}, line {position}", line.removesuffix(b"\n"), line.endswith(b"\n")


class _Link(NamedTuple):
    number: int
    previous: str
    decision: str


def _parse(line: bytes) -> _Link | None:
    """Return what a line of the chain says about its place, and None for every other line."""
    try:
        fields = json.loads(line)
        link = _Link(fields["number"], fields["previous"], fields["decision"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    is_sound = type(link.number) is int and link.number > 0 and isinstance(link.previous, str)
    return link if is_sound else None


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
