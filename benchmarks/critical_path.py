"""Find the critical path of a round in the notes of `benchmarks/recorder.py`, and what its time goes into.

A round begins when the coordinator's state machine has made the first `BeginRound`, and ends when it makes the first
one of the next round. From the end, the search goes back: the state machine of a process works on a message, and before
that it worked on an earlier message, or it waited for this one. In the second case the path goes on in the process that
sent the message, at the moment when its state machine made it.
"""

import json
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from trilateral.common.base.roles import Role

KINDS = {
    "arithmetic": "the kernel, or gmpy2, computes with large numbers",
    "randomness": "the same, for randomness of a later round, while a message waits",
    "check": "check ciphertexts",
    "packing": "the rest of encryption, products and decryption: packing, masks, conversions",
    "state machine": "the rest of the state machines: fixed point, scores, penalty",
    "optimise": "the step of the optimiser",
    "protobuf": "make, serialise, parse and check messages",
    "gRPC": "callbacks of gRPC in the event loop",
    "event loop": "other callbacks of the event loop",
    "journal": "write the journal",
    "history": "write the history",
    "job thread": "the rest of the job's thread",
    "hand-over": "one thread has ended its part and another has not begun",
    "transport": "no Python runs: gRPC's threads, TLS, sockets",
}
"""What the time goes into."""
ARITHMETIC = ("arithmetic", "randomness")
BETWEEN = "between"
"""The place of what happens in no Python thread of the sender or the receiver."""
MOMENTS = ("made", "queued", "sending", "arrived", "taken")


class Piece(NamedTuple):
    """A time in which a thread does one kind of work, without the calls within it that are recorded as well."""

    start: int
    end: int
    kind: str
    busy: float
    """The share of it in which the thread had a processor."""


@dataclass
class _Frame:
    end: int
    kind: str
    rest: int
    """Nanoseconds without the recorded calls within."""
    rest_used: int
    """The same in processor time."""
    times: list[tuple[int, int]] = field(default_factory=list)


def pieces(spans: Iterable[Sequence[Any]]) -> list[Piece]:
    """Cut the nested spans of a thread into pieces that do not overlap, in order of time."""
    frames: list[_Frame] = []
    stack: list[_Frame] = []
    at = 0

    def advance(to: int) -> None:
        nonlocal at
        while stack and stack[-1].end <= to:
            ended = stack.pop()
            ended.times.append((at, ended.end))
            at = ended.end
        if stack and to > at:
            stack[-1].times.append((at, to))
        at = max(at, to)

    for start, end, used, used_end, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
        advance(start)
        if kind == "arithmetic" and any(frame.kind == "prepare" for frame in stack):
            kind = "randomness"  # noqa: PLW2901
        if stack:
            stack[-1].rest -= end - start
            stack[-1].rest_used -= used_end - used
        frames.append(_Frame(end, kind, end - start, used_end - used))
        stack.append(frames[-1])
    advance(max((frame.end for frame in frames), default=0))
    found = [
        Piece(start, end, frame.kind, min(1.0, max(0.0, frame.rest_used / max(1, frame.rest))))
        for frame in frames
        for start, end in frame.times
        if end > start
    ]
    return sorted(found)


class Timeline:
    """Pieces in order of time, to look up by time."""

    def __init__(self, found: list[Piece]) -> None:
        self._pieces = found
        self._starts = [piece.start for piece in found]

    def at(self, time: int) -> Piece | None:
        """Return the piece at a time, or None."""
        index = bisect_right(self._starts, time) - 1
        if index < 0 or self._pieces[index].end <= time:
            return None
        return self._pieces[index]

    def bounds(self, start: int, end: int) -> Iterator[int]:
        """Yield the moments between two times at which a piece begins or ends."""
        for piece in self._pieces[max(0, bisect_right(self._starts, start) - 1) : bisect_right(self._starts, end)]:
            yield from (time for time in (piece.start, piece.end) if start < time < end)


class Exchange(NamedTuple):
    """The work of a state machine on one message."""

    start: int
    end: int
    sender: str
    message: str


class Process:
    """What one process has noted.

    Args:
        role: its role.
        notes: what `recorder.write` has written.
    """

    def __init__(self, role: Role, notes: Mapping[str, Any]) -> None:
        self.role = role
        loop: list[Any] = []
        job: list[Any] = []
        kernel: list[Any] = []
        for name, spans in notes["spans"].items():
            if name.startswith("MainThread"):
                loop += spans
            elif name.startswith(f"{role}-"):
                job += spans
            kernel += [span for span in spans if span[4] == "arithmetic"]
        self.loop, self.job = Timeline(pieces(loop)), Timeline(pieces(job))
        self.kernel = Timeline(_union(kernel))
        self.exchanges = sorted(Exchange(*each) for each in notes["exchanges"])
        self.moments: dict[tuple[str, str, str], int] = {}
        for time, moment, peer, message in notes["crossings"]:
            self.moments.setdefault((moment, peer, message), time)

    def local(self, start: int, end: int) -> Iterator[tuple[str, int, float]]:
        """Yield what the process does between two times: the kind, the nanoseconds, and the share with a processor."""
        for first, last in _cut(start, end, self.job, self.loop, self.kernel):
            of_job = self.job.at(first)
            if of_job is not None and of_job.kind in ("prepare", "randomness"):
                yield "randomness", last - first, 1.0
            elif self.kernel.at(first) is not None:
                yield "arithmetic", last - first, 1.0
            elif (piece := of_job or self.loop.at(first)) is not None:
                yield piece.kind, last - first, piece.busy
            else:
                yield "hand-over", last - first, 0.0


def _union(spans: Iterable[Sequence[Any]]) -> list[Piece]:
    """Return the times in which at least one of the spans runs."""
    found: list[Piece] = []
    for start, end, *_ in sorted(spans, key=lambda span: span[0]):
        if found and start <= found[-1].end:
            found[-1] = found[-1]._replace(end=max(end, found[-1].end))
        else:
            found.append(Piece(start, end, "arithmetic", 1.0))
    return found


def _cut(start: int, end: int, *timelines: Timeline) -> Iterator[tuple[int, int]]:
    moments = {start, end}
    for timeline in timelines:
        moments.update(timeline.bounds(start, end))
    return pairwise(sorted(moments))


class Part(NamedTuple):
    """Some time of a critical path."""

    place: str
    """The role of the process that it belongs to, or `BETWEEN`."""
    kind: str
    nanoseconds: int
    busy: float
    """The share of it in which the thread had a processor."""


@dataclass
class CriticalPath:
    """The critical path of one round."""

    nanoseconds: int
    parts: list[Part]
    messages: list[tuple[str, str, str, dict[str, float]]]
    """The messages that the path crosses with, from the last to the first: sender, receiver, message, and the
    milliseconds from each moment to the next."""


def critical_path(processes: Mapping[str, Process], number: int) -> CriticalPath:
    """Find the critical path of a round; see the head of this module.

    Args:
        processes: the three processes, by role.
        number: the number of the round, which is not the last.

    Raises:
        KeyError: the notes lack a message.
    """
    begun, end = (_begin(processes[Role.COORDINATOR], each) for each in (number, number + 1))
    parts: list[Part] = []
    messages: list[tuple[str, str, str, dict[str, float]]] = []
    process, time = processes[Role.COORDINATOR], end
    while time > begun:
        index = bisect_right(process.exchanges, Exchange(time, 0, "", "")) - 1
        exchange, before = process.exchanges[index], process.exchanges[index - 1]
        if process.role is Role.COORDINATOR and exchange.start < begun:
            parts += _local(process, begun, time)
            break
        arrived = process.moments["arrived", exchange.sender, exchange.message]
        if index > 0 and before.end > arrived:
            parts += _local(process, before.end, time)
            time = before.end
            continue
        parts += _local(process, arrived, time)
        sender = processes[exchange.sender]
        moments = {each: sender.moments[each, process.role, exchange.message] for each in ("made", "queued", "sending")}
        moments |= {"arrived": arrived, "taken": exchange.start}
        steps = {f"{a} to {b}": (moments[b] - moments[a]) / 1e6 for a, b in pairwise(MOMENTS)}
        messages.append((sender.role, process.role, exchange.message.split()[0], steps))
        parts += _local(sender, moments["made"], moments["sending"])
        parts += _hop(sender, process, moments["sending"], arrived)
        process, time = sender, moments["made"]
    return CriticalPath(end - begun, parts, messages)


def _begin(coordinator: Process, number: int) -> int:
    message = f"BeginRound {number} 1 0"
    return min(time for (moment, _, name), time in coordinator.moments.items() if (moment, name) == ("made", message))


def _local(process: Process, start: int, end: int) -> list[Part]:
    return [Part(process.role, *each) for each in process.local(start, end)]


def _hop(sender: Process, receiver: Process, start: int, end: int) -> Iterator[Part]:
    for first, last in _cut(start, end, sender.loop, receiver.loop):
        for process in (sender, receiver):
            if (piece := process.loop.at(first)) is not None:
                yield Part(process.role, piece.kind, last - first, piece.busy)
                break
        else:
            yield Part(BETWEEN, "transport", last - first, 0.0)


def read_processes(paths: Mapping[Role, Path]) -> dict[str, Process]:
    """Return the three processes from their notes."""
    return {role: Process(role, json.loads(path.read_text())) for role, path in paths.items()}


def profile(paths: Sequence[CriticalPath]) -> dict[str, Any]:
    """Return medians over critical paths, in milliseconds.

    Returns:
        `milliseconds` is the length. `parts` has, by kind of work and by place, the median. `waiting` has, by kind of
        work, the time in which the thread had no processor: it waited for one, for the interpreter's lock or for the
        disk. `not_arithmetic` is a share. `messages` has the steps of each message on the path.
    """
    sums: list[dict[tuple[str, str], float]] = []
    waits: list[dict[str, float]] = []
    steps: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    shares = []
    for path in paths:
        of_path: defaultdict[tuple[str, str], float] = defaultdict(float)
        waiting: defaultdict[str, float] = defaultdict(float)
        for place, kind, nanoseconds, busy in path.parts:
            of_path[kind, place] += nanoseconds / 1e6
            waiting[kind] += nanoseconds / 1e6 * (1 - busy)
        sums.append(of_path)
        waits.append(waiting)
        arithmetic = sum(ms for (kind, _), ms in of_path.items() if kind in ARITHMETIC)
        shares.append(1 - arithmetic / (path.nanoseconds / 1e6))
        for sender, receiver, kind, each in path.messages:
            steps[f"{kind} from the {sender} to the {receiver}"].append(each)

    def median(values: Iterable[float]) -> float:
        return round(statistics.median(values), 3)

    places = (*map(str, Role), BETWEEN)
    return {
        "milliseconds": median(path.nanoseconds / 1e6 for path in paths),
        "parts": {
            kind: {place: median(each.get((kind, place), 0.0) for each in sums) for place in places} for kind in KINDS
        },
        "waiting": {kind: median(each.get(kind, 0.0) for each in waits) for kind in KINDS},
        "not_arithmetic": median(shares),
        "messages": {
            name: {step: median(one[step] for one in each) for step in each[0]}
            for name, each in steps.items()
            if len(each) > len(paths) / 2
        },
    }


def table(found: Mapping[str, Any]) -> str:
    """Return a profile as text."""
    places = (*map(str, Role), BETWEEN)
    lines = [f"{'milliseconds':<16}" + "".join(f"{place:>13}" for place in places) + f"{'waiting':>13}"]
    for kind, of_kind in found["parts"].items():
        cells = [of_kind[place] for place in places] + [found["waiting"][kind]]
        lines.append(f"{kind:<16}" + "".join(f"{cell:13.2f}" for cell in cells) + f"   {KINDS[kind]}")
    lines += ["waiting: the part in which the thread waited for a processor, the interpreter's lock or the disk", ""]
    for name, steps in found["messages"].items():
        lines.append(f"{name:<52}" + ", ".join(f"{step} {ms:.2f}" for step, ms in steps.items()))
    lines.append("")
    lines.append(f"critical path {found['milliseconds']:.1f} ms, not arithmetic {found['not_arithmetic']:.0%}")
    return "\n".join(lines)
