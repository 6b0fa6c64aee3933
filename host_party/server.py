"""The host's process."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.party_jobs import PartyJobs
from trilateral.common.observe.audit import Audit
from trilateral.common.process.server import RoleParts, ignore_address, serve_role
from trilateral.common.rpc.channel import Peer
from trilateral.common.ui.opening import make_page
from trilateral.host_party.alignment_servicer import AlignmentServicer
from trilateral.host_party.alignments import Alignments, load_offer
from trilateral.host_party.bins import HostBins
from trilateral.host_party.machine import make_host
from trilateral.host_party.online import OnlineLists
from trilateral.host_party.online_servicer import OnlineServicer
from trilateral.host_party.prediction_servicer import PredictionServicer
from trilateral.host_party.predictions import Predictions


def make_parts(config: ProcessConfig, audit: Audit, peers: Mapping[Role, Peer], open_engine: OpenEngine) -> RoleParts:
    """Return what the host adds to a server."""
    alignments = Alignments(config, audit, open_engine)
    ledger = Ledger(config.state, config.role)
    predictions = Predictions(config, audit, alignments, ledger)
    jobs = PartyJobs(
        config, audit, peers, make_host, alignments, ledger=ledger, open_engine=open_engine, make_bins=HostBins
    )
    lists = OnlineLists(config, audit, ledger, jobs.metrics)
    servicers = {
        "AlignmentService": AlignmentServicer(alignments, lambda dataset: load_offer(jobs.config, dataset)),
        "HostService": jobs,
        "OnlineService": OnlineServicer(lists),
        "PartyService": jobs,
        "PredictionService": PredictionServicer(predictions),
    }
    configured = (alignments, predictions, lists)
    return RoleParts(jobs, servicers, configured=configured, running=lists.running, close=predictions.stop)


async def serve(
    config: ProcessConfig,
    *,
    source: Path | None = None,
    stop: asyncio.Event | None = None,
    on_ready: Callable[[str], None] = ignore_address,
) -> None:
    """Serve the host until SIGTERM, SIGINT or `stop`; see `serve_role`."""
    await serve_role(config, make_parts, make_page, source=source, stop=stop, on_ready=on_ready)
