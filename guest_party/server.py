"""The guest's process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.party_jobs import PartyJobs
from trilateral.common.jobs.quota import IdQuota
from trilateral.common.observe.audit import Audit
from trilateral.common.process.server import RoleParts, ignore_address, serve_role
from trilateral.common.rpc.channel import Peer
from trilateral.common.ui.opening import make_page
from trilateral.guest_party.alignment import GuestAlignments
from trilateral.guest_party.bins import GuestBins
from trilateral.guest_party.machine import make_guest
from trilateral.guest_party.online import OnlineScores
from trilateral.guest_party.online_requests import ScoreServicer


def make_parts(config: ProcessConfig, audit: Audit, peers: Mapping[Role, Peer], open_engine: OpenEngine) -> RoleParts:
    """Return what the guest adds to a server."""

    def quota() -> IdQuota:
        return IdQuota.of(jobs.config)

    alignments = GuestAlignments(peers[Role.HOST], config.limits, quota, open_engine)
    ledger = Ledger(config.state, config.role)
    jobs = PartyJobs(
        config, audit, peers, make_guest, alignments, ledger=ledger, open_engine=open_engine, make_bins=GuestBins
    )
    scores = OnlineScores(config, peers[Role.HOST], jobs.metrics)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        if config.online.listen is None:
            yield
            return
        # The library takes 15 MB, and only this needs it.
        from trilateral.common.process.http import serving_http
        from trilateral.guest_party.online_http import load_token, score_routes

        routes = score_routes(scores, load_token(config.state))
        async with serving_http(config.online.listen, routes, config.role, "online.listen"):
            yield

    servicers = {"GuestService": jobs, "PartyService": jobs, "ScoreService": ScoreServicer(scores)}
    return RoleParts(jobs, servicers, configured=(scores,), running=running)


async def serve(
    config: ProcessConfig,
    *,
    source: Path | None = None,
    stop: asyncio.Event | None = None,
    on_ready: Callable[[str], None] = ignore_address,
) -> None:
    """Serve the guest until SIGTERM, SIGINT or `stop`; see `serve_role`."""
    await serve_role(config, make_parts, make_page, source=source, stop=stop, on_ready=on_ready)
