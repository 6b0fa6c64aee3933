"""The host's open alignments: who may open one, on which IDs, and for how long."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import TypeVar

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import ConfigError, DataError, PeerError, PolicyError, ProtocolError, notes
from trilateral.common.base.roles import Role
from trilateral.common.base.tasks import start
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.compute.local import LOCAL
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.alignment.host_session import HostSession
from trilateral.common.data.alignment.sources import IdSource, MemoryIds
from trilateral.common.data.tables.id_form import describe_changes, form_of
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import read_table_ids
from trilateral.common.jobs.crew import Crew, Crews
from trilateral.common.jobs.policy import ALIGNMENT, check_counted, find_dataset, spend_ids
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
"""Maximum number of open sessions outside jobs. Each holds the IDs of a table."""
MAX_DONE = 100
"""How many completed sessions of jobs the host remembers."""


@dataclass(frozen=True)
class Offer:
    """IDs that the guest may align with.

    Attributes:
        source: the host's IDs.
        form: normal form of these IDs, as from `form_of`.
    """

    source: IdSource
    form: Sequence[str]


def load_offer(config: ProcessConfig, dataset: str) -> Offer:
    """Read the IDs of a dataset in this process's configuration.

    Raises:
        PolicyError: the configuration has no dataset of that name.
        DataError: the IDs cannot be used.
    """
    found = find_dataset(dataset, config.datasets, Role.HOST)
    try:
        normal = read_table_ids(found)
    except DataError as error:
        for note in notes(error):
            log.warning("%s: %s: %s", found.path.name, error, note)
        raise DataError(f"the host: {error}") from error
    if changes := describe_changes(normal.changed):
        log.info("%s: IDs changed by rules of `id_form`: %s", found.path.name, changes)
    return Offer(MemoryIds(normal.ids), form_of(found))


@dataclass(frozen=True)
class Asked:
    """The guest's request to open an alignment.

    Attributes:
        form: rules of the normal form of the guest's IDs.
        n_ids: number of IDs that the guest reports.
        nonce: the guest's nonce.
        purpose: fields for the audit log. A session whose fields include `run` belongs to a job.
    """

    form: Sequence[str]
    n_ids: int
    nonce: bytes
    purpose: dict[str, str]


@dataclass(eq=False)
class Opened:
    """One open session.

    Attributes:
        id: identifier that the guest uses.
        purpose: see `Asked`.
        nonce: the host's nonce.
        session: the host's side of the computation.
        crew: who computes.
        dealt: ends once the IDs are dealt to the shards, which takes place while the guest deals its own.
        common: for a job, the places of the common IDs in each settled shard.
        settled: set once every shard is settled.
        timer: ends a session outside a job when it expires.
        key: identifies the request to open a session outside a job.
        on_disclosure: for a job, called before each shard.
    """

    id: bytes
    purpose: dict[str, str]
    nonce: bytes
    session: HostSession
    crew: Crew
    dealt: "asyncio.Task[None]"
    common: dict[int, Rows] = field(default_factory=dict)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    key: bytes = b""
    on_disclosure: Callable[[], None] = lambda: None

    @property
    def of_job(self) -> bool:
        """Whether the session belongs to a job and ends with it."""
        return "run" in self.purpose


@dataclass(frozen=True)
class _Loose:
    """A session outside a job, from the request to its end."""

    asked: Asked
    opening: "asyncio.Task[Opened]"


class HostJobAlignment:
    """The alignment of one job at the host. The guest may ask for it before the host has offered its IDs.

    Args:
        on_disclosure: called before each shard; see `Aligner.expect`.
    """

    def __init__(self, on_disclosure: Callable[[], None]) -> None:
        self.on_disclosure = on_disclosure
        loop = asyncio.get_running_loop()
        self.offered: asyncio.Future[Offer] = loop.create_future()
        self.opened: asyncio.Future[Opened] = loop.create_future()
        self.guest_nonce: bytes | None = None
        self.opening: asyncio.Task[None] | None = None

    async def common_rows(
        self, ids: Ids, form: Sequence[str], on_progress: Callable[[AlignmentProgress], None]
    ) -> Aligned:
        """Offer the IDs, and return the common rows once the guest has confirmed every shard.

        Args:
            ids: the host's IDs in their normal form.
            form: this normal form.
            on_progress: not called. The guest reports the progress.

        Returns:
            The host's common rows, and how many IDs each party has.
        """
        del on_progress
        source = MemoryIds(ids)
        self.offered.set_result(Offer(source, form))
        opened = await self.opened
        await opened.settled.wait()
        dealing = opened.session.dealing
        return Aligned(source.common_rows(opened.common), dealing.n_host, dealing.n_guest)

    def fail(self, error: Exception) -> None:
        """Raise the reason why there is no alignment in every task that waits for it, now or later."""
        public = public_error(error, Role.HOST)
        for future in (self.offered, self.opened):
            if not future.done():
                # Set a copy without the traceback, which would keep the table in memory.
                future.set_exception(type(public)(str(public)))
                future.exception()  # Marks the error as seen, because there may be no waiter.


class Alignments:
    """All sessions of one host.

    Args:
        config: configuration of this process.
        audit: records each session.
        open_engine: makes the engine of a session.

    Attributes:
        config: as given. While the process runs, a changed configuration replaces it.
    """

    def __init__(self, config: ProcessConfig, audit: Audit, open_engine: OpenEngine = lambda: LOCAL) -> None:
        self.config = config
        self._audit = audit
        self._seconds = config.limits.party_timeout
        self._crews = Crews(open_engine)
        self._sessions: dict[bytes, Opened] = {}
        self._expected: dict[JobKey, HostJobAlignment] = {}
        self._loose: dict[bytes, _Loose] = {}
        self._done: deque[bytes] = deque(maxlen=MAX_DONE)

    @property
    def _quota(self) -> IdQuota:
        return IdQuota.of(self.config)

    # --- sessions of jobs

    @contextmanager
    def expect(self, run: JobKey, on_disclosure: Callable[[], None] = lambda: None) -> Iterator[HostJobAlignment]:
        """Let the guest align for this run of a job within the block, once the host has offered its IDs.

        Args:
            run: the run of the job.
            on_disclosure: called before each shard; see `Aligner.expect`.
        """
        alignment = self._expected[run] = HostJobAlignment(on_disclosure)
        try:
            yield alignment
        except Exception as error:
            alignment.fail(error)  # The guest may already be waiting, and gets the same reason.
            raise
        finally:
            alignment.fail(PeerError("the host has ended the job"))
            if alignment.opening is not None:
                alignment.opening.cancel()
            del self._expected[run]
            for opened in [one for one in self._sessions.values() if one.purpose == _run_fields(run)]:
                self._end(opened, "finished" if opened.session.complete else "failed")

    async def open_for_job(self, run: JobKey, form: Sequence[str], n_ids: int, nonce: bytes) -> Opened:
        """Open the single session of a run. The same request again gets the same session.

        Raises:
            UnknownJobError: the host does not have this run, or not yet.
            PolicyError: there are too many IDs, or the guest asks for a second session.
            ConfigError: the guest's IDs have a different normal form.
        """
        alignment = self._expected.get(run)
        if alignment is None:
            raise UnknownJobError(f"the host does not align for this run of job {run.name}")
        if alignment.opening is None:
            alignment.guest_nonce = nonce
            opening = self._open_offered(alignment, Asked(form, n_ids, nonce, _run_fields(run)))
            alignment.opening = asyncio.create_task(opening)
        elif alignment.guest_nonce != nonce:
            raise PolicyError(f"the guest has already opened an alignment for job {run.name}: there can be only one")
        return await asyncio.shield(alignment.opened)

    async def _open_offered(self, alignment: HostJobAlignment, asked: Asked) -> None:
        """Open the session. This runs in a separate task, because the caller may hang up and call again."""
        try:
            offer = await alignment.offered
            opened = await self._begin(lambda: offer, asked)
            opened.on_disclosure = alignment.on_disclosure
        except Exception as error:
            alignment.fail(error)
        else:
            alignment.opened.set_result(opened)

    # --- sessions outside jobs

    async def open_loose(self, key: bytes, load: Callable[[], Offer], asked: Asked) -> Opened:
        """Open a session outside a job. It ends when the guest closes it or makes no call for a while.

        While the session is open, a repeated request gets the same session, because an answer may get lost.

        Args:
            key: identifies the request.
            load: reads the host's IDs. It is called in a thread.
            asked: the request.

        Raises:
            PolicyError: there are too many IDs or sessions.
            ConfigError: the guest's IDs have another normal form.
            ProtocolError: another request came with this key.
            TrilateralError: `load` raised.
        """
        loose = self._loose.get(key)
        if loose is None:
            if len(self._loose) >= MAX_LOOSE:
                raise PolicyError(
                    f"the host has {MAX_LOOSE} alignments outside jobs open, the maximum: wait until one has ended"
                )
            loose = self._loose[key] = _Loose(asked, start(self._open_loose(key, load, asked)))
        elif loose.asked != asked:
            raise ProtocolError("the guest opens an alignment twice with different requests")
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

    # --- calls within a session

    def find(self, session: bytes) -> Opened:
        """Return a session by its identifier, and restart its timer.

        Raises:
            PeerError: there is no such session.
        """
        opened = self._sessions.get(session)
        if opened is None:
            raise PeerError("the host does not know this alignment: it has ended, or the host was restarted")
        self._keep(opened)
        return opened

    async def intersect(self, session: bytes, shard: int, points: bytes) -> tuple[bytes, bytes]:
        """Answer for one shard; see `HostSession`.

        Raises:
            PolicyError: since the session was opened, the policy has come to forbid the job, the dataset or so many
                IDs.
            ProtocolError: the request is not valid.
        """
        opened = self.find(session)
        opened.on_disclosure()
        await asyncio.to_thread(check_counted, self._quota, Role.HOST, ALIGNMENT)
        if (dataset := opened.purpose.get("dataset")) is not None:
            find_dataset(dataset, self.config.datasets, Role.HOST)
        await asyncio.shield(opened.dealt)
        try:
            opened.session.check_request(shard, points)
        except ProtocolError:
            if opened.session.over:
                self.close(session)
            raise
        answer = await self.compute(opened.session.answer, shard, points, crew=opened.crew)
        self.find(session)
        return answer

    async def settle(self, session: bytes, shard: int, tags: bytes) -> None:
        """Settle the common IDs of one shard of a job's alignment; see `HostSession`."""
        if session in self._done:
            return  # The last answer got lost, and the job continues already.
        opened = self.find(session)
        if not opened.of_job:
            raise ProtocolError("the guest confirms a shard of an alignment that belongs to no job")
        opened.common[shard] = await asyncio.to_thread(opened.session.settle, shard, tags)
        # Count `common`, not the session's shards: the places of a shard arrive after the session has settled it.
        if len(opened.common) == opened.session.dealing.n_shards:
            opened.settled.set()

    def close(self, session: bytes) -> None:
        """End a session outside a job, if it is open. A job ends its own session."""
        opened = self._sessions.get(session)
        if opened is not None and not opened.of_job:
            done = opened.session.n_answered == opened.session.dealing.n_shards
            self._end(opened, "finished" if done and not opened.session.over else "failed")

    async def compute(self, function: Callable[..., T], *args: object, crew: Crew | None = None) -> T:
        """Call a function in a thread of a crew, by default the local one."""
        return await asyncio.wrap_future((crew or self._crews.local).submit(function, *args))

    # --- the life of a session

    async def _begin(self, load: Callable[[], Offer], asked: Asked) -> Opened:
        n_ids = asked.n_ids
        # The reported IDs count before a table is read. The padding counts once its number is known.
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
        crew = self._crews.open()
        session = HostSession(offer.source, dealing, crew.engine)
        dealt = start(self.compute(session.deal))
        opened = Opened(token_bytes(SESSION_BYTES), asked.purpose, nonce, session, crew, dealt)
        self._sessions[opened.id] = opened
        log.info("alignment: %d IDs of the host, %d of the guest, in %d shards", n_host, n_ids, dealing.n_shards)
        return opened

    def _keep(self, opened: Opened) -> None:
        """Restart the timer of a session outside a job."""
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
        opened.crew.close()
        session = opened.session
        self._audit.closed(
            method="OpenAlignment",
            **opened.purpose,
            result=result,
            shards={"all": session.dealing.n_shards, "intersected": session.n_answered, "settled": session.n_settled},
            n_common=session.n_common,
        )


def check_form(guests: Sequence[str], own: Sequence[str]) -> None:
    """Check that the IDs of both parties have the same normal form.

    Args:
        guests: the guest's form.
        own: the host's form.

    Raises:
        ConfigError: the forms differ.
    """
    if list(guests) != list(own):
        raise ConfigError(
            f"the guest's IDs have the form {_listed(guests)} and the host's have {_listed(own)}: give both "
            "datasets the same `id_form`, and the same number of columns in `id`"
        )


def _run_fields(run: JobKey) -> dict[str, str]:
    return {"job": run.name, "run": run.run_id.hex()}


def _listed(rules: Sequence[str]) -> str:
    return f"({', '.join(rules)})"
