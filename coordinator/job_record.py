"""What the coordinator's journal keeps about a job: its status, the parties' reports, and each round's observation."""

import json
from typing import Any

import numpy as np

from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import PARTIES
from trilateral.common.jobs.journal import Journal, Record
from trilateral.common.pb.v1.jobs_pb2 import JobStatus
from trilateral.common.protocol.messages import Began, ObservationRecord, Ready, SharesReady
from trilateral.coordinator.machine import Past
from trilateral.coordinator.plan import Observation

STATUS = "status"
"""Name of the fact that holds the job's last status."""
VECTORS = ("gradient", "curvature")


class JobRecord:
    """One job in the coordinator's journal.

    Args:
        journal: the journal of the coordinator.
        job_id: run ID of the job's first session.
        name: the name of the job.
    """

    def __init__(self, journal: Journal, job_id: bytes, name: str) -> None:
        self._journal = journal
        self._id = job_id
        self._name = name

    def write(self, message: Began | ObservationRecord, status: JobStatus) -> None:
        """Keep what the state machine reports, and the job's status at that time, in one transaction.

        Args:
            message: that both parties are ready, or what a round showed.
            status: the status of the job.

        Raises:
            ConfigError: the journal cannot be written.
        """
        facts = status_fact(status)
        match message:
            case Began(ready=ready):
                facts |= {party: json.dumps(_sizes(each)).encode() for party, each in ready.items()}
                self._journal.set_facts(self._id, facts)
            case ObservationRecord(round=number):
                content = {
                    "loss": message.loss,
                    "gradient": None if message.gradient is None else message.gradient.tolist(),
                    "curvature": None if message.curvature is None else message.curvature.tolist(),
                    "holdout_loss": message.holdout_loss,
                }
                if message.information is not None:
                    content["information"] = message.information.tolist()
                if message.auc is not None:
                    content["auc"] = message.auc
                self._journal.write_round(self._id, number, json.dumps(content).encode(), facts)

    def past(self) -> Past:
        """Return what the state machine of the job's next session must know about the earlier sessions.

        Raises:
            PeerError: the journal does not have the job.
            ConfigError: the journal cannot be read.
        """
        record = self._journal.find(self._id)
        if record is None:
            raise missing(self._name)
        sizes = {party: record.facts[party] for party in PARTIES if party in record.facts}
        if len(sizes) < len(PARTIES):
            return Past(self._id)
        ready = {party: _read_ready(content) for party, content in sizes.items()}
        return Past(self._id, ready, [_read_observation(content) for content in record.rounds.values()])


def missing(name: str) -> PeerError:
    """Return the error for a job that the journal does not have."""
    return PeerError(f"the coordinator has no record of the job {name} in its journal: start the job again")


def status_fact(status: JobStatus) -> dict[str, bytes]:
    """Return a job's status as a fact for the journal."""
    return {STATUS: status.SerializeToString()}


def read_status(record: Record) -> JobStatus | None:
    """Return the last status that the journal has of a job, or None."""
    return JobStatus.FromString(record.facts[STATUS]) if STATUS in record.facts else None


def _sizes(ready: Ready) -> dict[str, Any]:
    """Return what a party has reported, apart from its place and its part of a seed, which no file may have."""
    sizes: dict[str, Any] = {"n_train": ready.n_train, "n_columns": ready.n_columns}
    if ready.shares is not None:
        sizes["shares"] = {
            "n_holdout": ready.shares.n_holdout,
            "norm_bits": ready.shares.norm_bits,
            "spread_bits": ready.shares.spread_bits,
            "penalty": ready.shares.penalty.tolist(),
            "weight_bits": ready.shares.weight_bits,
            "total_weight": ready.shares.total_weight,
            "start": ready.shares.start.tolist(),
            "fourth_bits": ready.shares.fourth_bits,
            "fold_sizes": list(ready.shares.fold_sizes),
        }
    return sizes


def _read_ready(content: bytes) -> Ready:
    sizes = json.loads(content)
    shares = sizes.pop("shares", None)
    if shares is not None:
        for name in ("penalty", "start"):
            shares[name] = np.asarray(shares.get(name, []), dtype=np.float64)
        shares["fold_sizes"] = tuple(shares.get("fold_sizes", ()))
        shares = SharesReady(seed=b"", **shares)
    return Ready(**sizes, shares=shares)


def _read_observation(content: bytes) -> Observation | None:
    """Return what a round showed; None if it was void."""
    fields = json.loads(content)
    if fields["loss"] is None:
        return None
    gradient, curvature = (None if fields[name] is None else np.asarray(fields[name]) for name in VECTORS)
    information = np.asarray(fields["information"]) if "information" in fields else None
    return Observation(fields["loss"], gradient, curvature, fields["holdout_loss"], information, fields.get("auc"))
