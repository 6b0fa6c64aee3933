"""What the page shows: the jobs, their rounds, the health of the peers and the last check.

The coordinator knows all jobs. A party asks it as `trilateral watch` does, so it shows what `operators.watch` permits.
While the coordinator is away, it shows what its own journal and its own histories say. While no page is open, nothing
is asked.
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.base.tracebacks import where
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import JOB_NAME
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.history_file import read_history
from trilateral.common.pb.v1.jobs_pb2 import RoundSummary
from trilateral.common.process.description import ask_description
from trilateral.common.process.job_client import JobClient
from trilateral.common.process.job_progress import JobState, Pace, Progress, progress_of
from trilateral.common.process.server import PageParts
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.errors import AccessError, from_rpc_error
from trilateral.common.rpc.versions import own_version
from trilateral.common.ui.checking import Check

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval at which to ask for news while a page is open."""
LOST_SECONDS, REFUSED_SECONDS = 3.0, 60.0
"""Interval at which to ask a coordinator that does not answer, and one that has refused to tell."""
PEER_SECONDS = 10.0
"""Interval at which to ask the peers how they are."""
ANSWER_SECONDS = 5.0
"""How long the answer of a process that is well takes at most."""
MAX_PAGES = 32
"""Pages that may be open at the same time."""
MAX_JOBS = 10_000
"""Jobs that are shown: the newest."""
MAX_ROUNDS = 50_000
"""Rounds and attempts of a job that are shown; five times as many as policies permit by default."""
LINES_AT_ONCE = 1000
"""Rounds in one event. The process does other work between two events."""
MAX_NOTES = 200
MAX_TEXT = 2000
"""Characters of a text that another process has sent."""

News = tuple[str, Any]
"""The name of an event of the page, and what it says, in the types of JSON."""


@dataclass
class _Lines:
    """The rounds of a job from one source, in the types of JSON."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    place: int = 0
    generation: int = 0
    """Rises when what was known before counts no longer."""

    def take(self, lines: list[dict[str, Any]], place: int, *, is_from_start: bool) -> None:
        if is_from_start and (self.place or self.lines):
            self.generation, self.lines = self.generation + 1, []
        self.lines += lines
        self.place = place

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= MAX_ROUNDS


@dataclass
class _Job:
    """What is asked about a job only while a page shows it."""

    n_views: int = 0
    rounds: _Lines = field(default_factory=_Lines)
    work: _Lines = field(default_factory=_Lines)
    notes: list[str] = field(default_factory=list)
    noted: object = None
    """The status for which the notes were asked."""
    has_looked: bool = False


class View:
    """What one page has been told.

    Args:
        board: what there is to tell.
        job: the job that the page shows in full; None for none.
    """

    def __init__(self, board: "Board", job: str | None) -> None:
        self._board = board
        self._job = job
        self._told: dict[str, Any] = {}
        self._lines: dict[str, tuple[int, int]] = {}

    @property
    def is_ready(self) -> bool:
        """Whether there is something to tell: before the first look, the news would be that there are no jobs."""
        return self._board.has_looked and (self._job is None or self._board.viewed[self._job].has_looked)

    def news(self) -> Iterator[News]:
        """Yield what the page has not been told yet."""
        board = self._board
        yield from self._changed("process", board.process())
        yield from self._changed("contact", {"lost": board.lost})
        gone = {name for name in self._told if name.startswith("job ")} - {f"job {name}" for name in board.jobs}
        for key in gone:
            del self._told[key]
            yield "gone", {"job": key.removeprefix("job ")}
        for name, shown in list(board.jobs.items()):
            yield from self._changed(f"job {name}", shown)
        yield from self._changed("peers", board.peers)
        yield from self._changed("check", board.check.shown)
        if self._job is not None and self._job in board.viewed:
            viewed = board.viewed[self._job]
            yield from self._changed("notes", {"job": self._job, "notes": viewed.notes})
            yield from self._new_lines("rounds", viewed.rounds)
            yield from self._new_lines("work", viewed.work)

    def _changed(self, key: str, content: Any) -> Iterator[News]:
        known = self._told.get(key)
        # Most of many jobs are the same object as before, which needs no comparison.
        if known is not content and known != content:
            self._told[key] = content
            yield key.partition(" ")[0], content

    def _new_lines(self, kind: str, source: _Lines) -> Iterator[News]:
        generation, n_told = self._lines.get(kind, (-1, 0))
        is_from_start = generation != source.generation
        if is_from_start:
            n_told = 0
        n_lines = len(source.lines)
        self._lines[kind] = source.generation, n_lines
        for start in range(n_told, max(n_lines, n_told + is_from_start), LINES_AT_ONCE):
            lines = source.lines[start : min(start + LINES_AT_ONCE, n_lines)]
            yield kind, {"job": self._job, "is_from_start": is_from_start and start == 0, "lines": lines}


class Board:
    """Keeps what the pages show.

    Args:
        parts: what the page is made of.

    Attributes:
        client: calls the coordinator with the certificate of this process. The board needs it open.
        jobs: each job that is known, by its name, in the types of JSON.
        lost: why the coordinator does not tell about the jobs; None if it does.
        peers: how the other two processes are.
        check: the check of this process.
        changed: set at the next change; another event then takes its place.
        is_closed: whether the process stops.
        n_views: how many pages are open.
        viewed: more about each job that a page shows in full.
    """

    def __init__(self, parts: PageParts) -> None:
        self._process_jobs = parts.jobs
        self._peers = peers = parts.peers
        self.client = JobClient(self.config, peers.get(Role.COORDINATOR))
        self.jobs: dict[str, dict[str, Any]] = {}
        self.lost: str | None = None
        self.peers: list[dict[str, Any]] = [{"role": role, "address": peer.address} for role, peer in peers.items()]
        self.check = Check(parts.source, self._tell)
        self.viewed: dict[str, _Job] = {}
        self.changed = asyncio.Event()
        self.is_closed = False
        self.has_looked = False
        """Whether the jobs are up to date."""
        self._started = time.time()
        self._asks_at = 0.0
        """When to ask the coordinator again."""
        self._woken = asyncio.Event()
        """Set when another page is opened, which should not wait for the next look."""
        self._results: set[str] = set()
        """Jobs of which this process has a result."""
        self._paces: dict[str, Pace] = {}
        self.n_views = 0
        self._looking: list[asyncio.Task[None]] = []

    @property
    def config(self) -> ProcessConfig:
        """The configuration of this process now."""
        return self._process_jobs.config

    def process(self) -> dict[str, Any]:
        """Return what the page shows of this process."""
        config = self.config
        return {
            "role": config.role,
            "version": own_version().package,
            "started": self._started,
            "allow_changes": config.ui.allow_changes,
            "can_check": self.check.is_possible,
        }

    # --- open pages

    @contextmanager
    def viewing(self, job: str | None) -> Iterator[View]:
        """Keep the board up to date within the block.

        Args:
            job: the job that the page shows in full; None for none.
        """
        self.n_views += 1
        if job is not None:
            self.viewed.setdefault(job, _Job()).n_views += 1
        if self.n_views == 1:
            self._looking = [
                asyncio.create_task(self._repeat(LOOK_SECONDS, self._look, self._woken)),
                asyncio.create_task(self._repeat(PEER_SECONDS, self._look_at_peers, asyncio.Event())),
            ]
        self._woken.set()
        try:
            yield View(self, job)
        finally:
            self.n_views -= 1
            if job is not None:
                self.viewed[job].n_views -= 1
                if not self.viewed[job].n_views:
                    del self.viewed[job]
            if not self.n_views:
                self._stop_looking()

    @property
    def is_full(self) -> bool:
        """Whether no further page may be opened."""
        return self.n_views >= MAX_PAGES

    async def close(self) -> None:
        """End all views."""
        self.is_closed = True
        self._stop_looking()
        await self.check.close()
        self._tell()

    def _stop_looking(self) -> None:
        for task in self._looking:
            task.cancel()
        self._looking = []
        self.has_looked = False

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def _repeat(self, seconds: float, look: Callable[[], Awaitable[None]], woken: asyncio.Event) -> None:
        while True:
            woken.clear()
            try:
                await look()
            except Exception as error:  # The page must go on.
                log.error("the page cannot show all news: unexpected error: %s", where(error))
            self._tell()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken.wait()

    # --- jobs

    async def _look(self) -> None:
        if self._asks_at <= time.monotonic():
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    statuses = await self.client.statuses()
                self.jobs = {
                    progress.job: self._same_or(self._shown(progress))
                    for progress in map(progress_of, statuses[-MAX_JOBS:])
                    if re.fullmatch(JOB_NAME, progress.job)
                }
                self._paces = {name: pace for name, pace in self._paces.items() if name in self.jobs}
                self.lost = None
            except (TrilateralError, TimeoutError) as error:
                self.lost = str(error)[:MAX_TEXT] or "the coordinator does not answer"
                # The coordinator records each call that it refuses.
                pause = REFUSED_SECONDS if isinstance(error, AccessError) else LOST_SECONDS
                self._asks_at = time.monotonic() + pause
                self.jobs = await asyncio.to_thread(self._own_jobs)
        self.has_looked = True
        for name, viewed in list(self.viewed.items()):
            await self._look_at(name, viewed)

    def _same_or(self, shown: dict[str, Any]) -> dict[str, Any]:
        known = self.jobs.get(shown["job"])
        return known if known == shown else shown

    def _shown(self, progress: Progress) -> dict[str, Any]:
        left = self._paces.setdefault(progress.job, Pace()).seconds_left(progress)
        if progress.state.is_final:
            self._paces.pop(progress.job, None)
        return {
            "job": progress.job,
            "state": progress.state,
            "detail": progress.detail[:MAX_TEXT],
            "epoch": progress.epoch,
            "n_epochs": progress.n_epochs,
            "round": progress.round,
            "attempt": progress.attempt,
            "step": progress.step[:MAX_TEXT],
            "round_done": progress.round_done,
            "done": progress.rounds_done + progress.round_done,
            "most": progress.max_rounds,
            "loss": _finite(progress.loss),
            "seconds": _finite(progress.seconds),
            "seconds_left": _finite(left),
            "has_report": progress.state is JobState.FINISHED and self._had_result(progress.job),
        }

    def _had_result(self, job: str) -> bool:
        """Return the same, without looking again for a result that was there."""
        if job not in self._results and self.has_result(job):
            self._results.add(job)
        return job in self._results

    def has_result(self, job: str) -> bool:
        """Return whether this process has a result of a job, by a valid name."""
        folder = JobFolder(self.config.state, job)
        own = (folder.history,) if self.config.role is Role.COORDINATOR else (folder.model, folder.bins)
        return any(path.exists() for path in own)

    def _own_jobs(self) -> dict[str, dict[str, Any]]:
        """Return what this process knows by itself about its jobs, besides what was known last."""
        found: dict[str, dict[str, Any]] = {}
        with suppress(TrilateralError):  # The journal cannot be read, and says so in the log.
            for record in self._process_jobs.journal.all(with_facts=False):
                name = record.job.name
                found[name] = {
                    "job": name,
                    **self.jobs.get(name, {}),
                    "state": JobState.TRAINING if record.outcome is None else record.outcome,
                    "detail": record.reason[:MAX_TEXT],
                    "seconds_left": None,
                    "has_report": self.has_result(name),
                }
        return found

    def settings_of(self, job: str) -> dict[str, Any] | None:
        """Return the settings of a job from the journal of this process; None without a record of the job."""
        records = (record for record in self._process_jobs.journal.all(with_facts=False) if record.job.name == job)
        record = next(records, None)
        return None if record is None else record.job.model_dump(mode="json")

    async def _look_at(self, name: str, viewed: _Job) -> None:
        """Ask for more about a job that a page shows in full."""
        await self._read_work(name, viewed.work)
        if self.lost is None and name in self.jobs:
            await self._ask_about(name, viewed, self.jobs[name])
        viewed.has_looked = True

    async def _ask_about(self, name: str, viewed: _Job, status: Mapping[str, Any]) -> None:
        with suppress(TrilateralError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._ask_rounds(name, viewed.rounds)
                noted = {**status, "seconds": None, "seconds_left": None}
                if noted != viewed.noted:
                    notes = (await self.client.status(name)).notes
                    viewed.notes, viewed.noted = [note[:MAX_TEXT] for note in notes[-MAX_NOTES:]], noted

    async def _ask_rounds(self, name: str, known: _Lines) -> None:
        is_more = True
        while is_more and not known.is_full:
            answer = await self.client.rounds(name, known.place)
            is_more = answer.is_more and answer.place > known.place
            known.take(list(map(_summary, answer.rounds)), answer.place, is_from_start=answer.is_from_start)

    async def _read_work(self, name: str, known: _Lines) -> None:
        folder, is_more = JobFolder(self.config.state, name), True
        while is_more and not known.is_full:
            piece = await asyncio.to_thread(read_history, folder, known.place)
            is_more = piece.is_more
            known.take(list(map(_work, piece.lines)), piece.place, is_from_start=piece.is_from_start)

    # --- peers

    async def _look_at_peers(self) -> None:
        self.peers = await asyncio.gather(*map(self._ask, self._peers.values()))

    async def _ask(self, peer: Peer) -> dict[str, Any]:
        shown: dict[str, Any] = {"role": peer.role, "address": peer.address, "is_well": False}
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                told = await ask_description(await peer.connected(), self.config.role, ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            peer.doubt(error)
            return {**shown, "detail": str(from_rpc_error(error, str(peer)))[:MAX_TEXT]}
        except TrilateralError as error:
            return {**shown, "detail": str(error)[:MAX_TEXT]}
        except TimeoutError:
            return {**shown, "detail": f"{peer} does not answer within {ANSWER_SECONDS:g} s"}
        return {
            **shown,
            "is_well": told.role is peer.role,
            "detail": "" if told.role is peer.role else f"the process there is the {told.role}",
            "version": told.version.package,
            "clock_ahead": round(told.clock_ahead, 1) or 0.0,
        }


def _summary(told: RoundSummary) -> dict[str, Any]:
    line: dict[str, Any] = {"round": told.round, "attempt": told.attempt, "seconds": _finite(told.seconds)}
    for name in ("loss", "log_loss", "auc"):
        if told.HasField(name):
            line[name] = _finite(getattr(told, name))
    return line


def _work(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line of this process's own history says, without what the page does not show."""
    shown = {name: line[name] for name in ("round", "attempt", "seconds") if name in line}
    shown["loss"] = _finite(line.get("loss"))
    evaluation = line.get("evaluation") or {}
    for direction in ("sent", "received"):
        shown[direction] = sum(kind.get("bytes", 0) for kind in line.get(direction, {}).values())
    return shown | {name: _finite(evaluation[name]) for name in ("log_loss", "auc") if name in evaluation}


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
