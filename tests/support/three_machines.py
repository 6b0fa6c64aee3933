"""A whole training in one function: three state machines and a queue, no port open."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from tests.support.frames import features_of
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.compute.local import LocalEngine
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.party_data import PreparedData, make_party_data
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.paillier.cipher import Decryptor, PartyCipher
from trilateral.common.paillier.factory import CipherName, make_cipher, make_decryptor
from trilateral.common.paillier.keys import PrivateKey, PublicKey
from trilateral.common.protocol.arithmetic import PaillierSession, Session, SharesSession
from trilateral.common.protocol.block import PartyData
from trilateral.common.protocol.evaluation import measure
from trilateral.common.protocol.ids import NONCE_BYTES, id_digest
from trilateral.common.protocol.messages import (
    Began,
    Envelope,
    EvaluationRecord,
    Failed,
    IdChallenge,
    IdProof,
    JobEnded,
    Machine,
    Message,
    ObservationRecord,
    OpenJob,
    Result,
    RoundProgress,
    RoundReport,
    RoundTimedOut,
    ScoresDue,
    StepTaken,
)
from trilateral.common.protocol.party import CheckPeer
from trilateral.common.protocol.phases import no_phase
from trilateral.common.protocol.row_roles import RoleVector
from trilateral.common.scratch.arrays import IN_MEMORY, Scratch
from trilateral.common.shares.keys import SEED_BYTES
from trilateral.coordinator.machine import CoordinatorMachine, Past
from trilateral.coordinator.numpy_training import JoinedTable, join
from trilateral.coordinator.paillier.computation import PaillierOffer
from trilateral.coordinator.shares.computation import SharesOffer
from trilateral.guest_party.machine import GuestMachine, Measure, make_guest
from trilateral.host_party.machine import HostMachine, make_host


@dataclass
class Tables:
    """Both parties' data as the machines get them, and the joined table, which nobody has in a real job."""

    host: PreparedData
    guest: PreparedData
    start: FloatVector | None = None
    """The guest's first weights; None for zeros."""

    @cached_property
    def joined(self) -> JoinedTable:
        return join(self.host.block, self.guest.block)


def with_folds(tables: Tables, folds: RoleVector) -> Tables:
    """Return tables of a job whose folds a party decides; `folds` are of the training rows."""
    host, guest = (replace(each, block=replace(each.block, folds=folds)) for each in (tables.host, tables.guest))
    return Tables(host, guest, tables.start)


def make_tables(
    job: JobConfig, n_rows: int = 120, n_host: int = 3, n_guest: int = 2, *, whiten: bool = True, seed: int = 0
) -> Tables:
    """Correlated normal features on both sides and labels that depend on all of them."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(n_host + n_guest,) * 2) + 2 * np.eye(n_host + n_guest)
    X = rng.normal(size=(n_rows, n_host + n_guest)) @ mixing
    coef = rng.normal(size=n_host + n_guest)
    y = np.where(X @ coef / np.std(X @ coef) + 0.7 * rng.normal(size=n_rows) > 0.2, 1.0, -1.0)
    ids = [f"id-{row:06d}" for row in range(n_rows)]
    host, guest = _party(job, X[:, :n_host], None, ids, whiten), _party(job, X[:, n_host:], y, ids, whiten)
    return Tables(host, guest, rng.normal(scale=0.5, size=(guest.block.columns.shape[1],)))


def _party(job: JobConfig, X: FloatMatrix, y: FloatVector | None, ids: list[str], whiten: bool) -> PreparedData:
    features = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    return make_party_data(
        PartyTable(Ids.of(ids), features_of(features), y), PreprocessingConfig(clip=None, whiten=whiten), job
    )


@dataclass
class Outcome:
    """What a training left behind."""

    ended: JobEnded
    results: dict[Role, Result]
    reports: list[RoundReport]
    traffic: list[tuple[Role, Role, Message]] = field(default_factory=list)

    @property
    def coef(self) -> FloatVector:
        return np.concatenate([self.results[Role.HOST].coef, self.results[Role.GUEST].coef])


Tamper = Callable[[Role, Envelope], list[Envelope]]


def deliver(sender: Role, envelope: Envelope) -> list[Envelope]:
    return [envelope]


def accept_peer(n_columns: int) -> None:
    """Accept any number of columns."""


ANY_SEED = bytes(SEED_BYTES)
"""The coordinator's part of the seed of a party that is alone."""


@dataclass(frozen=True)
class Workshop:
    """Makes machines with one choice of what is injected into them."""

    make_cipher: Callable[[CipherName, PublicKey], PartyCipher] = make_cipher
    make_decryptor: Callable[[CipherName, PrivateKey], Decryptor] = make_decryptor
    measure: Measure = measure
    open_engine: OpenEngine = LocalEngine
    scratch: Scratch = IN_MEMORY

    def host(
        self,
        job: JobConfig,
        data: PartyData,
        private_key: PrivateKey,
        *,
        seed: bytes = ANY_SEED,
        check_peer: CheckPeer = accept_peer,
    ) -> HostMachine:
        session = self._session(job, private_key, seed, None)
        return make_host(job, data, session, phase=no_phase, check_peer=check_peer)

    def guest(
        self,
        job: JobConfig,
        data: PartyData,
        private_key: PrivateKey,
        start: FloatVector | None = None,
        *,
        seed: bytes = ANY_SEED,
        check_peer: CheckPeer = accept_peer,
    ) -> GuestMachine:
        session = self._session(job, private_key, seed, start)
        return make_guest(job, data, session, phase=no_phase, check_peer=check_peer, measure=self.measure)

    def _session(self, job: JobConfig, private_key: PrivateKey, seed: bytes, start: FloatVector | None) -> Session:
        if job.protocol == "shares":
            return SharesSession(seed, self.open_engine(), self.scratch)
        return PaillierSession(self.make_cipher(job.cipher, private_key.public_key), start, self.open_engine())

    def coordinator(self, job: JobConfig, private_key: PrivateKey, past: Past | None = None) -> CoordinatorMachine:
        if job.protocol == "shares":
            return CoordinatorMachine(job, SharesOffer(job), past=past)
        return CoordinatorMachine(job, PaillierOffer(job, self.make_decryptor(job.cipher, private_key)), past=past)


REAL = Workshop()


def prove_ids(machine: HostMachine | GuestMachine, data: PartyData, peer_columns: int = 0) -> None:
    """Let a party alone go through the proof of the IDs, with a peer of so many columns."""
    if isinstance(machine, HostMachine):
        challenge = IdChallenge(bytes(NONCE_BYTES), data.n_rows, peer_columns, ANY_SEED)
        list(machine.handle(Role.GUEST, challenge))
        return
    (sent,) = machine.start()
    assert isinstance(sent.message, IdChallenge)
    digest = id_digest(data.list_digest, sent.message.nonce, bytes(NONCE_BYTES), Role.HOST)
    list(machine.handle(Role.HOST, IdProof(bytes(NONCE_BYTES), digest, peer_columns, ANY_SEED)))


def make_machines(
    job: JobConfig, tables: Tables, private_key: PrivateKey, workshop: Workshop = REAL
) -> dict[Role, Machine]:
    coordinator = workshop.coordinator(job, private_key)
    seeds = seeds_of(coordinator)
    return {
        Role.COORDINATOR: coordinator,
        Role.HOST: workshop.host(job, tables.host, private_key, seed=seeds[Role.HOST]),
        Role.GUEST: workshop.guest(job, tables.guest, private_key, tables.start, seed=seeds[Role.GUEST]),
    }


def seeds_of(coordinator: CoordinatorMachine) -> dict[Role, bytes]:
    """Return the seed in each offer, which the process around a party's machine takes."""
    offers = {envelope.to: envelope.message for envelope in coordinator.start()}
    return {role: offer.seed for role, offer in offers.items() if isinstance(offer, OpenJob)}


def run_machines(
    machines: Mapping[Role, Machine],
    *,
    tamper: Tamper = deliver,
    max_messages: int = 200_000,
) -> Outcome:
    """Deliver every envelope in order until the coordinator says that the job has ended.

    `tamper` sees each envelope on its way and returns what is delivered in its place.
    """
    ended: JobEnded | None = None
    outcome_results: dict[Role, Result] = {}
    reports: list[RoundReport] = []
    traffic: list[tuple[Role, Role, Message]] = []
    waiting: deque[tuple[Role, Envelope]] = deque()

    def post(sender: Role, envelope: Envelope) -> None:
        for passed in tamper(sender, envelope):
            # The clock is the coordinator's own, whoever's message was lost.
            clock = isinstance(passed.message, RoundTimedOut)
            waiting.append((Role.COORDINATOR if clock else sender, passed))

    for role in (Role.COORDINATOR, Role.HOST, Role.GUEST):
        for envelope in machines[role].start():
            post(role, envelope)
    for _ in range(max_messages):
        while not waiting and (busy := [role for role in machines if machines[role].under_way]):
            for role in busy:
                for envelope in machines[role].settle():
                    post(role, envelope)
        if not waiting:
            break
        sender, envelope = waiting.popleft()
        message = envelope.message
        traffic.append((sender, envelope.to, message))
        match message:
            case JobEnded():
                ended = message
                break
            case RoundReport():
                reports.append(message)
                continue
            case Result():
                outcome_results[sender] = message
                continue
            case (
                OpenJob()
                | RoundProgress()
                | EvaluationRecord()
                | Began()
                | ObservationRecord()
                | StepTaken()
                | ScoresDue()
            ):
                continue
            case Failed() if envelope.to is not Role.COORDINATOR:
                continue
        try:
            for answer in machines[envelope.to].handle(sender, message):
                post(envelope.to, answer)
        except TrilateralError as error:
            if envelope.to is Role.COORDINATOR:
                raise
            post(envelope.to, Envelope(Role.COORDINATOR, Failed(f"{envelope.to}: {error}")))
    if ended is None:
        raise AssertionError(f"the machines stopped talking after {len(traffic)} messages")
    return Outcome(ended, outcome_results, reports, traffic)


def train(job: JobConfig, tables: Tables, private_key: PrivateKey, *, tamper: Tamper = deliver) -> Outcome:
    return run_machines(make_machines(job, tables, private_key), tamper=tamper)
