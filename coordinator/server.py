"""The coordinator's process."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.config.process import ProcessConfig
from trilateral.common.observe.audit import Audit
from trilateral.common.process.server import RoleParts, ignore_address, serve_role
from trilateral.common.rpc.channel import Peer
from trilateral.common.ui.opening import make_page
from trilateral.coordinator.job_servicer import JobServicer
from trilateral.coordinator.jobs import CoordinatorJobs


def make_parts(config: ProcessConfig, audit: Audit, peers: Mapping[Role, Peer], open_engine: OpenEngine) -> RoleParts:
    """Return what the coordinator adds to a server."""
    del open_engine  # The coordinator has no rows.
    jobs = CoordinatorJobs(config, audit, peers)
    return RoleParts(jobs, {"CoordinatorService": jobs, "JobService": JobServicer(jobs)})


async def serve(
    config: ProcessConfig,
    *,
    source: Path | None = None,
    stop: asyncio.Event | None = None,
    on_ready: Callable[[str], None] = ignore_address,
) -> None:
    """Serve the coordinator until SIGTERM, SIGINT or `stop`; see `serve_role`."""
    await serve_role(config, make_parts, make_page, source=source, stop=stop, on_ready=on_ready)
