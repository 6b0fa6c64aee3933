"""The coordinator's process."""

import asyncio
from collections.abc import Callable

import grpc

from trilateral.common.config.process import ProcessConfig
from trilateral.common.pb.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from trilateral.common.pb.v1.jobs_pb2_grpc import add_JobServiceServicer_to_server
from trilateral.common.process.server import make_audit, run_server
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import open_peers
from trilateral.coordinator.jobs import CoordinatorJobs
from trilateral.coordinator.servicer import CoordinatorServicer, JobServicer


async def serve(
    config: ProcessConfig, *, stop: asyncio.Event | None = None, on_ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serve the coordinator until SIGTERM, SIGINT or `stop`; `on_ready` gets the address.

    Raises:
        ConfigError: the address, the certificate or the state folder cannot be used.
    """
    certificates, audit = load_certificates(config), make_audit(config)
    async with open_peers(config, certificates) as peers:
        jobs = CoordinatorJobs(config, audit, peers)

        def add_services(server: grpc.aio.Server) -> None:
            jobs.open()
            add_CoordinatorServiceServicer_to_server(CoordinatorServicer(jobs), server)
            add_JobServiceServicer_to_server(JobServicer(jobs), server)

        services = ("CoordinatorService", "JobService")
        await run_server(
            config,
            certificates,
            services,
            add_services,
            jobs.close,
            audit=audit,
            metrics=jobs.metrics,
            stop=stop,
            on_ready=on_ready,
            begin=jobs.go_on,
        )
