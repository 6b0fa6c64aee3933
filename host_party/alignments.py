"""The host's alignments: who may open one, on which IDs, for how long."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import TypeVar

from trilateral.common.base.errors import ConfigError, DataError, PeerError, PolicyError, ProtocolError, notes
from trilateral.common.base.roles import Role
from trilateral.common.base.tasks import start
from trilateral.common.config.dataset import IdForm
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.alignment.host_session import HostSession
from trilateral.common.data.alignment.sources import IdSource, MemoryIds
from trilateral.common.data.tables.id_form import describe_changes, rules_of
from trilateral.common.data.tables.table import read_table_ids
from trilateral.common.jobs.policy import spend_ids
from trilateral.common.jobs.quota import IdQuota
from trilateral.common.observe.audit import Audit
from trilateral.common.protocol.alignment import Aligned, AlignmentProgress
from trilateral.common.protocol.ids import NONCE_BYTES
from trilateral.common.rpc.access import calling
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.errors import UnknownJobError, public_error

log = logging.getLogger(__name__)

T = TypeVar("T")

SESSION_BYTES = 16
MAX_LOOSE = 2
"""Sessions at a time that belong to no job, since each holds the IDs of a table."""
MAX_DONE = 100
"""Sessions of jobs whose good end is remembered."""
CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Offer:
    """IDs that the guest may align with.

    Attributes:
        source: of the host's IDs.
        form: by which they were brought to their normal form.
    """

    source: IdSource
    form: IdForm


def load_offer(config: ProcessConfig, dataset: str) -> Offer:
    """Read the IDs of a dataset of this process's configuration.

    Raises:
        PolicyError: it has none of that name.
        DataError: its IDs cannot be used.
    """
    found = config.datasets.get(dataset)
    if found is None:
        raise PolicyError(f"the host has no dataset named {dataset}: name one of its configuration, or add it there")
    try:
        normal = read_table_ids(found)
    except DataError as error:
        for note in notes(error):
            log.warning("%s: %s: %s", found.path.name, error, note)
        raise DataError(f"the host: {error}") from error
    if changes := describe_changes(normal.changed):
        log.info("%s: IDs changed by rules of `id_form`: %s", found.path.name, changes)
    return Offer(MemoryIds(normal.ids), found.id_form)


@dataclass(frozen=True)
class Asked:
    """What the guest asks for when it opens an alignment.

    Attributes:
        form: rules of the normal form of its IDs.
        n_ids: how many it says that it has.
        nonce: the guest's.
        purpose: what the audit log says of it; a session with a `run` in it is a job's.
    """

    form: Sequence[str]
    n_ids: int
    nonce: bytes
    purpose: dict[str, str]


@dataclass(eq=False)
class Opened:
    """A session that is open.

    Attributes:
        id: by which the guest names it.
        purpose: the run of a job, or what the audit log says of it otherwise.
        nonce: the host's.
        session: what it answers.
        common: places of the common IDs in each shard that is settled, for a job.
        settled: set when the guest has told of every shard.
        key: of the opening, if it belongs to no job.
    """

    id: bytes
    purpose: dict[str, str]
    nonce: bytes
    session: HostSession
    common: dict[int, list[int]] = field(default_factory=dict)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    key: bytes = b""

    @property
    def of_job(self) -> bool:
        """Whether it lives as long as its job."""
        return "run" in self.purpose


@dataclass(frozen=True)
class _Loose:
    """A session that belongs to no job, from the moment it is asked for to its end."""

    asked: Asked
    opening: "asyncio.Task[Opened]"


class JobAlignment:
    """A job's alignment at the host: first the guest may ask for it, then there are IDs, then it is done."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.offered: asyncio.Future[Offer] = loop.create_future()
        self.opened: asyncio.Future[Opened] = loop.create_future()
        self.guest_nonce: bytes | None = None
        self.opening: asyncio.Task[None] | None = None

    async def common_rows(
        self, ids: Sequence[str], form: IdForm, report: Callable[[AlignmentProgress], None]
    ) -> Aligned:
        """Offer the IDs; return what is common, once the guest has told of every shard. The guest reports."""
        del report
        source = MemoryIds(ids)
        self.offered.set_result(Offer(source, form))
        opened = await self.opened
        await opened.settled.wait()
        dealing = opened.session.dealing
        return Aligned(source.common_rows(opened.common), dealing.n_host, dealing.n_guest)

    def fail(self, error: Exception) -> None:
        """Tell whoever waits, and whoever asks from now on, why there is no alignment."""
        public = public_error(error, Role.HOST)
        for future in (self.offered, self.opened):
            if not future.done():
                # A copy has no traceback, which would keep the table.
                future.set_exception(type(public)(str(public)))
                future.exception()  # Nobody need be waiting.


class Alignments:
    """All sessions of one host.

    Args:
        config: of this process.
        audit: takes down each session.
    """

    def __init__(self, config: ProcessConfig, audit: Audit) -> None:
        self._audit = audit
        self._seconds = config.limits.party_timeout
        self._quota = IdQuota(config.state, config.policy.max_ids_a_day)
        self._pool = ThreadPoolExecutor(CORES, thread_name_prefix="alignment")
        self._sessions: dict[bytes, Opened] = {}
        self._expected: dict[JobKey, JobAlignment] = {}
        self._loose: dict[bytes, _Loose] = {}
        self._done: deque[bytes] = deque(maxlen=MAX_DONE)

    # --- for a job

    @contextmanager
    def expect(self, run: JobKey) -> Iterator[JobAlignment]:
        """Let the guest align for this run of a job within the block, once it is offered IDs."""
        alignment = self._expected[run] = JobAlignment()
        try:
            yield alignment
        except Exception as error:
            alignment.fail(error)  # The guest may wait already: it hears the same reason.
            raise
        finally:
            alignment.fail(PeerError("the host has ended the job"))
            if alignment.opening is not None:
                alignment.opening.cancel()
            del self._expected[run]
            for opened in [one for one in self._sessions.values() if one.purpose == _run_fields(run)]:
                self._end(opened, "finished" if opened.session.complete else "failed")

    async def open_for_job(self, run: JobKey, form: Sequence[str], n_ids: int, nonce: bytes) -> Opened:
        """Open the one session of a run; the same request again gets the same session.

        Raises:
            UnknownJobError: there is no such run here, or not yet.
            PolicyError: too many IDs, or a second session.
            ConfigError: the guest's IDs are in another form.
        """
        alignment = self._expected.get(run)
        if alignment is None:
            raise UnknownJobError(f"the host does not align for this run of the job {run.name}")
        if alignment.opening is None:
            alignment.guest_nonce = nonce
            opening = self._open_offered(alignment, Asked(form, n_ids, nonce, _run_fields(run)))
            alignment.opening = asyncio.create_task(opening)
        elif alignment.guest_nonce != nonce:
            raise PolicyError(f"the guest has opened an alignment for the job {run.name} already: one is enough")
        return await asyncio.shield(alignment.opened)

    async def _open_offered(self, alignment: JobAlignment, asked: Asked) -> None:
        """In a task of its own, since whoever calls may hang up and call again."""
        try:
            offer = await alignment.offered
            opened = await self._begin(lambda: offer, asked)
        except Exception as error:
            alignment.fail(error)
        else:
            alignment.opened.set_result(opened)

    # --- for anything else

    async def open_loose(self, key: bytes, load: Callable[[], Offer], asked: Asked) -> Opened:
        """Open a session that belongs to no job; it ends when the guest closes it or says nothing for long.

        While it is open the same again gets the same session, since an answer may be lost.

        Args:
            key: by which the same is known.
            load: reads the host's IDs; it is called in a thread.
            asked: what the guest asks for.

        Raises:
            PolicyError: too many IDs, or sessions.
            ConfigError: the guest's IDs are in another form.
            ProtocolError: something else was opened by this key.
            TrilateralError: what `load` raises.
        """
        loose = self._loose.get(key)
        if loose is None:
            if len(self._loose) >= MAX_LOOSE:
                raise PolicyError(
                    f"the host has {MAX_LOOSE} alignments open beside those of jobs: wait until one has ended"
                )
            loose = self._loose[key] = _Loose(asked, start(self._open_loose(key, load, asked)))
        elif loose.asked != asked:
            raise ProtocolError("the guest opens an alignment again, and not the same")
        return await asyncio.shield(loose.opening)

    async def _open_loose(self, key: bytes, load: Callable[[], Offer], asked: Asked) -> Opened:
        try:
            opened = await self._begin(load, asked)
        except BaseException:
            del self._loose[key]
            raise
        opened.key = key
        self._keep(opened)
        return opened

    # --- what is asked in a session

    def find(self, session: bytes) -> Opened:
        """The session of that name, which then lives on.

        Raises:
            PeerError: there is none.
        """
        opened = self._sessions.get(session)
        if opened is None:
            raise PeerError("the host does not know this alignment: it has ended, or the host was restarted")
        self._keep(opened)
        return opened

    async def intersect(self, session: bytes, shard: int, points: bytes) -> tuple[bytes, bytes]:
        """Answer for one shard; see `HostSession`."""
        opened = self.find(session)
        try:
            opened.session.check_request(shard, points)
        except ProtocolError:
            if opened.session.over:
                self.close(session)
            raise
        answer = await self.compute(opened.session.answer, shard, points)
        self.find(session)
        return answer

    async def settle(self, session: bytes, shard: int, tags: bytes) -> None:
        """Take what is common in one shard of a job's alignment; see `HostSession`."""
        if session in self._done:
            return  # Its last answer was lost: the job goes on already.
        opened = self.find(session)
        if not opened.of_job:
            raise ProtocolError("the guest tells what is common in an alignment that is none of a job")
        opened.common[shard] = await asyncio.to_thread(opened.session.settle, shard, tags)
        # The session is complete once the last thread has settled a shard: the places of another may be on their way.
        if len(opened.common) == opened.session.dealing.n_shards:
            opened.settled.set()

    def close(self, session: bytes) -> None:
        """End a session that belongs to no job, if it goes on; a job ends its own."""
        opened = self._sessions.get(session)
        if opened is not None and not opened.of_job:
            done = opened.session.n_answered == opened.session.dealing.n_shards
            self._end(opened, "finished" if done and not opened.session.over else "failed")

    async def compute(self, function: Callable[..., T], *args: object) -> T:
        """Call a function in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    # --- a session's life

    async def _begin(self, load: Callable[[], Offer], asked: Asked) -> Opened:
        n_ids = asked.n_ids
        # What the guest has announced counts before a table is read for it, and its padding once there is its number.
        await asyncio.to_thread(spend_ids, n_ids, self._quota, Role.HOST)
        offer = await self.compute(load)
        check_form(asked.form, offer.form)
        nonce, n_host = token_bytes(NONCE_BYTES), offer.source.n_ids
        dealing = Dealing.of(asked.nonce, nonce, n_ids, n_host)
        await asyncio.to_thread(spend_ids, dealing.guest_room - n_ids, self._quota, Role.HOST)
        self._audit.allowed(
            calling(),
            "OpenAlignment",
            **asked.purpose,
            n_ids={"host": n_host, "guest": n_ids},
            n_points={"host": dealing.host_room, "guest": dealing.guest_room},
        )
        session = await self.compute(HostSession, offer.source, dealing)
        opened = Opened(token_bytes(SESSION_BYTES), asked.purpose, nonce, session)
        self._sessions[opened.id] = opened
        log.info("alignment: %d IDs of the host, %d of the guest, in %d shards", n_host, n_ids, dealing.n_shards)
        return opened

    def _keep(self, opened: Opened) -> None:
        """Let the session live for another while, if its life is its own."""
        if opened.timer is not None:
            opened.timer.cancel()
        if not opened.of_job:
            opened.timer = asyncio.get_running_loop().call_later(self._seconds, self._end, opened, "expired")

    def _end(self, opened: Opened, result: str) -> None:
        del self._sessions[opened.id]
        self._loose.pop(opened.key, None)
        if opened.of_job and opened.session.complete:
            self._done.append(opened.id)
        if opened.timer is not None:
            opened.timer.cancel()
        session = opened.session
        self._audit.closed(
            method="OpenAlignment",
            **opened.purpose,
            result=result,
            shards={"all": session.dealing.n_shards, "intersected": session.n_answered, "settled": session.n_settled},
            n_common=session.n_common,
        )


def check_form(guests: Sequence[str], own: IdForm) -> None:
    """Check that the guest's IDs, by the rules that it tells, are in the same form as the host's.

    Raises:
        ConfigError: they are not.
    """
    if list(guests) != rules_of(own):
        raise ConfigError(
            f"the guest's IDs are in the form {_listed(guests)} and the host's in {_listed(rules_of(own))}: give both "
            "datasets the same `id_form`"
        )


def _run_fields(run: JobKey) -> dict[str, str]:
    return {"job": run.name, "run": run.run_id.hex()}


def _listed(rules: Sequence[str]) -> str:
    return f"({', '.join(rules)})"
