"""Every message finds the run of the job that it belongs to, and no other."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz

from tests.support.three_servers import DATASET, make_configs, write_tables
from tests.support.waiting import eventually
from trilateral.common.base.errors import PeerError, PolicyError, ProtocolError, SuspendedError, TrilateralError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.compute.local import LocalEngine
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Limits, ProcessConfig
from trilateral.common.jobs import process_jobs
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.history import History
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.party_jobs import CommonRowFinder, PartyJobs
from trilateral.common.jobs.process_jobs import ProcessJobs
from trilateral.common.jobs.runner import MachineRunner
from trilateral.common.observe.audit import Audit
from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.pb.v1 import rounds_pb2
from trilateral.common.pb.v1.rounds_pb2 import SendVectorRequest
from trilateral.common.protocol.arithmetic import Session
from trilateral.common.protocol.block import PartyData
from trilateral.common.protocol.messages import (
    BeginRound,
    ElementPiece,
    Envelope,
    EvaluationRecord,
    Failed,
    FinishJob,
    JobEnded,
    Kind,
    Machine,
    Message,
    OpenJob,
    OutOfRange,
    Ready,
    RoundKey,
    Waiting,
)
from trilateral.common.protocol.party import CheckPeer
from trilateral.common.protocol.phases import Phase
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.elements import ElementsRequest, encode_elements
from trilateral.common.rpc.errors import UnknownJobError
from trilateral.host_party.bins import HostBins

READY = Ready(10, 2)


class Listener:
    """A machine that writes down what it is given, and ends when it hears that a value is out of range."""

    def __init__(self) -> None:
        self.given: list[Message] = []

    def start(self) -> Iterator[Envelope]:
        yield from ()

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        self.given.append(message)
        if isinstance(message, OutOfRange):
            yield Envelope(Role.COORDINATOR, JobEnded("converged", 0.5))

    @property
    def under_way(self) -> bool:
        return False

    def settle(self) -> Iterator[Envelope]:
        yield from ()

    def prepare(self) -> bool:
        return False

    @property
    def prepared(self) -> int:
        return 0

    def restore(self, steps: Sequence[BeginRound | FinishJob], evaluations: Sequence[EvaluationRecord] = ()) -> None:
        assert not steps


class Started(ProcessJobs):
    """Jobs that a test starts by itself."""

    def start(self, name: str, machine: Listener | None = None, **settings: Any) -> tuple[JobKey, Listener]:
        self._check_room()
        job = JobConfig(name=name, dataset="made", **settings)
        key, machine = JobKey.draw(name), machine or Listener()
        history = History(JobFolder(self.config.state, name), self.role)

        def on_message(message: Message) -> None:
            pass

        async def begin() -> Machine:
            return machine

        async def on_end(error: TrilateralError | None) -> None:
            pass

        limits = self.config.limits
        runner = MachineRunner(self.role, job, key, {}, limits=limits, history=history, on_message=on_message)
        self._launch(runner, begin, on_end)
        return key, machine

    async def send(self, key: JobKey, message: Message) -> None:
        await self.dispatch(Role.HOST, key, message, 0)

    async def end(self, key: JobKey, message: Message) -> None:
        await self.send(key, message)
        while key.name in self._running:
            await asyncio.sleep(0.001)


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Started]:
    peers = {Role.HOST: "127.0.0.1:1", Role.GUEST: "127.0.0.1:2"}
    started = Started(
        ProcessConfig(role=Role.COORDINATOR, listen="127.0.0.1:0", peers=peers, state=tmp_path, plaintext=True),
        Audit(tmp_path / "audit.jsonl"),
    )
    started.open()
    yield started
    await started.close()


async def until_given(machine: Listener, *messages: Message) -> None:
    async with asyncio.timeout(10):
        while len(machine.given) < len(messages):
            await asyncio.sleep(0.001)
    assert machine.given == list(messages)


async def test_a_message_reaches_its_job(jobs: Started) -> None:
    (one, first), (_, second) = jobs.start("one"), jobs.start("two")
    await jobs.send(one, READY)
    await until_given(first, READY)
    assert second.given == []


async def test_the_outcome_of_each_session_is_counted(jobs: Started) -> None:
    ends: dict[str, Message] = {
        "finished": OutOfRange(RoundKey(1, 1)),
        "failed": Failed("the table has changed"),
        "stopped": Failed("no more of it", Outcome.STOPPED),
    }
    for name, message in ends.items():
        await jobs.end(jobs.start(name)[0], message)
    suspended, _ = jobs.start("suspended")
    assert jobs.metrics.registry.get_sample_value("trilateral_jobs", {"state": "starting"}) == 1
    jobs._running["suspended"].fail(SuspendedError("the host was restarted"))
    while suspended.name in jobs._running:
        await asyncio.sleep(0.001)
    for result in (*ends, "suspended"):
        counted = jobs.metrics.registry.get_sample_value("trilateral_sessions_ended_total", {"result": result})
        assert counted == 1, result
    assert jobs.metrics.registry.get_sample_value("trilateral_jobs", {"state": "starting"}) == 0


async def test_a_step_that_outlives_its_job_keeps_the_jobs_place(jobs: Started) -> None:
    """Or jobs that start and stop would pile up threads that make keys or read tables."""
    jobs.config = jobs.config.model_copy(update={"limits": Limits(max_jobs=1)})
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Listener):
        def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
            begun.set()
            go_on.wait(10)
            yield from ()

    key, _ = jobs.start("one", Slow())
    await jobs.send(key, READY)
    await asyncio.to_thread(begun.wait, 10)
    await jobs.end(key, Failed("stopped"))
    with pytest.raises(PolicyError, match="limits.max_jobs"):
        jobs.start("two")
    go_on.set()
    async with asyncio.timeout(10):
        while True:
            with suppress(PolicyError):
                jobs.start("two")
                return
            await asyncio.sleep(0.001)


async def test_what_a_session_held_is_freed_when_it_ends(jobs: Started) -> None:
    """Or keys and tables of ended jobs would wait for one of Python's rare collections."""
    gc.disable()
    try:
        key, machine = jobs.start("one")
        held = weakref.ref(machine)
        del machine
        await jobs.end(key, Failed("stopped"))
        async with asyncio.timeout(10):
            while held() is not None:
                await asyncio.sleep(0.001)
    finally:
        gc.enable()


async def test_a_message_of_an_earlier_run_does_not_reach_the_next(jobs: Started) -> None:
    earlier, _ = jobs.start("one")
    await jobs.end(earlier, Failed("no disk"))
    later, machine = jobs.start("one")
    with pytest.raises(PeerError, match="the coordinator has ended the job: no disk"):
        await jobs.send(earlier, READY)
    await jobs.send(earlier, Failed("said late"))
    await jobs.send(later, READY)
    await until_given(machine, READY)


async def test_a_message_of_a_run_that_never_was_is_refused(jobs: Started) -> None:
    jobs.start("one")
    for key in (JobKey.draw("one"), JobKey.draw("two")):
        with pytest.raises(UnknownJobError, match=f"this run of the job {key.name}"):
            await jobs.send(key, READY)


async def test_a_finished_job_accepts_repeated_messages_silently(jobs: Started) -> None:
    key, _ = jobs.start("one")
    await jobs.end(key, OutOfRange(RoundKey(1, 1)))
    await jobs.send(key, READY)


class Chunks:
    """A vector that never ends, of a run; `read` chunks of it were taken."""

    def __init__(self, key: JobKey, width: int) -> None:
        self.key, self.width, self.read = key, width, 0

    async def __aiter__(self) -> AsyncIterator[SendVectorRequest]:
        while True:
            yield SendVectorRequest(
                job=self.key.name,
                run_id=self.key.run_id,
                key=rounds_pb2.RoundKey(round=1, attempt=1),
                kind=rounds_pb2.VECTOR_KIND_GRADIENT,
                offset=self.read,
                total=2**31,
                width=self.width,
                ciphertexts=bytes(self.width),
            )
            self.read += 1


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(request: object) -> Message:
        raise AssertionError("a chunk was decoded")

    monkeypatch.setattr(process_jobs, "decode", decode)
    monkeypatch.setattr(process_jobs, "calling_role", lambda: Role.HOST)


@pytest.mark.usefixtures("undecoded")
async def test_a_vector_of_a_run_that_never_was_is_refused_undecoded(jobs: Started) -> None:
    jobs.start("one")
    chunks = Chunks(JobKey.draw("one"), width=1)
    with pytest.raises(UnknownJobError):
        await jobs.deliver_stream(aiter(chunks))
    assert chunks.read == 0


@pytest.mark.usefixtures("undecoded")
@pytest.mark.parametrize("last", [OutOfRange(RoundKey(1, 1)), Failed("no disk")], ids=["finished", "failed"])
async def test_a_vector_of_a_run_that_has_ended_is_answered_at_its_first_chunk(jobs: Started, last: Message) -> None:
    key, _ = jobs.start("one")
    await jobs.end(key, last)
    chunks = Chunks(key, width=1)
    with pytest.raises(PeerError, match="no disk") if isinstance(last, Failed) else nullcontext():
        await jobs.deliver_stream(aiter(chunks))
    assert chunks.read == 0


@pytest.mark.usefixtures("undecoded")
async def test_a_vector_of_another_width_than_the_jobs_is_refused_undecoded(jobs: Started) -> None:
    key, _ = jobs.start("one")
    with pytest.raises(ProtocolError, match="received ciphertexts of 64 bytes, expected ciphertexts of 512 bytes"):
        await jobs.deliver_stream(aiter(Chunks(key, width=64)))


@pytest.mark.usefixtures("undecoded")
async def test_a_job_ends_in_order_while_the_error_of_a_call_keeps_what_belonged_to_the_call(jobs: Started) -> None:
    key, _ = jobs.start("one")
    with pytest.raises(ProtocolError) as broken:
        await jobs.deliver_stream(aiter(Chunks(key, width=64)))
    await eventually(lambda: key in jobs._ended)
    assert str(broken.value) == str(jobs._ended[key])


@pytest.mark.usefixtures("undecoded")
async def test_a_vector_for_a_job_that_still_reads_its_table_is_refused_undecoded(jobs: Started) -> None:
    key, _ = jobs.start("one")
    with pytest.raises(ProtocolError, match="received ciphertexts before the first round"):
        await jobs.deliver_stream(aiter(Chunks(key, width=512)))


async def chunks_of(key: JobKey, n_pieces: int) -> AsyncIterator[ElementsRequest]:
    for number in range(n_pieces):
        kind = (Kind.MASKED_SCORES, Kind.MASKED_RESIDUAL)[number % 2]
        piece = ElementPiece(RoundKey(1, 1), kind, 8 * (number // 2), 80, 8, np.zeros(8, dtype=np.uint64))
        for request in encode_elements(key, piece):
            yield ElementsRequest.FromString(request.SerializeToString())


@pytest.mark.usefixtures("undecoded")
async def test_a_vector_of_another_protocol_than_the_jobs_is_refused_undecoded(jobs: Started) -> None:
    key, _ = jobs.start("one")
    with pytest.raises(ProtocolError, match="a vector that is not part of the job's protocol"):
        await jobs.deliver_stream(chunks_of(key, 1))
    key, _ = jobs.start("two", protocol="shares")
    with pytest.raises(ProtocolError, match="a vector that is not part of the job's protocol"):
        await jobs.deliver_stream(aiter(Chunks(key, width=512)))


@pytest.mark.usefixtures("undecoded")
async def test_elements_for_a_job_that_still_reads_its_table_are_refused_undecoded(jobs: Started) -> None:
    key, _ = jobs.start("one", protocol="shares")
    with pytest.raises(ProtocolError, match="received ring elements before the first round"):
        await jobs.deliver_stream(chunks_of(key, 1))


@pytest.mark.usefixtures("undecoded")
async def test_elements_of_a_run_that_never_was_are_refused_undecoded(jobs: Started) -> None:
    with pytest.raises(UnknownJobError):
        await jobs.deliver_stream(chunks_of(JobKey.draw("one"), 1))


async def test_the_elements_of_several_vectors_reach_their_job_in_one_call(
    jobs: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_jobs, "calling_role", lambda: Role.HOST)
    key, machine = jobs.start("one", protocol="shares")
    await eventually(lambda: jobs._running["one"].takes_vectors)
    await jobs.deliver_stream(chunks_of(key, 6))
    await eventually(lambda: len(machine.given) == 6)
    pieces = [message for message in machine.given if isinstance(message, ElementPiece)]
    assert [(piece.kind, piece.offset) for piece in pieces] == [
        (kind, offset) for offset in (0, 8, 16) for kind in (Kind.MASKED_SCORES, Kind.MASKED_RESIDUAL)
    ]


async def test_a_bounded_number_of_ended_jobs_is_remembered(jobs: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_jobs, "MAX_ENDED", 2)
    keys = []
    for name in ("one", "two", "three"):
        key, _ = jobs.start(name)
        await jobs.end(key, Failed("no disk"))
        keys.append(key)
    with pytest.raises(UnknownJobError):
        await jobs.send(keys[0], READY)
    for key in keys[1:]:
        with pytest.raises(PeerError, match="no disk"):
            await jobs.send(key, READY)


# --- a party's jobs


class Unused:
    """The alignments of a party whose jobs are aligned already."""

    def expect(self, run: JobKey, on_disclosure: Callable[[], None]) -> AbstractContextManager[CommonRowFinder]:
        raise AssertionError(run)


@asynccontextmanager
async def host_jobs(tmp_path: Path) -> AsyncIterator[tuple[PartyJobs, list[JobConfig]]]:
    """A host without peers, and the jobs for which it has made a machine."""
    made: list[JobConfig] = []

    def make(
        job: JobConfig,
        data: PartyData,
        session: Session,
        *,
        phase: Phase,
        check_peer: CheckPeer,
    ) -> Listener:
        made.append(job)
        return Listener()

    write_tables(tmp_path, n_rows=30)
    audit, ledger = Audit(tmp_path / "audit.jsonl"), Ledger(tmp_path, Role.HOST)
    config = make_configs(tmp_path)[Role.HOST]
    jobs = PartyJobs(config, audit, {}, make, Unused(), ledger=ledger, open_engine=LocalEngine, make_bins=HostBins)
    jobs.config.state.mkdir(parents=True)
    jobs.open()
    yield jobs, made
    await jobs.close()


MODULUS: mpz = generate_private_key(256).public_key.n
OFFER = OpenJob(JobConfig(name="one", dataset=DATASET, key_bits=256, aligned=True), MODULUS, Role.HOST)


async def offer(jobs: PartyJobs, key: JobKey) -> None:
    await jobs.dispatch(Role.COORDINATOR, key, OFFER, 0)


async def test_an_offer_made_again_is_one_job(tmp_path: Path) -> None:
    async with host_jobs(tmp_path) as (jobs, made):
        key = JobKey.draw("one")
        await asyncio.gather(offer(jobs, key), offer(jobs, key))
        async with asyncio.timeout(10):
            while not made:
                await asyncio.sleep(0.001)
        await offer(jobs, key)
    assert made == [OFFER.job]


async def test_an_offer_of_another_run_replaces_the_one_that_the_coordinator_has_lost(tmp_path: Path) -> None:
    async with host_jobs(tmp_path) as (jobs, _):
        lost, anew = JobKey.draw("one"), JobKey.draw("one")
        await offer(jobs, lost)
        await offer(jobs, anew)
        await jobs.dispatch(Role.COORDINATOR, anew, Waiting(), 0)
        with pytest.raises(UnknownJobError, match="the coordinator has begun another session"):
            await jobs.dispatch(Role.GUEST, lost, READY, 0)


async def test_an_offer_that_is_refused_replaces_nothing(tmp_path: Path) -> None:
    async with host_jobs(tmp_path) as (jobs, _):
        key = JobKey.draw("one")
        await offer(jobs, key)
        refused = replace(OFFER, job=OFFER.job.model_copy(update={"dataset": "other"}))
        with pytest.raises(PolicyError):
            await jobs.dispatch(Role.COORDINATOR, JobKey.draw("one"), refused, 0)
        await jobs.dispatch(Role.COORDINATOR, key, Waiting(), 0)


SHARES = JobConfig(name="one", dataset=DATASET, protocol="shares", aligned=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (OpenJob(SHARES, mpz(0), Role.HOST), "`protocol: shares`, a seed of 0 bytes and a public key of 0 bits"),
        (
            OpenJob(SHARES, mpz(0), Role.HOST, seed=bytes(31)),
            "a seed of 31 bytes .* expected a seed of 32 bytes and no",
        ),
        (OpenJob(SHARES, MODULUS, Role.HOST, seed=bytes(32)), "a public key of 256 bits: expected .* no key"),
        (
            replace(OFFER, seed=bytes(32)),
            "`protocol: paillier`, a seed of 32 bytes .* expected a seed of 0 bytes and a",
        ),
    ],
)
async def test_an_offer_with_the_secrets_of_the_other_protocol_is_refused(
    wrong: OpenJob, said: str, tmp_path: Path
) -> None:
    async with host_jobs(tmp_path) as (jobs, made):
        with pytest.raises(ProtocolError, match=said):
            await jobs.dispatch(Role.COORDINATOR, JobKey.draw("one"), wrong, 0)
    assert not made


async def test_an_offer_on_shares_brings_no_key(tmp_path: Path) -> None:
    async with host_jobs(tmp_path) as (jobs, made):
        await jobs.dispatch(Role.COORDINATOR, JobKey.draw("one"), OpenJob(SHARES, mpz(0), Role.HOST, seed=bytes(32)), 0)
        async with asyncio.timeout(10):
            while not made:
                await asyncio.sleep(0.001)
    assert made == [SHARES]


async def test_an_offer_that_comes_again_after_its_job_has_ended_opens_none(tmp_path: Path) -> None:
    async with host_jobs(tmp_path) as (jobs, _):
        key = JobKey.draw("one")
        await offer(jobs, key)
        await jobs.dispatch(Role.COORDINATOR, key, Failed("stopped by the operator", Outcome.STOPPED), 0)

        async def offer_until_refused() -> None:
            while True:
                await offer(jobs, key)
                await asyncio.sleep(0.001)

        with pytest.raises(PeerError, match="stopped by the operator"):
            await asyncio.wait_for(offer_until_refused(), 10)
        await offer(jobs, JobKey.draw("one"))  # the coordinator tries again


async def test_an_offer_that_is_refused_is_logged_and_may_be_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with host_jobs(tmp_path) as (jobs, _):
        key = JobKey.draw("one")
        wrong = OpenJob(OFFER.job.model_copy(update={"dataset": "other"}), MODULUS, Role.HOST)
        with pytest.raises(PolicyError, match="no dataset named other"):
            await jobs.dispatch(Role.COORDINATOR, key, wrong, 0)
        assert "job one: refused: the host has no dataset named other" in caplog.text
        await offer(jobs, key)


async def test_a_job_that_the_policy_refuses_is_refused_before_its_table_is_read(tmp_path: Path) -> None:
    async with host_jobs(tmp_path) as (jobs, made):
        (tmp_path / "host.csv").unlink()
        refused = replace(OFFER, job=OFFER.job.model_copy(update={"epochs": 100_001}))
        with pytest.raises(
            PolicyError, match="the host refuses the job under policy.max_epochs: the maximum is 100000"
        ):
            await jobs.dispatch(Role.COORDINATOR, JobKey.draw("one"), refused, 0)
    assert not made
    assert not JobFolder(jobs.config.state, "one").path.exists()


async def test_a_job_that_ends_while_it_reserves_points_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on, reserve = threading.Event(), threading.Event(), Ledger.reserve
    reserved: list[bool] = []

    def slow(*given: Any) -> bool:
        entered.set()
        go_on.wait(10)
        reserved.append(reserve(*given))
        return reserved[-1]

    monkeypatch.setattr(Ledger, "reserve", slow)
    async with host_jobs(tmp_path) as (jobs, _):
        key = JobKey.draw("one")
        await offer(jobs, key)
        await asyncio.to_thread(entered.wait, 10)
        await jobs.dispatch(Role.COORDINATOR, key, Failed("stopped by the operator", Outcome.STOPPED), 0)
        await eventually(lambda: not jobs._tasks)
        (last_step,) = jobs._lingering
        go_on.set()
        await asyncio.wrap_future(last_step)
        assert reserved == [True]
        assert jobs._ledger.n_reserved(DATASET) == 0


async def test_no_more_jobs_run_than_the_limit_allows(tmp_path: Path) -> None:
    async with host_jobs(tmp_path) as (jobs, _):
        jobs.config = jobs.config.model_copy(update={"limits": Limits(max_jobs=2)})
        keys = [JobKey.draw(name) for name in ("one", "two", "three")]
        offers = [replace(OFFER, job=OFFER.job.model_copy(update={"name": key.name})) for key in keys]
        for key, each in zip(keys[:2], offers, strict=False):
            await jobs.dispatch(Role.COORDINATOR, key, each, 0)
        with pytest.raises(PolicyError, match="the host already runs 2 jobs, the maximum in limits.max_jobs"):
            await jobs.dispatch(Role.COORDINATOR, keys[2], offers[2], 0)
