"""The guest's process."""

import asyncio
from collections.abc import Callable

import grpc

from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.party_jobs import PartyJobs
from trilateral.common.jobs.party_servicer import PartyServicer
from trilateral.common.jobs.quota import IdQuota
from trilateral.common.pb.v1.guest_pb2_grpc import add_GuestServiceServicer_to_server
from trilateral.common.pb.v1.party_pb2_grpc import add_PartyServiceServicer_to_server
from trilateral.common.process.server import make_audit, run_server
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import open_peers
from trilateral.guest_party.alignment import GuestAlignments
from trilateral.guest_party.machine import GuestMachine
from trilateral.guest_party.servicer import GuestServicer


async def serve(
    config: ProcessConfig, *, stop: asyncio.Event | None = None, on_ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serve the guest until SIGTERM, SIGINT or `stop`; `on_ready` gets the address.

    Raises:
        ConfigError: the address, the certificate or the state folder cannot be used.
    """
    certificates, audit = load_certificates(config), make_audit(config)
    async with open_peers(config, certificates) as peers:
        quota = IdQuota(config.state, config.policy.max_ids_a_day)
        alignments = GuestAlignments(peers[Role.HOST], config.limits, quota)
        jobs = PartyJobs(config, audit, peers, GuestMachine, alignments)

        def add_services(server: grpc.aio.Server) -> None:
            jobs.open()
            add_GuestServiceServicer_to_server(GuestServicer(jobs), server)
            add_PartyServiceServicer_to_server(PartyServicer(jobs), server)

        services = ("GuestService", "PartyService")
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
