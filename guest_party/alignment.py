"""The guest's side of an alignment over gRPC. The guest asks the host for each shard, several shards at a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any, TypeVar

from google.protobuf.message import Message

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import ProtocolError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.base.tasks import for_each
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.compute.local import LOCAL
from trilateral.common.config.process import Limits
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.alignment.guest_session import CommonShard, GuestSession
from trilateral.common.data.alignment.sources import IdSource, MemoryIds
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.jobs.crew import Crew, Crews
from trilateral.common.jobs.policy import ALIGNMENT, check_counted, spend_ids
from trilateral.common.jobs.quota import IdQuota
from trilateral.common.pb.v1 import alignment_pb2
from trilateral.common.protocol.alignment import Aligned, AlignmentProgress
from trilateral.common.protocol.ids import NONCE_BYTES
from trilateral.common.rpc.calls import call_peer
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import MAX_TOTAL, PACKAGE, JobKey

T = TypeVar("T")
Response = TypeVar("Response", bound=Message)

CLOSE_SECONDS = 2.0
"""How long the guest tries to close an alignment that failed."""
REPORT_SECONDS = 1.0
"""Minimum time between two reports to the coordinator."""

OnProgress = Callable[[AlignmentProgress], None]
Settle = Callable[[CommonShard], Awaitable[None]]
"""Called once for each shard, for several shards at a time, in any order."""


@dataclass(frozen=True)
class Stage:
    """A step of an alignment or a prediction.

    Attributes:
        doing: what the guest is doing, for people.
        done: how much of it is done: rows or shards.
        total: how much there is to do; None while that is unknown.
    """

    doing: str
    done: int
    total: int | None = None


OnStage = Callable[[Stage], None]


class GuestAlignments:
    """Alignments with one host.

    Args:
        host: the host.
        limits: how long to wait for the host.
        quota: returns the limit on the number of IDs that the host may bring.
        open_engine: makes the engine of an alignment.

    Attributes:
        crews: who computes.
    """

    def __init__(
        self, host: Peer, limits: Limits, quota: Callable[[], IdQuota], open_engine: OpenEngine = lambda: LOCAL
    ) -> None:
        self._host = host
        self._limits = limits
        self._quota = quota
        self.crews = Crews(open_engine)
        self._running: set[Future[Any]] = set()

    async def open(self, purpose: JobKey | str, source: IdSource, form: Sequence[str]) -> "GuestAlignment":
        """Ask the host to open an alignment.

        Args:
            purpose: the run of a job, or the name of a dataset to only count the common rows.
            source: the guest's IDs.
            form: the normal form of these IDs, as from `form_of`. The host's form must be the same.

        Returns:
            The open alignment.

        Raises:
            PolicyError: there are more IDs than the policy of a party allows.
            TrilateralError: the host does not answer, or refuses.
        """
        nonce = token_bytes(NONCE_BYTES)
        request = alignment_pb2.OpenAlignmentRequest(nonce=nonce, n_ids=source.n_ids, form=form)
        if isinstance(purpose, JobKey):
            request.run.job, request.run.run_id = purpose.name, purpose.run_id
        else:
            request.dataset = purpose
        opened = await self.call("AlignmentService/OpenAlignment", request, alignment_pb2.OpenAlignmentResponse)
        return await self.begin(opened.session, nonce, opened.nonce, source, opened.n_ids)

    async def begin(
        self, session_id: bytes, nonce: bytes, host_nonce: bytes, source: IdSource, n_host: int
    ) -> "GuestAlignment":
        """Prepare the guest's side of an alignment that the host has opened.

        Args:
            session_id: identifier of the session at the host.
            nonce: the guest's nonce.
            host_nonce: the host's nonce.
            source: the guest's IDs.
            n_host: number of the host's IDs.

        Returns:
            The open alignment.

        Raises:
            PolicyError: the host has more IDs than the guest's policy allows.
            ProtocolError: the host's nonce or its number of IDs is invalid.
        """
        if not 1 <= n_host <= MAX_TOTAL:
            raise ProtocolError(f"the host reports {n_host} IDs: expected 1 to {MAX_TOTAL}")
        dealing = Dealing.of(nonce, host_nonce, source.n_ids, n_host)
        await asyncio.to_thread(spend_ids, dealing.host_room, self._quota(), Role.GUEST)
        crew = self.crews.open()
        try:
            session = await self.compute(GuestSession, source, dealing, crew.engine)
        except BaseException:
            crew.close()
            raise
        return GuestAlignment(self, session_id, session, crew)

    @contextmanager
    def expect(self, run: JobKey, on_disclosure: Callable[[], None]) -> Iterator["GuestJobAlignment"]:
        """Yield the alignment for a run of a job; see `Aligner.expect`. Use it within the block only."""
        yield GuestJobAlignment(self, run, on_disclosure)

    async def check_counted(self) -> None:
        """Check that the policy still permits the IDs that were counted; see `policy.check_counted`."""
        await asyncio.to_thread(check_counted, self._quota(), Role.GUEST, ALIGNMENT)

    async def call(self, method: str, request: Message, response: type[Response]) -> Response:
        """Call a method of the host, given as ``Service/Method``."""
        return await call_peer(self._host, Role.GUEST, f"/{PACKAGE}.{method}", request, response, limits=self._limits)

    async def compute(self, function: Callable[..., T], *args: object, crew: Crew | None = None) -> T:
        """Call a function in a thread of a crew, by default the local one."""
        running = (crew or self.crews.local).submit(function, *args)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(running)

    async def computed(self) -> None:
        """Wait until every thread is idle, including threads whose caller was cancelled."""
        await asyncio.gather(*map(asyncio.wrap_future, list(self._running)), return_exceptions=True)


class GuestAlignment:
    """One open alignment.

    Attributes:
        id: identifier of the session at the host.
        session: the guest's side of the computation.
    """

    def __init__(self, alignments: GuestAlignments, session_id: bytes, session: GuestSession, crew: Crew) -> None:
        self.id = session_id
        self.session = session
        self._alignments = alignments
        self._crew = crew

    async def run(self, settle: Settle, on_progress: OnProgress = lambda _: None) -> AlignmentProgress:
        """Intersect every shard, then close the session.

        Args:
            settle: called with the common IDs of each shard.
            on_progress: called at the start and after each shard.

        Returns:
            The final numbers of IDs.

        Raises:
            TrilateralError: the host does not answer or refuses, or `settle` raised.
        """
        dealing = self.session.dealing
        progress = AlignmentProgress(0, dealing.n_shards, dealing.n_host, dealing.n_guest, 0)
        on_progress(progress)

        async def find(shard: int) -> None:
            nonlocal progress
            await self._alignments.check_counted()
            common = await self._intersect(shard)
            await settle(common)
            n_common = progress.n_common + len(common.places)
            progress = AlignmentProgress(progress.done + 1, dealing.n_shards, dealing.n_host, dealing.n_guest, n_common)
            on_progress(progress)

        try:
            await for_each(dealing.n_shards, self._crew.n_at_a_time, find)
        except BaseException:
            await self._let_go()
            raise
        finally:
            self._crew.close()
        await self.close()
        return progress

    async def confirm(self, common: CommonShard) -> None:
        """Tell the host which IDs of a shard are common, as a job does in `settle`."""
        request = alignment_pb2.ConfirmShardRequest(session=self.id, shard=common.shard, tags=common.tags)
        await self._alignments.call("AlignmentService/ConfirmShard", request, alignment_pb2.ConfirmShardResponse)

    async def close(self) -> None:
        """Tell the host to forget the session."""
        request = alignment_pb2.CloseAlignmentRequest(session=self.id)
        await self._alignments.call("AlignmentService/CloseAlignment", request, alignment_pb2.CloseAlignmentResponse)

    async def _let_go(self) -> None:
        """Close the session if the host answers, so that it drops the IDs before the session expires."""
        with suppress(TrilateralError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.close()

    async def _intersect(self, shard: int) -> CommonShard:
        points = await self._alignments.compute(self.session.request, shard, crew=self._crew)
        request = alignment_pb2.IntersectShardRequest(session=self.id, shard=shard, points=points)
        answer = await self._alignments.call(
            "AlignmentService/IntersectShard", request, alignment_pb2.IntersectShardResponse
        )
        return await self._alignments.compute(self.session.read, shard, answer.setup, answer.response, crew=self._crew)


class GuestJobAlignment:
    """The alignment of one job at the guest.

    Args:
        alignments: alignments with the host.
        run: run of the job.
        on_disclosure: called before each shard is confirmed to the host.
    """

    def __init__(self, alignments: GuestAlignments, run: JobKey, on_disclosure: Callable[[], None]) -> None:
        self._alignments = alignments
        self._run = run
        self._on_disclosure = on_disclosure

    async def common_rows(self, ids: Ids, form: Sequence[str], on_progress: OnProgress) -> Aligned:
        """Find the common rows and tell the host.

        Args:
            ids: the guest's IDs in their normal form.
            form: this normal form.
            on_progress: called about once a second and at the end.

        Returns:
            The guest's common rows, and how many IDs each party has.

        Raises:
            TrilateralError: the host does not answer, or refuses.
        """
        source = MemoryIds(ids)
        alignment = await self._alignments.open(self._run, source, form)
        places: dict[int, Rows] = {}
        reported_at = -REPORT_SECONDS

        async def settle(common: CommonShard) -> None:
            self._on_disclosure()
            await alignment.confirm(common)
            places[common.shard] = common.places

        def report(progress: AlignmentProgress) -> None:
            nonlocal reported_at
            if progress.done == progress.n_shards or time.monotonic() - reported_at >= REPORT_SECONDS:
                reported_at = time.monotonic()
                on_progress(progress)

        result = await alignment.run(settle, report)
        return Aligned(source.common_rows(places), result.n_host, result.n_guest)
