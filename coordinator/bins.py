"""The coordinator's state machine in a bins job: it adds its part of the counts, and learns no count."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.messages import (
    ElementPiece,
    Envelope,
    Failed,
    Finished,
    JobEnded,
    Kind,
    Message,
    Ready,
)
from trilateral.common.protocol.shares.counting import MAX_FINE, add_coordinator_share, count_bits, pieces, sent_share
from trilateral.common.protocol.shares.session import SESSION, StreamKeys
from trilateral.coordinator.computation import Offer

COUNTED = "the labels in the host's bins are counted"


class BinsCoordinator:
    """The coordinator in a bins job. See `common.protocol.shares.counting`.

    Args:
        job: the job's settings.
        offer: draws the coordinator's parts of the seeds.
        job_id: run ID of the job's first session; empty in that session.
    """

    def __init__(self, job: JobConfig, offer: Offer, *, job_id: bytes = b"") -> None:
        self._job = job
        self._offers = {party: replace(offer.to(party), job_id=job_id) for party in PARTIES}
        self._ready: dict[Role, Ready] = {}
        self._finished: set[Role] = set()
        self._ended = False

    def start(self) -> Iterator[Envelope]:
        """Offer the job to the host first; see `CoordinatorMachine.start`."""
        for party, offer in self._offers.items():
            yield Envelope(party, offer)

    @property
    def under_way(self) -> bool:
        """See `Machine.under_way`."""
        return False

    def settle(self) -> Iterator[Envelope]:
        """See `Machine.settle`."""
        yield from ()

    def prepare(self) -> bool:
        """See `Machine.prepare`."""
        return False

    @property
    def prepared(self) -> int:
        """See `Machine.prepared`."""
        return 0

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """See `Machine.handle`."""
        if self._ended:
            return
        match message:
            case Ready() if sender in PARTIES:
                if sender not in self._ready:
                    self._ready[sender] = message
                    if len(self._ready) == len(PARTIES):
                        yield self._counts()
            case Finished() if sender in PARTIES:
                if len(self._ready) < len(PARTIES):
                    raise ProtocolError(f"the {sender} reported that it has finished before both parties were ready")
                self._finished.add(sender)
                if len(self._finished) == len(PARTIES):
                    self._ended = True
                    yield Envelope(Role.COORDINATOR, JobEnded(COUNTED, counted=True))
            case Failed():
                self._ended = True
                for party in PARTIES:
                    yield Envelope(party, Failed(message.reason))
                yield Envelope(Role.COORDINATOR, JobEnded(message.reason))
            case _:
                raise ProtocolError(
                    f"the coordinator does not take a {type(message).__name__} from the {sender} in a bins job"
                )

    def _counts(self) -> Envelope:
        """Return the coordinator's part of the counts."""
        host, guest = self._ready[Role.HOST], self._ready[Role.GUEST]
        sizes = host.n_train, host.n_columns
        if sizes != (guest.n_train, guest.n_columns) or not (0 < host.n_columns <= MAX_FINE and host.n_train):
            raise ProtocolError(
                f"the host counts {sizes[0]} rows in {sizes[1]} fine bins and the guest {guest.n_train} in"
                f" {guest.n_columns}: expected the same numbers, and at most {MAX_FINE} bins"
            )
        keys = {}
        for party, ready in self._ready.items():
            if ready.shares is None:
                raise ProtocolError(f"the {party} is ready without a seed")
            keys[party] = StreamKeys.agreed(self._offers[party].seed, ready.shares.seed).session
        sums = np.zeros(host.n_columns, np.uint64)
        for rows in pieces(host.n_train, host.n_columns):
            add_coordinator_share(keys[Role.HOST], keys[Role.GUEST], rows, sums)
        share = sent_share(keys[Role.HOST], sums, count_bits(host.n_train), subtract=True)
        return Envelope(Role.GUEST, ElementPiece(SESSION, Kind.COUNTS, 0, len(share), len(share), share))
