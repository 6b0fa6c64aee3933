"""The guest's side of an alignment over gRPC: it asks the host for each shard, several at a time."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from secrets import token_bytes
from typing import Any, TypeVar

from google.protobuf.message import Message

from trilateral.common.base.errors import ProtocolError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.base.tasks import for_each
from trilateral.common.config.dataset import IdForm
from trilateral.common.config.process import Limits
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.alignment.guest_session import CommonShard, GuestSession
from trilateral.common.data.alignment.sources import IdSource, MemoryIds
from trilateral.common.data.tables.id_form import rules_of
from trilateral.common.jobs.policy import spend_ids
from trilateral.common.jobs.quota import IdQuota
from trilateral.common.pb.v1 import alignment_pb2
from trilateral.common.protocol.alignment import Aligned, AlignmentProgress
from trilateral.common.protocol.ids import NONCE_BYTES
from trilateral.common.rpc.calls import call_peer
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import MAX_TOTAL, PACKAGE, JobKey

T = TypeVar("T")
Response = TypeVar("Response", bound=Message)

CORES = os.cpu_count() or 1
IN_FLIGHT = min(2 * CORES + 2, 32)
"""Shards under way at a time: enough for the cores of both sides, few enough for memory (some 4 MB each)."""


CLOSE_SECONDS = 2.0
"""For the last word of an alignment that has failed."""
REPORT_SECONDS = 1.0
"""The least time between two reports to the coordinator."""

OnProgress = Callable[[AlignmentProgress], None]
Settle = Callable[[CommonShard], Awaitable[None]]
"""Is called once for each shard, several at a time, in any order."""


class GuestAlignments:
    """Makes alignments with one host. Its threads are its own.

    Args:
        host: the peer.
        limits: how long to wait.
        quota: of the IDs that the host brings.
    """

    def __init__(self, host: Peer, limits: Limits, quota: IdQuota) -> None:
        self._host = host
        self._limits = limits
        self._quota = quota
        self._pool = ThreadPoolExecutor(CORES, thread_name_prefix="alignment")
        self._running: set[Future[Any]] = set()

    async def open(self, purpose: JobKey | str, source: IdSource, form: IdForm) -> "GuestAlignment":
        """Begin an alignment with the host.

        Args:
            purpose: the run of a job; or the name of a dataset, to learn how many rows are common and no more.
            source: of the guest's IDs.
            form: by which they were brought to their normal form; the host's must be the same.

        Raises:
            PolicyError: of either side: too many IDs.
            TrilateralError: the host does not answer, or refuses.
        """
        nonce = token_bytes(NONCE_BYTES)
        request = alignment_pb2.OpenAlignmentRequest(nonce=nonce, n_ids=source.n_ids, form=rules_of(form))
        if isinstance(purpose, JobKey):
            request.run.job, request.run.run_id = purpose.name, purpose.run_id
        else:
            request.dataset = purpose
        opened = await self.call("AlignmentService/OpenAlignment", request, alignment_pb2.OpenAlignmentResponse)
        return await self.begin(opened.session, nonce, opened.nonce, source, opened.n_ids)

    async def begin(
        self, session_id: bytes, nonce: bytes, host_nonce: bytes, source: IdSource, n_host: int
    ) -> "GuestAlignment":
        """Begin an alignment that the host has opened, with both nonces, on `n_host` IDs of its own.

        Raises:
            PolicyError: too many IDs.
            ProtocolError: the host's nonce is none, or it says that it has no IDs, or more than there can be.
        """
        if not 1 <= n_host <= MAX_TOTAL:
            raise ProtocolError(f"the host aligns {n_host} IDs: 1 to {MAX_TOTAL} are possible")
        dealing = Dealing.of(nonce, host_nonce, source.n_ids, n_host)
        await asyncio.to_thread(spend_ids, dealing.host_room, self._quota, Role.GUEST)
        session = await self.compute(GuestSession, source, dealing)
        return GuestAlignment(self, session_id, session)

    @contextmanager
    def expect(self, run: JobKey) -> Iterator["JobAlignment"]:
        """The alignment of a job's run, which lives within the block."""
        yield JobAlignment(self, run)

    async def call(self, method: str, request: Message, response: type[Response]) -> Response:
        """Call a method of the host, ``Service/Method``."""
        return await call_peer(self._host, Role.GUEST, f"/{PACKAGE}.{method}", request, response, limits=self._limits)

    async def compute(self, function: Callable[..., T], *args: object) -> T:
        """Call a function in one of the threads."""
        running = self._pool.submit(function, *args)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(running)

    async def computed(self) -> None:
        """Wait until nothing is computed any more, for those either who have stopped waiting."""
        await asyncio.gather(*map(asyncio.wrap_future, list(self._running)), return_exceptions=True)


class GuestAlignment:
    """One alignment that is open.

    Attributes:
        id: by which the host knows the session.
        session: the guest's side of it.
    """

    def __init__(self, alignments: GuestAlignments, session_id: bytes, session: GuestSession) -> None:
        self.id = session_id
        self.session = session
        self._alignments = alignments

    async def run(self, settle: Settle, on_progress: OnProgress = lambda _: None) -> AlignmentProgress:
        """Find what is common in each shard, and hand it to `settle`; then close the session.

        Raises:
            TrilateralError: the host does not answer, or refuses; or what `settle` raises.
        """
        dealing = self.session.dealing
        progress = AlignmentProgress(0, dealing.n_shards, dealing.n_host, dealing.n_guest, 0)
        on_progress(progress)

        async def find(shard: int) -> None:
            nonlocal progress
            common = await self._intersect(shard)
            await settle(common)
            n_common = progress.n_common + len(common.places)
            progress = AlignmentProgress(progress.done + 1, dealing.n_shards, dealing.n_host, dealing.n_guest, n_common)
            on_progress(progress)

        try:
            await for_each(dealing.n_shards, IN_FLIGHT, find)
        except BaseException:
            await self._let_go()
            raise
        await self.close()
        return progress

    async def confirm(self, common: CommonShard) -> None:
        """Tell the host what is common in a shard: a job's way to `settle`."""
        request = alignment_pb2.ConfirmShardRequest(session=self.id, shard=common.shard, tags=common.tags)
        await self._alignments.call("AlignmentService/ConfirmShard", request, alignment_pb2.ConfirmShardResponse)

    async def close(self) -> None:
        """Let the host forget the session."""
        request = alignment_pb2.CloseAlignmentRequest(session=self.id)
        await self._alignments.call("AlignmentService/CloseAlignment", request, alignment_pb2.CloseAlignmentResponse)

    async def _let_go(self) -> None:
        """Close the session if the host is there, or it would keep its IDs in memory until the session expires."""
        with suppress(TrilateralError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.close()

    async def _intersect(self, shard: int) -> CommonShard:
        points = await self._alignments.compute(self.session.request, shard)
        request = alignment_pb2.IntersectShardRequest(session=self.id, shard=shard, points=points)
        answer = await self._alignments.call(
            "AlignmentService/IntersectShard", request, alignment_pb2.IntersectShardResponse
        )
        return await self._alignments.compute(self.session.read, shard, answer.setup, answer.response)


class JobAlignment:
    """A job's alignment at the guest.

    Args:
        alignments: with the host.
        run: of the job.
    """

    def __init__(self, alignments: GuestAlignments, run: JobKey) -> None:
        self._alignments = alignments
        self._run = run

    async def common_rows(self, ids: Sequence[str], form: IdForm, report: OnProgress) -> Aligned:
        """Find what is common, and let the host know; `report` is told about once a second, and of the end."""
        source = MemoryIds(ids)
        alignment = await self._alignments.open(self._run, source, form)
        places: dict[int, Sequence[int]] = {}
        told = -REPORT_SECONDS

        async def settle(common: CommonShard) -> None:
            await alignment.confirm(common)
            places[common.shard] = common.places

        def tell(progress: AlignmentProgress) -> None:
            nonlocal told
            if progress.done == progress.n_shards or time.monotonic() - told >= REPORT_SECONDS:
                told = time.monotonic()
                report(progress)

        result = await alignment.run(settle, tell)
        return Aligned(source.common_rows(places), result.n_host, result.n_guest)
