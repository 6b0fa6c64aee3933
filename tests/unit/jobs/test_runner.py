"""The runner hands a machine its messages one by one, lets a newer round overtake, and ends a job once."""

import asyncio
import gc
import json
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.support.ciphertexts import some_ciphertexts
from tests.support.rpc import Recorder, connected, plaintext_server, served
from tests.support.waiting import eventually
from trilateral.common.base.errors import (
    ConfigError,
    DataError,
    PeerError,
    PolicyError,
    ProtocolError,
    StoppedError,
    TrilateralError,
)
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.progress import Stage, report_progress
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.compute.engine import Task
from trilateral.common.compute.ordered import Ordered
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Limits
from trilateral.common.jobs import inbox, links
from trilateral.common.jobs import runner as runner_module
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.history import History
from trilateral.common.jobs.patience import Patience
from trilateral.common.jobs.runner import MachineRunner, OnRecord
from trilateral.common.observe.logs import JsonFormatter
from trilateral.common.process.server import bind
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import (
    BeginRound,
    ElementPiece,
    Envelope,
    Failed,
    Finished,
    FinishJob,
    HoldoutScores,
    IdChallenge,
    JobEnded,
    Kind,
    Machine,
    Message,
    OpenJob,
    Ready,
    Result,
    RoundKey,
    RoundProgress,
    RoundReport,
    RoundTimedOut,
    RowsDone,
    StageProgress,
    StepTaken,
    VectorPiece,
    Waiting,
)
from trilateral.common.protocol.row_roles import Purpose, RoleExchange, RolePiece, RoleVector
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.errors import UnknownJobError

JOB = JobConfig(name="credit", dataset="credit", key_bits=256)
SHARED = JobConfig(name=JOB.name, dataset=JOB.dataset, protocol="shares")
KEY = JobKey.draw(JOB.name)
STEP = np.zeros(2)
RESULT = Envelope(Role.HOST, Result(STEP, 0.5, 1, 1, "converged"))
Handle = Callable[[Role, Message], Iterator[Envelope]]


class FakeMachine:
    """Does as a test says, and writes down what it was given."""

    def __init__(self, handle: Handle | None = None, start: tuple[Envelope, ...] = (), n_prepare: int = 0) -> None:
        self._handle = handle
        self._start = start
        self.n_prepare = n_prepare
        self.given: list[Message] = []
        self.tasks: Ordered[Envelope] = Ordered()
        self.threads: set[str] = set()

    def start(self) -> Iterator[Envelope]:
        yield from self._start

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        self.given.append(message)
        self.threads.add(threading.current_thread().name)
        if self._handle is not None:
            yield from self._handle(sender, message)

    @property
    def under_way(self) -> bool:
        return len(self.tasks) > 0

    def settle(self) -> Iterator[Envelope]:
        yield from self.tasks.wait_a_moment()

    def prepare(self) -> bool:
        self.n_prepare -= 1
        return self.n_prepare > 0

    @property
    def prepared(self) -> int:
        return 0


class Setup:
    """A runner between two recorders."""

    def __init__(self, role: Role, stack: AsyncExitStack, folder: Path) -> None:
        self.role = role
        self.peers = {other: Recorder() for other in Role if other is not role}
        self.observed: list[Message] = []
        self.runner: MachineRunner
        self.roles: RoleVector | None = None
        self._stack = stack
        self._folder = folder

    async def start(
        self,
        machine: Machine,
        *,
        job: JobConfig = JOB,
        roles: RoleExchange | None = None,
        on_disclosure: Callable[[], None] = lambda: None,
        on_record: OnRecord | None = None,
        **limits: float,
    ) -> asyncio.Task[None]:
        peers = {}
        for other, recorder in self.peers.items():
            address = await self._stack.enter_async_context(served(other, recorder))
            peers[other] = await self._stack.enter_async_context(connected(other, address))

        machines = [machine]

        async def begin() -> Machine:
            if roles is not None:
                self.roles = await self.runner.exchange_roles(roles)
            return machines.pop()

        self.history = History(JobFolder(self._folder, JOB.name), self.role)
        self.runner = MachineRunner(
            self.role,
            job,
            KEY,
            peers,
            limits=Limits(**limits),
            history=self.history,
            on_message=self.observed.append,
            on_record=on_record or self.observed.append,
            on_disclosure=on_disclosure,
        )
        with self.runner.log_context.current():
            task = asyncio.create_task(self.runner.run(begin))
        self._stack.push_async_callback(asyncio.wait, {task})
        self._stack.callback(self.runner.fail, PeerError("the test is over"))
        return task


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def party(stack: AsyncExitStack, tmp_path: Path) -> Setup:
    return Setup(Role.HOST, stack, tmp_path)


@pytest.fixture
def leader(stack: AsyncExitStack, tmp_path: Path) -> Setup:
    return Setup(Role.COORDINATOR, stack, tmp_path)


def begin(round_number: int, attempt: int = 1, loss: float | None = None) -> BeginRound:
    return BeginRound(RoundKey(round_number, attempt), STEP, Batch(1, 0), gradient=True, loss=loss)


def piece(key: RoundKey, offset: int = 0, total: int = 1000, kind: Kind = Kind.SCORES) -> VectorPiece:
    return VectorPiece(key, kind, offset, total, some_ciphertexts(3))


def finish(sender: Role, message: Message) -> Iterator[Envelope]:
    """The messages of a party at the end."""
    if isinstance(message, FinishJob):
        yield RESULT
        yield Envelope(Role.COORDINATOR, Finished())


LAST = FinishJob(2, STEP, 0.5, 1, "converged", 0.5)


async def test_a_job_runs_to_its_end_and_all_its_messages_are_accepted(party: Setup) -> None:
    machine = FakeMachine(finish, start=(Envelope(Role.COORDINATOR, Ready(10, 2)),))
    running = await party.start(machine)
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)
    assert [type(message) for message in party.peers[Role.COORDINATOR].messages] == [Ready, Finished]
    assert party.observed == [RESULT.message]
    assert machine.threads == {"host-credit_0"}


async def test_the_debug_log_has_each_message_without_its_content(
    party: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    running = await party.start(FakeMachine(finish))
    with caplog.at_level(logging.DEBUG, "trilateral.common.jobs.runner"):
        await party.runner.deliver(Role.COORDINATOR, begin(1))
        await party.runner.deliver(Role.COORDINATOR, LAST)
        await asyncio.wait_for(running, 10)
    told = [record.getMessage() for record in caplog.records if record.name == "trilateral.common.jobs.runner"]
    assert told == [
        f"job {JOB.name}: BeginRound of round 1, attempt 1 from the coordinator",
        f"job {JOB.name}: FinishJob from the coordinator",
    ]


async def test_the_last_scores_leave_before_the_result_is_kept(party: Setup) -> None:
    scores, left = HoldoutScores(RoundKey(2, 1), 0, 1, np.zeros(1)), threading.Event()

    async def note(message: Message, context: Any) -> None:
        left.set()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, FinishJob):
            yield Envelope(Role.GUEST, scores)
        yield from finish(sender, message)

    def keep(record: Message) -> None:
        assert left.wait(10)

    party.peers[Role.GUEST].react = note
    running = await party.start(FakeMachine(handle), on_record=keep)
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 20)
    assert [type(message) for message in party.peers[Role.GUEST].messages] == [HoldoutScores]


BY_COLUMN = JOB.model_copy(update={"holdout": "column"})
ROLES = np.array([0, 0, 1, 2], dtype=np.uint8)
ASKED = RolePiece(Purpose.SPLIT, False, 0, 4, b"")


def owned(roles: RoleVector | None = ROLES) -> RoleExchange:
    return RoleExchange(Role.HOST, Purpose.SPLIT, roles, 4)


async def test_the_roles_of_rows_are_exchanged_before_there_is_a_machine(party: Setup) -> None:
    running = await party.start(FakeMachine(finish), job=BY_COLUMN, roles=owned())
    for _ in range(3):  # Sent again, because the acknowledgement was lost.
        await party.runner.deliver(Role.GUEST, ASKED)
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)
    sent = party.peers[Role.GUEST].messages
    assert [piece.roles for piece in sent if isinstance(piece, RolePiece)] == [b"", ROLES.tobytes()]
    assert party.roles is ROLES
    assert party.runner.record()["sent"]["guest"] == {"row_roles": {"values": 4}}
    await party.runner.deliver(Role.GUEST, ASKED)


async def test_no_role_of_a_row_leaves_under_a_policy_that_has_changed(party: Setup) -> None:
    def refuse() -> None:
        raise PolicyError("the policy has changed")

    running = await party.start(FakeMachine(finish), job=BY_COLUMN, roles=owned(), on_disclosure=refuse)
    await party.runner.deliver(Role.GUEST, ASKED)
    with pytest.raises(PolicyError, match="the policy has changed"):
        await asyncio.wait_for(running, 10)
    assert not any(piece.roles for piece in party.peers[Role.GUEST].messages if isinstance(piece, RolePiece))


async def test_a_job_with_a_random_hold_out_takes_no_roles(party: Setup) -> None:
    await party.start(FakeMachine(finish))
    with pytest.raises(ProtocolError, match="roles of rows in a job that draws them by its seed"):
        await party.runner.deliver(Role.GUEST, ASKED)


async def test_a_party_that_waits_for_roles_in_vain_gives_up(party: Setup) -> None:
    running = await party.start(FakeMachine(finish), job=BY_COLUMN, roles=owned(None), round_timeout=1, peer_timeout=1)
    with pytest.raises(PeerError, match="the host has received no message of the job for 2 s"):
        await asyncio.wait_for(running, 30)


async def test_a_party_whose_policy_refuses_the_last_scores_keeps_no_result(party: Setup) -> None:
    kept: list[Message] = []

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        for number in range(2):
            yield Envelope(Role.GUEST, HoldoutScores(RoundKey(2, 1), number, 2, np.zeros(1)))
        yield RESULT

    def refuse() -> None:
        raise PolicyError("the policy has changed")

    running = await party.start(FakeMachine(handle), on_record=kept.append, on_disclosure=refuse)
    await party.runner.deliver(Role.COORDINATOR, LAST)
    with pytest.raises(PolicyError, match="the policy has changed"):
        await running
    await asyncio.wrap_future(party.runner.last_step or Future())
    assert kept == []
    assert not party.peers[Role.GUEST].messages


class HeldTask(Task[None]):
    """Is done when the test says so."""

    def __init__(self) -> None:
        self._free = threading.Event()

    def free(self) -> None:
        self._free.set()

    def done(self) -> bool:
        return self._free.is_set()

    def wait(self, seconds: float) -> bool:
        return self._free.wait(seconds)

    def result(self) -> None:
        assert self._free.wait(10)

    def cancel(self) -> None:
        pass


async def test_what_follows_from_a_task_leaves_although_no_message_comes(party: Setup) -> None:
    task = HeldTask()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        machine.tasks.add(task, lambda _: finish(sender, message))
        yield from machine.tasks.drain(1)

    machine = FakeMachine(handle)
    running = await party.start(machine)
    await party.runner.deliver(Role.COORDINATOR, LAST)
    task.free()
    await asyncio.wait_for(running, 10)
    assert party.observed == [RESULT.message]


async def test_a_message_does_not_wait_for_the_tasks_under_way(party: Setup) -> None:
    task = HeldTask()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, BeginRound):
            machine.tasks.add(task, lambda _: iter(()))
            yield Envelope(Role.GUEST, piece(message.key))
        else:
            assert not task.done()
            machine.tasks.forget()
            yield from finish(sender, message)

    machine = FakeMachine(handle)
    running = await party.start(machine)
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await eventually(lambda: bool(party.peers[Role.GUEST].messages), 10)
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)


async def test_an_error_of_a_task_ends_the_job(party: Setup) -> None:
    def fail(_: None) -> Iterator[Envelope]:
        raise DataError("a value is missing")

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        machine.tasks.add(task, fail)
        yield from ()

    task = HeldTask()
    machine = FakeMachine(handle)
    running = await party.start(machine)
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    task.free()
    with pytest.raises(DataError, match="a value is missing"):
        await running


async def test_work_beside_the_jobs_thread_does_not_wait_for_it(party: Setup) -> None:
    free = threading.Event()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        assert free.wait(10)
        yield from finish(sender, message)

    running = await party.start(FakeMachine(handle))
    await party.runner.deliver(Role.COORDINATOR, LAST)
    beside = party.runner.beside(threading.current_thread)
    assert "beside" in (await asyncio.wait_for(beside, 10)).name
    free.set()
    await asyncio.wait_for(running, 10)


async def test_an_error_beside_the_jobs_thread_ends_the_session(party: Setup) -> None:
    def fail() -> None:
        raise DataError("the key is bad")

    running = await party.start(FakeMachine())
    party.runner.beside(fail)
    with pytest.raises(DataError, match="the key is bad"):
        await asyncio.wait_for(running, 10)
    assert [message.reason for message in party.peers[Role.COORDINATOR].messages if isinstance(message, Failed)] == [
        "the key is bad"
    ]


async def test_a_job_lingers_until_the_work_beside_its_thread_is_done(party: Setup) -> None:
    begun, free = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert free.wait(10)

    running = await party.start(FakeMachine())
    party.runner.beside(work)
    await asyncio.to_thread(begun.wait, 10)
    party.runner.fail(PeerError("over"))
    with pytest.raises(PeerError, match="over"):
        await asyncio.wait_for(running, 10)
    last_step = party.runner.last_step
    assert last_step is not None
    assert not last_step.done()
    free.set()
    await asyncio.wait_for(asyncio.wrap_future(last_step), 10)


@asynccontextmanager
async def health_service() -> AsyncIterator[health_pb2_grpc.HealthStub]:
    server = plaintext_server(Role.HOST)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    async with open_channel(address, None) as channel:
        yield health_pb2_grpc.HealthStub(channel)
    await server.stop(None)


async def test_log_lines_from_the_jobs_thread_name_the_job_and_its_round(
    party: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        logging.getLogger("tests.machine").warning("at work")
        yield from finish(sender, message)

    caplog.handler.setFormatter(JsonFormatter(Role.HOST))
    running = await party.start(FakeMachine(handle))
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    assert [(line["job"], line["round"]) for line in lines if line["message"] == "at work"] == [(JOB.name, 1)] * 2


async def test_a_call_is_answered_while_a_long_product_is_computed(party: Setup) -> None:
    begun, done = threading.Event(), threading.Event()
    modulus = mpz(2) ** 24_576 - 3

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        begun.set()
        gmpy2.powmod(3, modulus, modulus)  # two seconds, where the call takes a few milliseconds
        done.set()
        yield from finish(sender, message)

    async with health_service() as stub:
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)  # connects
        running = await party.start(FakeMachine(handle))
        await party.runner.deliver(Role.COORDINATOR, LAST)
        await asyncio.to_thread(begun.wait, 10)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert not done.is_set()
        await asyncio.wait_for(running, 60)
    assert done.is_set()


async def test_a_newer_round_ends_the_current_work_between_two_pieces(party: Setup) -> None:
    closed = threading.Event()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, BeginRound) and message.key.attempt == 1:
            try:
                for offset in range(10**9):
                    yield Envelope(Role.GUEST, piece(message.key, offset, 10**9))
            finally:
                closed.set()
        yield from finish(sender, message)

    machine = FakeMachine(handle)
    await party.start(machine)
    guest = party.peers[Role.GUEST]
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await guest.until(lambda: bool(guest.messages))
    await party.runner.deliver(Role.COORDINATOR, begin(1, attempt=2))
    await asyncio.to_thread(closed.wait, 10)
    assert closed.is_set()
    while len(machine.given) < 2:
        await asyncio.sleep(0.001)
    assert [message.key.attempt for message in machine.given if isinstance(message, BeginRound)] == [1, 2]


async def test_early_messages_reach_the_machine_although_a_round_overtakes(party: Setup) -> None:
    started, go_on = threading.Event(), threading.Event()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, BeginRound) and message.key.round == 1:
            started.set()
            go_on.wait(10)
            yield Envelope(Role.COORDINATOR, Ready(10, 2))
            raise AssertionError("overtaken, so this is never reached")
        yield from finish(sender, message)

    machine = FakeMachine(handle)
    running = await party.start(machine)
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await asyncio.to_thread(started.wait, 10)
    early = piece(RoundKey(2, 1), kind=Kind.RESIDUAL)
    await party.runner.deliver(Role.GUEST, early)
    await party.runner.deliver(Role.COORDINATOR, begin(2))
    go_on.set()
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)
    assert machine.given[1] is early
    assert len(machine.given) == 4


async def test_a_repeated_round_overtakes_nothing(party: Setup) -> None:
    n_pieces = 20

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, BeginRound):
            for offset in range(n_pieces):
                yield Envelope(Role.GUEST, piece(message.key, offset, n_pieces))
        yield from finish(sender, message)

    await party.start(FakeMachine(handle))
    guest = party.peers[Role.GUEST]
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await guest.until(lambda: len(guest.messages) >= n_pieces)


async def test_idle_time_is_used_for_preparation_until_none_is_left(party: Setup) -> None:
    machine = FakeMachine(finish, n_prepare=20)
    running = await party.start(machine)
    while machine.n_prepare > 0:
        await asyncio.sleep(0.001)
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)
    assert machine.n_prepare == 0


async def test_a_message_interrupts_preparation(party: Setup) -> None:
    machine = FakeMachine(finish, n_prepare=10**9)
    running = await party.start(machine)
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)
    assert machine.n_prepare > 0


async def test_a_full_inbox_holds_the_sender_up(party: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_MESSAGES", 2)
    begun, go_on = threading.Event(), threading.Event()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        begun.set()
        go_on.wait(10)
        yield from finish(sender, message)

    running = await party.start(FakeMachine(handle))
    pieces = [piece(RoundKey(1, 1), offset) for offset in range(4)]
    await party.runner.deliver(Role.GUEST, pieces[0])
    await asyncio.to_thread(begun.wait, 10)
    for each in pieces[1:3]:  # while the machine is busy with the first, two have room
        await asyncio.wait_for(party.runner.deliver(Role.GUEST, each), 10)
    held_up = asyncio.create_task(party.runner.deliver(Role.GUEST, pieces[3]))
    for _ in range(100):  # Nothing outside the loop is needed to put it, if there were room.
        await asyncio.sleep(0)
    assert not held_up.done()
    go_on.set()
    await asyncio.wait_for(held_up, 10)
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)


async def test_a_peer_that_does_not_receive_does_not_stop_this_side_from_receiving(party: Setup) -> None:
    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, BeginRound):
            for offset in range(500):
                yield Envelope(Role.GUEST, piece(message.key, offset))

    async def take_nothing(message: Message, context: Any) -> None:
        await asyncio.Event().wait()

    machine = FakeMachine(handle)
    await party.start(machine)
    party.peers[Role.GUEST].react = take_nothing
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    residual = piece(RoundKey(1, 1), kind=Kind.RESIDUAL)
    await party.runner.deliver(Role.GUEST, residual)
    async with asyncio.timeout(10):
        while residual not in machine.given:
            await asyncio.sleep(0.001)


def elements(key: RoundKey, number: int, kind: Kind = Kind.MASKED_SCORES) -> ElementPiece:
    return ElementPiece(key, kind, 8 * number, 2**20, 8, np.full(8, number, dtype=np.uint64))


async def test_elements_leave_in_order_around_what_the_process_has_to_do_first(party: Setup) -> None:
    """The thread does not wait for elements to be sent, but for everything else."""
    seen: list[int] = []

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, BeginRound):
            for number in range(3):
                yield Envelope(Role.GUEST, elements(message.key, number))
            yield Envelope(Role.HOST, StepTaken(message))
            seen.append(len(party.observed))
            yield Envelope(Role.COORDINATOR, RowsDone(message.key, 8))
            yield Envelope(Role.COORDINATOR, elements(message.key, 0, Kind.SUMS))
            for number in range(3, 6):
                yield Envelope(Role.GUEST, elements(message.key, number))
        yield from finish(sender, message)

    running = await party.start(FakeMachine(handle))
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    guest = party.peers[Role.GUEST]
    await guest.until(lambda: len(guest.messages) >= 6)
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)
    sent = [int(message.elements[0]) for message in guest.messages if isinstance(message, ElementPiece)]
    assert sent == list(range(6))
    assert seen == [1]


def answer(sender: Role, message: Message) -> Iterator[Envelope]:
    """The messages of a host in a round."""
    if isinstance(message, BeginRound):
        yield Envelope(Role.HOST, StepTaken(message))
        yield Envelope(Role.GUEST, piece(message.key))
        yield Envelope(Role.COORDINATOR, piece(message.key, kind=Kind.GRADIENT))
    yield from finish(sender, message)


async def test_the_coordinator_is_not_answered_before_the_step_is_kept(party: Setup) -> None:
    """But the other party, which cannot read the ciphertexts, can go on with them."""
    kept = threading.Event()

    def write() -> None:
        kept.wait(10)

    def keep(record: object) -> Callable[[], None] | None:
        return write if isinstance(record, StepTaken) else None

    running = await party.start(FakeMachine(answer), on_record=keep)
    guest, coordinator = party.peers[Role.GUEST], party.peers[Role.COORDINATOR]
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await guest.until(lambda: bool(guest.messages))
    await asyncio.sleep(0.05)  # the machine goes on if nothing holds it up
    assert coordinator.messages == []
    kept.set()
    await coordinator.until(lambda: bool(coordinator.messages))
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)


async def test_a_step_that_cannot_be_kept_ends_the_job_without_an_answer(party: Setup) -> None:
    def fail() -> None:
        raise ConfigError("the journal cannot be written")

    def keep(record: object) -> Callable[[], None] | None:
        return fail if isinstance(record, StepTaken) else None

    running = await party.start(FakeMachine(answer), on_record=keep)
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    with pytest.raises(ConfigError, match="the journal cannot be written"):
        await asyncio.wait_for(running, 10)
    (told,) = party.peers[Role.COORDINATOR].messages
    assert isinstance(told, Failed)


async def test_a_policy_that_changes_in_the_last_round_on_shares_keeps_the_weights_back(party: Setup) -> None:
    """The end gives the other party its weights, which no round has shown."""

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, FinishJob):
            yield Envelope(Role.GUEST, elements(RoundKey(message.round, 1), 0, Kind.WEIGHTS))
        yield from finish(sender, message)

    refusals: list[Exception] = []

    def check_again() -> None:
        if refusals:
            raise refusals[0]

    machine = FakeMachine(handle)
    running = await party.start(machine, job=SHARED, on_disclosure=check_again)
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    async with asyncio.timeout(10):
        while not machine.given:
            await asyncio.sleep(0.001)
    refusals.append(PolicyError("not any more"))
    await party.runner.deliver(Role.COORDINATOR, LAST)
    with pytest.raises(PolicyError, match="not any more"):
        await asyncio.wait_for(running, 10)
    assert party.peers[Role.GUEST].messages == []


async def test_all_elements_of_a_round_leave_in_order(party: Setup) -> None:
    n_pieces = 50

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        for number in range(n_pieces):
            yield Envelope(Role.GUEST, elements(RoundKey(1, 1), number))
            if number % 10 == 5:
                yield Envelope(Role.COORDINATOR, RowsDone(RoundKey(1, 1), 8 * number))
        yield Envelope(Role.COORDINATOR, elements(RoundKey(1, 1), 0, Kind.SUMS))

    await party.start(FakeMachine(handle), job=SHARED)
    guest, coordinator = party.peers[Role.GUEST], party.peers[Role.COORDINATOR]
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await guest.until(lambda: len(guest.messages) >= n_pieces)
    await coordinator.until(lambda: len(coordinator.messages) >= 6)
    numbers = [int(message.elements[0]) for message in guest.messages if isinstance(message, ElementPiece)]
    assert numbers == list(range(n_pieces))
    assert [type(message) for message in coordinator.messages] == [RowsDone] * 5 + [ElementPiece]
    sent = party.history.sent.totals
    assert set(sent) == {"guest", "coordinator"}
    assert set(sent["guest"]["masked_scores"]) == {"bytes"}


async def test_a_newer_round_ends_the_current_work_between_two_pieces_of_elements(party: Setup) -> None:
    closed = threading.Event()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, BeginRound) and message.key.attempt == 1:
            try:
                for number in range(10**9):
                    yield Envelope(Role.GUEST, elements(message.key, number % 1000))
            finally:
                closed.set()

    await party.start(FakeMachine(handle))
    guest = party.peers[Role.GUEST]
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await guest.until(lambda: bool(guest.messages))
    await party.runner.deliver(Role.COORDINATOR, begin(1, attempt=2))
    await asyncio.to_thread(closed.wait, 10)
    assert closed.is_set()


async def test_elements_that_the_thread_takes_at_once_all_reach_the_machine_although_a_round_overtakes(
    party: Setup,
) -> None:
    begun, go_on = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, ElementPiece) and message.offset < 16:
            number = message.offset // 8
            begun[number].set()
            go_on[number].wait(10)
            yield Envelope(Role.COORDINATOR, RowsDone(message.key, 8))
            assert not number, "overtaken, so this is never reached"
        yield from finish(sender, message)

    machine = FakeMachine(handle)
    running = await party.start(machine)
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    theirs = [elements(RoundKey(1, 1), number) for number in range(5)]
    await party.runner.deliver(Role.GUEST, theirs[0])
    await asyncio.to_thread(begun[0].wait, 10)
    for each in theirs[1:]:  # wait together
        await party.runner.deliver(Role.GUEST, each)
    go_on[0].set()
    await asyncio.to_thread(begun[1].wait, 10)
    await party.runner.deliver(Role.COORDINATOR, begin(2))
    go_on[1].set()
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)
    assert [message for message in machine.given if isinstance(message, ElementPiece)] == theirs


@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
async def test_the_thread_stops_handing_over_elements_when_the_job_ends(party: Setup, ends: str) -> None:
    closed = threading.Event()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        try:
            for number in range(10**9):
                yield Envelope(Role.GUEST, elements(RoundKey(1, 1), number % 1000))
        finally:
            closed.set()

    running = await party.start(FakeMachine(handle))
    guest = party.peers[Role.GUEST]
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await guest.until(lambda: bool(guest.messages))
    if ends == "fails":
        party.runner.fail(PeerError("enough"))
        with pytest.raises(PeerError, match="enough"):
            await asyncio.wait_for(running, 10)
    else:
        running.cancel()
    await asyncio.to_thread(closed.wait, 10)
    assert closed.is_set()


async def test_the_coordinator_deals_no_more_than_the_queue_of_a_link_holds(
    leader: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "QUEUE_BYTES", 10 * 64)
    monkeypatch.setattr(links, "CALL_BYTES", 5 * 64)
    made: list[int] = []
    held = asyncio.Event()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        for number in range(100):
            made.append(number)
            yield Envelope(Role.HOST, elements(RoundKey(1, 1), number, Kind.DEALT))

    async def hold(message: Message, context: Any) -> None:
        await held.wait()

    host = leader.peers[Role.HOST]
    host.react = hold
    await leader.start(FakeMachine(handle))
    await leader.runner.deliver(Role.GUEST, RowsDone(RoundKey(1, 1), 8))
    await host.until(lambda: bool(host.messages))
    await asyncio.sleep(0.2)  # the machine goes on if nothing holds it up
    assert 10 <= len(made) <= 20
    held.set()
    await host.until(lambda: len(host.messages) >= 100)
    assert [int(message.elements[0]) for message in host.messages if isinstance(message, ElementPiece)] == made


async def test_a_party_never_waits_for_room_towards_the_other(party: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other party may do the same: neither would take what the other has sent."""
    monkeypatch.setattr(links, "QUEUE_BYTES", 1)
    made: list[int] = []

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, BeginRound):
            for number in range(100):
                made.append(number)
                yield Envelope(Role.GUEST, elements(message.key, number))

    async def take_nothing(message: Message, context: Any) -> None:
        await asyncio.Event().wait()

    machine = FakeMachine(handle)
    await party.start(machine)
    party.peers[Role.GUEST].react = take_nothing
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    theirs = elements(RoundKey(1, 1), 0, Kind.MASKED_RESIDUAL)
    await party.runner.deliver(Role.GUEST, theirs)
    async with asyncio.timeout(10):
        while theirs not in machine.given:
            await asyncio.sleep(0.001)
    assert len(made) == 100


async def test_a_sender_held_up_is_let_go_when_the_job_ends(party: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_MESSAGES", 1)
    started, go_on = threading.Event(), threading.Event()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        started.set()
        go_on.wait(10)
        yield from ()

    running = await party.start(FakeMachine(handle))
    await party.runner.deliver(Role.GUEST, piece(RoundKey(1, 1)))
    await asyncio.to_thread(started.wait, 10)
    await party.runner.deliver(Role.GUEST, piece(RoundKey(1, 1), 1))
    held_up = asyncio.create_task(party.runner.deliver(Role.GUEST, piece(RoundKey(1, 1), 2)))
    await asyncio.sleep(0)
    party.runner.fail(PeerError("enough"))
    await asyncio.wait_for(held_up, 10)
    with pytest.raises(PeerError, match="enough"):
        await asyncio.wait_for(running, 10)
    go_on.set()


# --- failures


async def test_an_error_of_the_machine_is_reported_to_the_coordinator(party: Setup) -> None:
    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        raise DataError("the IDs differ")
        yield

    running = await party.start(FakeMachine(handle))
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    with pytest.raises(DataError, match="the IDs differ"):
        await asyncio.wait_for(running, 10)
    assert party.peers[Role.COORDINATOR].messages == [Failed("the IDs differ")]
    assert party.peers[Role.GUEST].messages == []


async def test_a_bug_is_reported_without_details(party: Setup, caplog: pytest.LogCaptureFixture) -> None:
    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        raise ZeroDivisionError("customer 4711")
        yield

    running = await party.start(FakeMachine(handle))
    with caplog.at_level(logging.ERROR):
        await party.runner.deliver(Role.COORDINATOR, begin(1))
        with pytest.raises(TrilateralError):
            await asyncio.wait_for(running, 10)
    assert party.peers[Role.COORDINATOR].messages == [Failed("internal error; see the log of the host")]
    assert "4711" not in caplog.text  # it may be anybody's
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("teller", [Role.HOST, Role.GUEST])
async def test_a_failure_is_reported_to_all_except_its_reporter(leader: Setup, teller: Role) -> None:
    running = await leader.start(FakeMachine())
    await leader.runner.deliver(teller, Failed("no disk"))
    with pytest.raises(PeerError, match="^no disk$"):
        await asyncio.wait_for(running, 10)
    other = Role.GUEST if teller is Role.HOST else Role.HOST
    assert leader.peers[other].messages == leader.observed == [Failed("no disk")]
    assert leader.peers[teller].messages == []


async def test_a_stop_is_reported_to_both_parties_as_a_stop(leader: Setup) -> None:
    running = await leader.start(FakeMachine())
    leader.runner.fail(StoppedError("no more of it"))
    with pytest.raises(StoppedError, match="^no more of it$"):
        await asyncio.wait_for(running, 10)
    told = Failed("no more of it", Outcome.STOPPED)
    assert [recorder.messages for recorder in leader.peers.values()] == [[told]] * 2
    assert leader.observed == [told]


async def test_a_party_records_a_reported_stop_as_a_stop(party: Setup) -> None:
    running = await party.start(FakeMachine())
    await party.runner.deliver(Role.COORDINATOR, Failed("no more of it", Outcome.STOPPED))
    with pytest.raises(StoppedError, match="^no more of it$"):
        await asyncio.wait_for(running, 10)


async def test_a_job_that_the_machine_gives_up_is_reported_to_both_parties(leader: Setup) -> None:
    def give_up(sender: Role, message: Message) -> Iterator[Envelope]:
        yield Envelope(Role.HOST, Failed("diverged"))
        raise AssertionError("the runner ends the job at the first word of it")

    running = await leader.start(FakeMachine(give_up))
    await leader.runner.deliver(Role.HOST, Ready(10, 2))
    with pytest.raises(PeerError, match="^diverged$"):
        await asyncio.wait_for(running, 10)
    assert [recorder.messages for recorder in leader.peers.values()] == [[Failed("diverged")]] * 2


async def test_a_failure_does_not_wait_for_the_current_step(party: Setup) -> None:
    started, go_on = threading.Event(), threading.Event()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        started.set()
        go_on.wait(10)
        yield Envelope(Role.GUEST, piece(RoundKey(1, 1)))

    running = await party.start(FakeMachine(handle))
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await asyncio.to_thread(started.wait, 10)
    await party.runner.deliver(Role.COORDINATOR, Failed("stopped by the operator"))
    with pytest.raises(PeerError, match="stopped by the operator"):
        await asyncio.wait_for(running, 10)
    assert not go_on.is_set()
    go_on.set()
    assert party.peers[Role.GUEST].messages == []


async def test_the_machine_is_gone_after_the_job(party: Setup) -> None:
    machine = FakeMachine(finish)
    gone = weakref.ref(machine)
    running = await party.start(machine)
    del machine
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)
    gc.collect()
    assert gone() is None


async def test_a_job_whose_result_is_kept_can_be_stopped_while_its_last_message_waits(party: Setup) -> None:
    """The coordinator is gone: the process need not stay for the peer's timeout, and the job stays finished."""
    held = asyncio.Event()

    async def hold(message: Message, context: Any) -> None:
        await held.wait()

    party.peers[Role.COORDINATOR].react = hold
    running = await party.start(FakeMachine(finish), peer_timeout=3600)
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await party.peers[Role.COORDINATOR].until(lambda: bool(party.peers[Role.COORDINATOR].messages))
    party.runner.fail(PeerError("the host was stopped"))
    await asyncio.wait_for(running, 60)  # and no exception
    held.set()


# --- the coordinator's part


async def test_the_guest_is_offered_the_job_after_the_host_has_taken_it(leader: Setup) -> None:
    guest, host = leader.peers[Role.GUEST], leader.peers[Role.HOST]
    seen: list[int] = []

    async def look(message: Message, context: Any) -> None:
        seen.append(len(host.messages))

    guest.react = look
    offer = OpenJob(JOB, mpz(15), Role.HOST)
    await leader.start(FakeMachine(start=(Envelope(Role.HOST, offer), Envelope(Role.GUEST, offer))))
    await guest.until(lambda: bool(guest.messages))
    while len(leader.observed) < 2:
        await asyncio.sleep(0.001)
    assert seen == [1]


async def test_a_round_without_an_answer_is_begun_again(leader: Setup) -> None:
    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        match message:
            case Ready():
                yield Envelope(Role.HOST, begin(1))
            case RoundTimedOut() if message.key.attempt < 3:
                yield Envelope(Role.HOST, begin(1, message.key.attempt + 1))
            case RoundTimedOut():
                yield Envelope(Role.COORDINATOR, RoundReport(message.key, 1, 1, 1, 0.5, loss_only=False, note=None))
                yield Envelope(Role.COORDINATOR, JobEnded("converged", 0.5))

    machine = FakeMachine(handle)
    running = await leader.start(machine, round_timeout=0.05)
    await leader.runner.deliver(Role.HOST, Ready(10, 2))
    await asyncio.wait_for(running, 10)
    assert machine.given[1:] == [RoundTimedOut(RoundKey(1, attempt)) for attempt in (1, 2, 3)]
    host = leader.peers[Role.HOST].messages
    assert [message.key.attempt for message in host if isinstance(message, BeginRound)] == [1, 2, 3]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """See at once whether the others are there, though each call has time enough."""
    monkeypatch.setattr(Patience, "alarm", lambda self: asyncio.get_running_loop().time() + 0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("peer", PARTIES)
async def test_a_coordinator_that_waits_notices_that_a_party_has_lost_the_job(leader: Setup, peer: Role) -> None:
    async def lose_the_job(message: Message, context: Any) -> None:
        if len(leader.peers[peer].messages) == 2:
            raise UnknownJobError("which job?")

    leader.peers[peer].react = lose_the_job
    machine = FakeMachine()
    running = await leader.start(machine)
    with pytest.raises(PeerError, match=f"the {peer} at .* has lost the job"):
        await asyncio.wait_for(running, 10)
    assert leader.peers[peer].messages[:2] == [Waiting(), Waiting()]
    assert machine.given == []


@pytest.mark.usefixtures("impatient")
async def test_a_party_that_waits_notices_that_the_coordinator_has_lost_the_job(party: Setup) -> None:
    async def lose_the_job(message: Message, context: Any) -> None:
        raise UnknownJobError("which job?")

    party.peers[Role.COORDINATOR].react = lose_the_job
    running = await party.start(FakeMachine())
    with pytest.raises(PeerError, match=r"the coordinator at .* has lost the job"):
        await asyncio.wait_for(running, 10)
    assert party.peers[Role.COORDINATOR].messages[0] == Waiting()
    assert party.peers[Role.GUEST].messages == []


async def test_a_question_whether_the_job_exists_does_not_wait_for_the_machine(party: Setup) -> None:
    go_on = threading.Event()

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        go_on.wait(10)
        yield from ()

    machine = FakeMachine(handle)
    await party.start(machine)
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    for _ in range(2 * inbox.MAX_MESSAGES):
        await asyncio.wait_for(party.runner.deliver(Role.COORDINATOR, Waiting()), 10)
    go_on.set()
    assert Waiting() not in machine.given


async def test_parties_that_are_never_ready_end_the_job(leader: Setup) -> None:
    running = await leader.start(FakeMachine(), round_timeout=0.05)
    with pytest.raises(PeerError, match="were not ready"):
        await asyncio.wait_for(running, 10)


async def test_a_party_that_receives_nothing_gives_up_the_job(party: Setup) -> None:
    running = await party.start(FakeMachine(), round_timeout=0.05)
    with pytest.raises(PeerError, match=r"the host has received no message of the job for 0\.1 s"):
        await asyncio.wait_for(running, 10)


# --- progress


async def test_a_party_reports_the_work_before_the_first_round(party: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "PROGRESS_SECONDS", 0.0)
    coordinator = party.peers[Role.COORDINATOR]

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        report_progress(Stage.EXCHANGING, 1, 4)
        yield from finish(sender, message)

    running = await party.start(FakeMachine(handle))
    await party.runner.deliver(Role.GUEST, IdChallenge(b"", 10, 2))
    await coordinator.until(lambda: bool(coordinator.messages))
    assert coordinator.messages == [StageProgress(Stage.EXCHANGING, 0.25)]
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)


@pytest.mark.parametrize("is_due", [False, True])
async def test_rows_done_that_only_show_progress_leave_now_and_then(
    party: Setup, monkeypatch: pytest.MonkeyPatch, is_due: bool
) -> None:
    monkeypatch.setattr(runner_module, "PROGRESS_SECONDS", 0.0 if is_due else 1000.0)

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        if isinstance(message, BeginRound):
            for number in range(1, 4):
                yield Envelope(Role.COORDINATOR, RowsDone(message.key, number))
            yield Envelope(Role.GUEST, piece(message.key))
        yield from finish(sender, message)

    coordinator, guest = party.peers[Role.COORDINATOR], party.peers[Role.GUEST]
    running = await party.start(FakeMachine(handle))
    await party.runner.deliver(Role.COORDINATOR, begin(1))
    await guest.until(lambda: bool(guest.messages))
    await party.runner.deliver(Role.COORDINATOR, LAST)
    await asyncio.wait_for(running, 10)
    rows = [message.n_rows for message in coordinator.messages if isinstance(message, RowsDone)]
    assert rows == ([1, 2, 3] if is_due else [])


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("message", [StageProgress(Stage.READING, 0.5), AlignmentProgress(1, 5, 10, 10, 1)])
async def test_the_coordinator_tells_both_parties_that_the_job_progresses(leader: Setup, message: Message) -> None:
    offers = tuple(Envelope(each, OpenJob(JOB, mpz(15), each)) for each in PARTIES)
    host = leader.peers[Role.HOST]
    await leader.start(FakeMachine(start=offers))
    await host.until(lambda: Waiting() in host.messages)
    await leader.runner.deliver(Role.GUEST, message)
    await host.until(lambda: Waiting(has_progressed=True) in host.messages)
    n_told = len(host.messages)
    await leader.runner.deliver(Role.GUEST, message)  # nothing new
    await host.until(lambda: len(host.messages) > n_told + 2)
    assert host.messages.count(Waiting(has_progressed=True)) == 1


async def test_progress_restarts_the_time_of_the_coordinator_and_of_a_waiting_party(
    leader: Setup, party: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts: list[Role] = []
    monkeypatch.setattr(Patience, "wait_on", lambda self: restarts.append(self._role))

    def handle(sender: Role, message: Message) -> Iterator[Envelope]:
        yield Envelope(Role.COORDINATOR, RoundProgress(RoundKey(1, 1), 10, 100))

    await leader.start(FakeMachine(handle))
    await leader.runner.deliver(Role.GUEST, RowsDone(RoundKey(1, 1), 10))
    async with asyncio.timeout(10):
        while not leader.observed:
            await asyncio.sleep(0.001)
    assert restarts == [Role.COORDINATOR]
    assert leader.observed == [RoundProgress(RoundKey(1, 1), 10, 100)]

    await party.start(FakeMachine())
    await party.runner.deliver(Role.COORDINATOR, Waiting())
    await party.runner.deliver(Role.GUEST, Waiting(has_progressed=True))  # Only the coordinator can know.
    await party.runner.deliver(Role.COORDINATOR, Waiting(has_progressed=True))
    assert restarts == [Role.COORDINATOR, Role.HOST]
