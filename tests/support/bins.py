"""A bins job in one function: three state machines and a queue."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.support.three_machines import deliver
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.binning import FineBins, MergeRule
from trilateral.common.protocol.messages import BinsResult, CountsDue, Envelope, JobEnded, Machine, Message, OpenJob
from trilateral.common.protocol.shares.bins import BinsData, Release
from trilateral.coordinator.bins import BinsCoordinator
from trilateral.coordinator.shares.computation import SharesOffer
from trilateral.guest_party.bins import GuestBins
from trilateral.host_party.bins import HostBins

Tamper = Callable[[Role, Envelope], list[Envelope]]
JOB = JobConfig(name="bins", dataset="made", protocol="shares", task="bins")
DIGEST = bytes(32)


def bins_job(**settings: object) -> JobConfig:
    return JOB.model_copy(update=settings)


def host_data(codes: np.ndarray, *, ordered: Sequence[bool] | None = None, has_missing: bool = False) -> BinsData:
    """Return a host's rows from the fine bin of each row and column."""
    n_rows, n_columns = codes.shape
    kinds = ordered or [True] * n_columns
    bins = [
        FineBins(tuple(np.bincount(column).tolist()), kind, has_missing)
        for column, kind in zip(codes.T, kinds, strict=True)
    ]
    return BinsData(n_rows, DIGEST, n_rows, bins, codes.astype(np.uint8))


def guest_data(labels: np.ndarray) -> BinsData:
    return BinsData(len(labels), DIGEST, len(labels), labels=labels)


@dataclass
class Counted:
    """What a bins job left behind."""

    results: dict[Role, BinsResult]
    due: dict[Role, int]
    ended: JobEnded | None
    traffic: list[tuple[Role, Role, Message]] = field(default_factory=list)


def make_machines(
    host: BinsData, guest: BinsData, *, to_host: bool = True, rule: MergeRule | None = None
) -> dict[Role, Machine]:
    coordinator = BinsCoordinator(JOB, SharesOffer(JOB))
    offers = {each.to: each.message for each in coordinator.start()}
    seeds = {role: offer.seed for role, offer in offers.items() if isinstance(offer, OpenJob)}
    release = Release(rule or MergeRule(8, 10, 1), to_host)
    return {
        Role.COORDINATOR: coordinator,
        Role.HOST: HostBins(host, seeds[Role.HOST], release),
        Role.GUEST: GuestBins(guest, seeds[Role.GUEST], release),
    }


def run_bins(machines: dict[Role, Machine], *, tamper: Tamper = deliver) -> Counted:
    """Deliver every envelope in order until nothing is left."""
    counted = Counted({}, {}, None)
    waiting: deque[tuple[Role, Envelope]] = deque()

    def post(sender: Role, envelope: Envelope) -> None:
        waiting.extend((sender, each) for each in tamper(sender, envelope))

    for role in (Role.HOST, Role.GUEST):
        for envelope in machines[role].start():
            post(role, envelope)
    while waiting:
        sender, envelope = waiting.popleft()
        message = envelope.message
        counted.traffic.append((sender, envelope.to, message))
        match message:
            case CountsDue(equations):
                counted.due[sender] = counted.due.get(sender, 0) + equations
            case BinsResult():
                counted.results[sender] = message
            case JobEnded():
                counted.ended = message
            case _:
                for answer in machines[envelope.to].handle(sender, message):
                    post(envelope.to, answer)
    return counted


def count_labels(host: BinsData, guest: BinsData, *, to_host: bool = True, rule: MergeRule | None = None) -> Counted:
    return run_bins(make_machines(host, guest, to_host=to_host, rule=rule))
