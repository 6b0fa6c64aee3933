"""The timeline of a whole job, for `benchmarks/credit.py --profile`: the steps of its start and end, and its rounds.

`recorder.py` calls `record_steps` in each server, and writes what it has noted. `read_timeline` puts the notes of the
three servers together.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

from trilateral.common.base.roles import Role

Span: TypeAlias = tuple[int, int, int, int, str]
"""Start and end of a call, both also in processor time of its thread, and the kind of work. Times in nanoseconds."""

FIRST_ROUND, LAST_STEP = "BeginRound for the host is ready", "FinishJob for the host is ready"
PARTY_STEPS = {
    "read_party_table": "read the table",
    "make_party_data": "make the training columns",
    "label_secrecy": "count the secret of the labels",
    "draw_start": "draw the first weights",
    "check_public_key": "check the key",
    "make_cipher": "tabulate randomness",
    "save_model": "write the model",
}

now, processor_time = time.monotonic_ns, time.thread_time_ns
notes: list[Span] = []
"""The steps of this process."""


def recorded(function: Callable[..., Any], kind: str, spans: Callable[[], list[Span]]) -> Callable[..., Any]:
    """Return a function that does the same and adds a span to `spans()`."""

    @wraps(function, updated=())
    def recording(*args: Any, **kwargs: Any) -> Any:
        kept = spans()
        start, used = now(), processor_time()
        try:
            return function(*args, **kwargs)
        finally:
            kept.append((start, now(), used, processor_time(), kind))

    return recording


def _noted(function: Callable[..., Any], step: str) -> Callable[..., Any]:
    return recorded(function, step, lambda: notes)


def _note_calls(owner: Any, steps: Mapping[str, str]) -> None:
    for name, step in steps.items():
        setattr(owner, name, _noted(getattr(owner, name), step))


def record_steps() -> None:
    """Replace functions of the product by functions that also note when they ran."""
    from trilateral.common.data.model.model_file import PartyModel
    from trilateral.common.data.tables.id_list import Ids
    from trilateral.common.jobs import party_jobs
    from trilateral.common.jobs.journal import Journal
    from trilateral.common.jobs.links import Link
    from trilateral.common.jobs.party_record import PartyRecord
    from trilateral.common.protocol.messages import BeginRound, FinishJob
    from trilateral.coordinator import jobs as coordinator_jobs

    _note_calls(coordinator_jobs, {"generate_private_key": "generate the key"})
    _note_calls(party_jobs, PARTY_STEPS)
    _note_calls(PartyRecord, {"check_table": "compare the table with earlier sessions"})
    _note_calls(Ids, {"digest": "digest the IDs"})
    _note_calls(Journal, dict.fromkeys(("add", "set_facts", "set_outcome", "write_round"), "write to the journal"))
    PartyModel.of = staticmethod(_noted(PartyModel.of, "assess the model"))  # type: ignore[method-assign]
    send, call = Link.send, Link.call

    def noted_send(self: Any, message: Any) -> None:
        if isinstance(message, BeginRound | FinishJob):
            at = now()
            notes.append((at, at, 0, 0, f"{type(message).__name__} for the {self._peer.role} is ready"))
        send(self, message)

    async def noted_call(self: Any, message: Any) -> None:
        start = now()
        try:
            await call(self, message)
        finally:
            step = f"send {type(message).__name__} to the {self._peer.role}"
            notes.append((start, now(), 0, 0, step))

    Link.send, Link.call = noted_send, noted_call  # type: ignore[method-assign]


@dataclass(frozen=True)
class Step:
    """A step of a job in one process."""

    process: str
    step: str
    begins: float
    """Seconds after the client's request."""
    seconds: float
    processor_seconds: float
    """Of the step's own thread."""


@dataclass(frozen=True)
class Timeline:
    """The steps of a job before and after its rounds, and where its time goes."""

    steps: list[Step]
    start: float
    """Seconds from the client's request to the first round."""
    rounds: float
    """Seconds from the first round to the last step."""
    end: float
    """Seconds from there until the client knows that the job has finished."""

    def to_json(self) -> dict[str, Any]:
        """Return everything, fit for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = ["milliseconds", f"{'begins':>9} {'takes':>8} {'processor':>9}  process      step"]
        lines += [
            f"{1e3 * each.begins:9.1f} {1e3 * each.seconds:8.1f} {1e3 * each.processor_seconds:9.1f}"
            f"  {each.process:<11}  {each.step}"
            for each in self.steps
        ]
        return "\n".join([*lines, f"start {self.start:.3f} s, rounds {self.rounds:.3f} s, end {self.end:.3f} s"])


def read_timeline(files: Mapping[Role, Path], began: int, ended: int) -> Timeline:
    """Return the timeline of one job from the notes of the servers.

    Args:
        files: what `recorder.py` has written for each server.
        began: when the client sent its request, by `time.monotonic_ns`, the same clock in all processes.
        ended: when the client knew that the job had finished.
    """
    noted = {role: json.loads(path.read_text())["steps"] for role, path in files.items()}
    return make_timeline(noted, began, ended)


def make_timeline(noted: Mapping[Role, list[Span]], began: int, ended: int) -> Timeline:
    """Return the timeline of one job from the notes of the servers; see `read_timeline`."""
    of_coordinator = noted[Role.COORDINATOR]
    first = min(start for start, _, _, _, step in of_coordinator if step == FIRST_ROUND)
    last = max(start for start, _, _, _, step in of_coordinator if step == LAST_STEP)

    def steps() -> Iterator[Step]:
        for role, of_role in noted.items():
            for start, end, used, used_end, step in of_role:
                if began <= start < first or last <= start <= ended:
                    yield Step(str(role), step, (start - began) / 1e9, (end - start) / 1e9, (used_end - used) / 1e9)

    return Timeline(
        sorted(steps(), key=lambda each: each.begins),
        start=(first - began) / 1e9,
        rounds=(last - first) / 1e9,
        end=(ended - last) / 1e9,
    )
