"""The host's process."""

import asyncio
from collections.abc import Callable

import grpc

from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.party_jobs import PartyJobs
from trilateral.common.jobs.party_servicer import PartyServicer
from trilateral.common.pb.v1.alignment_pb2_grpc import add_AlignmentServiceServicer_to_server
from trilateral.common.pb.v1.host_pb2_grpc import add_HostServiceServicer_to_server
from trilateral.common.pb.v1.party_pb2_grpc import add_PartyServiceServicer_to_server
from trilateral.common.pb.v1.prediction_pb2_grpc import add_PredictionServiceServicer_to_server
from trilateral.common.process.server import make_audit, run_server
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import open_peers
from trilateral.host_party.alignment_servicer import AlignmentServicer
from trilateral.host_party.alignments import Alignments, Offer, load_offer
from trilateral.host_party.machine import HostMachine
from trilateral.host_party.prediction_servicer import PredictionServicer
from trilateral.host_party.predictions import Predictions
from trilateral.host_party.servicer import HostServicer


async def serve(
    config: ProcessConfig, *, stop: asyncio.Event | None = None, on_ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serve the host until SIGTERM, SIGINT or `stop`; `on_ready` gets the address.

    Raises:
        ConfigError: the address, the certificate or the state folder cannot be used.
    """
    certificates, audit = load_certificates(config), make_audit(config)
    async with open_peers(config, certificates) as peers:
        alignments = Alignments(config, audit)
        predictions = Predictions(config, audit, alignments)
        jobs = PartyJobs(config, audit, peers, HostMachine, alignments)

        def load(dataset: str) -> Offer:
            return load_offer(config, dataset)

        def add_services(server: grpc.aio.Server) -> None:
            jobs.open()
            add_AlignmentServiceServicer_to_server(AlignmentServicer(alignments, load), server)
            add_HostServiceServicer_to_server(HostServicer(jobs), server)
            add_PartyServiceServicer_to_server(PartyServicer(jobs), server)
            add_PredictionServiceServicer_to_server(PredictionServicer(predictions), server)

        async def close() -> None:
            await jobs.close()
            await predictions.stop()

        services = ("AlignmentService", "HostService", "PartyService", "PredictionService")
        await run_server(
            config,
            certificates,
            services,
            add_services,
            close,
            audit=audit,
            metrics=jobs.metrics,
            stop=stop,
            on_ready=on_ready,
            begin=jobs.go_on,
        )
