"""A link delivers in order, tries again as long as the peer may come back, and reports which peer it waits for."""

import asyncio
import gc
import logging
import re
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from tests.support.ciphertexts import some_ciphertexts
from tests.support.rpc import Recorder, connected, plaintext_server, served
from trilateral.common.base.errors import DataError, PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.jobs import links
from trilateral.common.jobs.history import Traffic
from trilateral.common.jobs.links import Link
from trilateral.common.observe.events import Delivered, Event
from trilateral.common.pb.v1 import coordinator_pb2, rounds_pb2
from trilateral.common.process.server import bind
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import (
    BeginRound,
    ElementPiece,
    Failed,
    Finished,
    FinishJob,
    IdChallenge,
    Kind,
    Message,
    Ready,
    RoundKey,
    VectorPiece,
)
from trilateral.common.rpc import calls
from trilateral.common.rpc.calls import Silence
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import PACKAGE, JobKey
from trilateral.common.rpc.errors import InternalError, StoppingError, UnknownJobError, abort
from trilateral.common.rpc.versions import version_metadata

JOB = JobKey.draw("credit")
KEY = RoundKey(1, 1)
MakeLink = Callable[..., Link]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


class Failures(list[Exception]):
    """The errors that ended links."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def append(self, error: Exception) -> None:
        super().append(error)
        self._changed.set()

    async def first(self) -> Exception:
        await asyncio.wait_for(self._changed.wait(), 10)
        return self[0]


class Waits(list[Silence | None]):
    """What a link reports about a peer that does not answer."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    def __call__(self, peer: Peer, silence: Silence | None) -> None:
        self.append(silence)
        self.begun.set()


@pytest.fixture
def failures() -> Failures:
    return Failures()


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
async def make_link(failures: Failures, waits: Waits) -> AsyncIterator[MakeLink]:
    made = []

    def make(peer: Peer, sender: Role = Role.HOST, **limits: float) -> Link:
        link = Link(
            JOB,
            sender,
            peer,
            limits=Limits(**limits),
            on_sent=lambda *_: None,
            on_failure=failures.append,
            on_wait=waits,
        )
        made.append(link)
        return link

    yield make
    await asyncio.gather(*(link.close(0) for link in made))


def piece(offset: int, count: int = 2, total: int = 6, key: RoundKey = KEY, kind: Kind = Kind.GRADIENT) -> VectorPiece:
    return VectorPiece(key, kind, offset, total, some_ciphertexts(*range(offset + 1, offset + count + 1)))


def ciphertexts(recorder: Recorder) -> list[int]:
    return [int(c) for m in recorder.messages if isinstance(m, VectorPiece) for c in m.ciphertexts]


def free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


async def test_messages_arrive_in_order_and_vectors_share_a_call(recorder: Recorder, make_link: MakeLink) -> None:
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        for message in (Ready(10, 2), piece(0), piece(2), piece(4), piece(0, kind=Kind.CURVATURE), Finished()):
            link.send(message)
        await link.close(5)
    assert recorder.calls == ["ReportReady", "SendVector", "ReportFinished"]
    assert recorder.jobs == {JOB}
    assert ciphertexts(recorder) == [1, 2, 3, 4, 5, 6, 1, 2]


async def test_the_receiver_has_the_first_piece_before_the_second_is_made(
    recorder: Recorder, make_link: MakeLink
) -> None:
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        link.send(piece(0))
        await recorder.until(lambda: len(recorder.messages) == 1)
        link.send(piece(2))
        await recorder.until(lambda: len(recorder.messages) == 2)
        assert recorder.calls == ["SendVector"]


async def test_a_vector_that_is_acknowledged_before_its_end_is_no_failure(
    make_link: MakeLink, failures: Failures
) -> None:
    """A peer whose run has finished needs no more of it."""
    said: list[str] = []

    async def take(request: Any, context: Any) -> Any:
        said.append("finished")
        context.set_trailing_metadata(version_metadata())
        return coordinator_pb2.ReportFinishedResponse()

    async def take_first(requests: AsyncIterator[Any], context: Any) -> Any:
        said.append(f"from {(await anext(requests)).offset}")
        return rounds_pb2.SendVectorResponse()

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "SendVector": grpc.stream_unary_rpc_method_handler(
            take_first, rounds_pb2.SendVectorRequest.FromString, rounds_pb2.SendVectorResponse.SerializeToString
        ),
        "ReportFinished": grpc.unary_unary_rpc_method_handler(
            take,
            coordinator_pb2.ReportFinishedRequest.FromString,
            coordinator_pb2.ReportFinishedResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.CoordinatorService", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connected(Role.COORDINATOR, f"127.0.0.1:{port}") as peer:
        link = make_link(peer)
        link.send(piece(0))
        while not said:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)  # The answer is on its way while the link waits for the next piece.
        for message in (piece(2), piece(4), Finished()):
            link.send(message)
        await link.close(5)
    await server.stop(0)
    assert not failures
    assert said[0] == "from 0"
    assert said[-1] == "finished"


async def test_a_peer_that_comes_up_late_gets_everything(
    recorder: Recorder, make_link: MakeLink, failures: Failures, waits: Waits
) -> None:
    address = free_address()
    async with connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        link.send(Ready(10, 2))
        link.send(piece(0, 6))
        await waits.begun.wait()
        async with served(Role.COORDINATOR, recorder, address):
            await link.close(10)
    assert ciphertexts(recorder) == [1, 2, 3, 4, 5, 6]
    assert waits[-1] is None
    assert not failures


async def test_a_peer_that_is_silent_is_named_during_the_call(
    recorder: Recorder,
    make_link: MakeLink,
    waits: Waits,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(links, "NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(links, "LOG_SECONDS", 0.0)
    caplog.set_level("INFO")
    held = asyncio.Event()

    async def hold(message: Message, context: Any) -> None:
        await held.wait()

    recorder.react = hold
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer, peer_timeout=42)
        link.send(Finished())
        async with asyncio.timeout(10):
            while len(waits) < 3:
                await asyncio.sleep(0.001)
        held.set()
        await link.close(5)
    assert waits[-1] is None
    silence, *others = [each for each in waits if each is not None]
    assert others
    assert all(other == silence for other in others)
    assert silence.until == pytest.approx(silence.since + 42)
    (line,) = [record.getMessage() for record in caplog.records if "silent" in record.getMessage()]
    assert re.fullmatch(
        rf"job \S+: waiting until [\d:]{{8}} UTC for the coordinator at {address}, silent since [\d:]{{8}}", line
    )
    assert f"the coordinator at {address} answers again" in caplog.text


async def test_a_peer_knows_for_how_long_it_has_been_silent_and_how_often_it_was_called_again(
    make_link: MakeLink, failures: Failures
) -> None:
    async with connected(Role.COORDINATOR, free_address()) as peer:
        assert (peer.silence, peer.retries) == (0, 0)
        for message in (Ready(10, 2), piece(0)):
            link = make_link(peer)
            link.send(message)
            async with asyncio.timeout(10):
                while not peer.retries:
                    await asyncio.sleep(0.001)
            assert peer.silence > 0
            await link.close(0)
            await asyncio.sleep(0)
            assert peer.silence == 0
            peer.retries = 0
    assert failures == []


async def test_a_wait_for_the_last_message_is_not_reported(
    recorder: Recorder, make_link: MakeLink, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "NOTICE_SECONDS", 0.01)
    async with connected(Role.COORDINATOR, free_address()) as peer:
        link = make_link(peer)
        link.clear()
        link.send(Failed("stopped"))
        await link.close(0.2)
    assert waits == []


async def test_an_address_where_another_role_listens_is_named_by_its_setting(
    make_link: MakeLink, failures: Failures
) -> None:
    server = plaintext_server(Role.COORDINATOR)
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    async with connected(Role.HOST, address) as peer:
        make_link(peer, Role.GUEST).send(IdChallenge(b"nonce", 3, 3))
        error = await failures.first()
    await server.stop(None)
    assert str(error) == (
        f"the process at {address} is not the host, or runs another release: correct `peers.host` in the guest's "
        "configuration, or install the same release of trilateral for all three processes"
    )


async def test_a_vector_cut_off_is_sent_again_from_its_first_piece(recorder: Recorder, make_link: MakeLink) -> None:
    async def die_once(message: Message, context: Any) -> None:
        if len(recorder.messages) == 2:
            await context.abort(grpc.StatusCode.UNAVAILABLE)

    recorder.react = die_once
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        for offset in (0, 2, 4):
            link.send(piece(offset))
        await link.close(5)
    assert recorder.calls == ["SendVector", "SendVector"]
    assert ciphertexts(recorder)[4:] == [1, 2, 3, 4, 5, 6]


async def test_a_peer_that_stays_away_ends_the_link_and_is_named(make_link: MakeLink, failures: Failures) -> None:
    address = free_address()
    async with connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer, peer_timeout=0.2)
        link.send(Ready(10, 2))
        error = await failures.first()
        link.send(Finished())  # into the void, and does not hang
    assert len(failures) == 1
    assert isinstance(error, PeerError)
    assert str(error) == (
        f"the coordinator at {address} has not answered for 0.2 s: check that it runs and can be reached"
    )


async def test_a_peer_that_takes_the_call_and_is_silent_ends_the_link(
    recorder: Recorder, make_link: MakeLink, failures: Failures
) -> None:
    async def be_silent(message: Message, context: Any) -> None:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED)

    recorder.react = be_silent
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer, peer_timeout=20)
        link.send(Ready(10, 2))
        link.send(Finished())
        assert "has not answered for 20 s" in str(await failures.first())
    assert recorder.calls == ["ReportReady"]


async def test_a_message_has_a_deadline_and_a_vector_lasts_as_long_as_the_peer_takes_it(
    recorder: Recorder, make_link: MakeLink
) -> None:
    seconds_left: list[float | None] = []

    async def look(message: Message, context: Any) -> None:
        seconds_left.append(context.time_remaining())

    recorder.react = look
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer, peer_timeout=1000, round_timeout=2000)
        link.send(Ready(10, 2))
        link.send(piece(0, 6))
        await link.close(10)
    assert seconds_left == [pytest.approx(1000, rel=0.1), None]


async def test_a_peer_that_takes_no_piece_ends_the_link_unless_the_job_progresses(
    recorder: Recorder, make_link: MakeLink, failures: Failures
) -> None:
    async def take_nothing(message: Message, context: Any) -> None:
        await asyncio.Event().wait()

    recorder.react = take_nothing
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer, round_timeout=0.15)
        link.send(piece(0, 6))
        for _ in range(20):
            await asyncio.sleep(0.05)
            link.wait_on()
        assert not failures
        assert "has taken nothing for 0.3 s" in str(await failures.first())


async def test_a_link_is_idle_when_everything_is_acknowledged(recorder: Recorder, make_link: MakeLink) -> None:
    held = asyncio.Event()

    async def hold(message: Message, context: Any) -> None:
        await held.wait()

    recorder.react = hold
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        assert link.is_idle
        link.send(piece(0, 6))
        assert not link.is_idle
        await recorder.until(lambda: bool(recorder.messages))
        assert not link.is_idle
        held.set()
        link.send(Finished())  # ends the call
        await recorder.until(lambda: len(recorder.messages) == 2)
        assert link.is_idle


async def test_what_a_link_keeps_to_send_again_is_bounded_by_a_call(
    recorder: Recorder, make_link: MakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = piece(0, 1).n_bytes
    monkeypatch.setattr(links, "CALL_BYTES", 5 * size)
    kept: list[int] = []

    async def look(message: Message, context: Any) -> None:
        kept.append(len(link._unacknowledged))

    recorder.react = look
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        for number in range(60):
            link.send(piece(number, 1, total=60))
        await recorder.until(lambda: len(recorder.messages) == 60)
        await link.close(5)
    assert max(kept) <= 5
    assert len(recorder.calls) >= 60 / 5


async def test_a_refusal_is_final_and_keeps_its_class(
    recorder: Recorder, make_link: MakeLink, failures: Failures
) -> None:
    async def refuse(message: Message, context: Any) -> None:
        raise DataError("no")

    recorder.react = refuse
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        for offset in (0, 2, 4):
            link.send(piece(offset))
        await failures.first()
        with pytest.raises(DataError, match="^no$"):
            await link.call(Finished())
    assert [(type(error), str(error)) for error in failures] == [(DataError, "no")]


async def test_a_call_that_grpc_ended_by_itself_is_made_again(recorder: Recorder, make_link: MakeLink) -> None:
    async def end_once(message: Message, context: Any) -> None:
        if len(recorder.messages) == 1:
            await context.abort(grpc.StatusCode.INTERNAL, "Internal error from Core")

    recorder.react = end_once
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        await make_link(peer).call(Finished())
    assert recorder.calls == ["ReportFinished"] * 2


async def test_a_bug_of_the_peer_is_final(recorder: Recorder, make_link: MakeLink) -> None:
    async def stumble(message: Message, context: Any) -> None:
        raise ZeroDivisionError

    recorder.react = stumble
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        with pytest.raises(InternalError, match="see the log of the coordinator"):
            await make_link(peer).call(Finished())
    assert recorder.calls == ["ReportFinished"]


async def test_a_party_may_learn_of_a_job_a_little_later_than_the_other(
    recorder: Recorder, make_link: MakeLink
) -> None:
    async def not_yet(message: Message, context: Any) -> None:
        if len(recorder.messages) == 1:
            raise UnknownJobError("which job?")

    recorder.react = not_yet
    async with served(Role.HOST, recorder) as address, connected(Role.HOST, address) as peer:
        await make_link(peer, Role.GUEST).call(IdChallenge(b"nonce", 3, 3))
    assert recorder.calls == ["ChallengeIds", "ChallengeIds"]


@pytest.mark.parametrize(("sender", "n_calls"), [(Role.COORDINATOR, 1), (Role.GUEST, 2)])
async def test_a_peer_that_does_not_know_the_job_has_lost_it(
    sender: Role, n_calls: int, recorder: Recorder, make_link: MakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(message: Message, context: Any) -> None:
        raise UnknownJobError("which job?")

    monkeypatch.setattr(calls, "UNKNOWN_JOB_PATIENCE", 0.05)
    recorder.react = never
    message: Message = Failed("x") if sender is Role.COORDINATOR else IdChallenge(b"nonce", 3, 3)
    async with served(Role.HOST, recorder) as address, connected(Role.HOST, address) as peer:
        with pytest.raises(PeerError, match=r"the host at .* has lost the job \(was it restarted\?\)"):
            await make_link(peer, sender).call(message)
    assert len(recorder.calls) == n_calls


async def test_messages_that_a_newer_attempt_overtakes_are_dropped(recorder: Recorder, make_link: MakeLink) -> None:
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        link.send(piece(0))
        await recorder.until(lambda: bool(recorder.messages))
        link.send(piece(2))
        link.send(Ready(10, 2))
        link.overtake(RoundKey(1, 2))
        link.send(piece(4))
        for offset in (0, 2, 4):
            link.send(piece(offset, key=RoundKey(1, 2)))
        await link.close(5)
    keys = [message.key for message in recorder.messages if isinstance(message, VectorPiece)]
    assert keys == [KEY] + [RoundKey(1, 2)] * 3
    assert recorder.calls == ["SendVector", "ReportReady", "SendVector"]


async def test_what_belongs_to_the_session_is_never_overtaken(recorder: Recorder, make_link: MakeLink) -> None:
    async with served(Role.GUEST, recorder) as address, connected(Role.GUEST, address) as peer:
        link = make_link(peer)
        link.overtake(RoundKey(3, 1))
        link.send(elements(0, kind=Kind.MASKED_SCORES))
        link.send(elements(1, RoundKey(0, 0), Kind.MASKED_COLUMNS))
        link.overtake(RoundKey(4, 1))
        await link.close(5)
    assert told(recorder) == [("masked_columns", RoundKey(0, 0), 1)]


async def test_a_vector_for_a_peer_that_is_away_is_dropped_when_overtaken(
    recorder: Recorder, make_link: MakeLink, failures: Failures, caplog: pytest.LogCaptureFixture
) -> None:
    address = free_address()
    async with connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        with caplog.at_level(logging.INFO):
            link.send(piece(0, 6))
            link.send(Finished())
            async with asyncio.timeout(10):
                while "for the coordinator" not in caplog.text:
                    await asyncio.sleep(0.001)
        link.overtake(RoundKey(2, 1))
        async with served(Role.COORDINATOR, recorder, address):
            await link.close(10)
    assert recorder.calls == ["ReportFinished"]
    assert not failures


async def test_a_vector_whose_time_is_up_is_no_failure_once_it_is_overtaken(
    recorder: Recorder, make_link: MakeLink, failures: Failures
) -> None:
    async def be_late(message: Message, context: Any) -> None:
        if isinstance(message, VectorPiece):
            link.overtake(RoundKey(1, 2))
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED)

    recorder.react = be_late
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        link.send(piece(0, 6))
        link.send(Finished())
        await link.close(5)
    assert recorder.calls == ["SendVector", "ReportFinished"]
    assert not failures


async def test_a_last_message_does_not_wait_for_queued_ones(recorder: Recorder, make_link: MakeLink) -> None:
    async def hold(message: Message, context: Any) -> None:
        if not isinstance(message, Failed):
            await asyncio.Event().wait()

    recorder.react = hold
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        for offset in (0, 2, 4):
            link.send(piece(offset))
        await recorder.until(lambda: bool(recorder.messages))
        link.clear()
        link.send(Failed("stopped"))
        await link.close(5)
    assert recorder.calls == ["SendVector", "ReportFailure"]


async def test_traffic_counts_each_ciphertext_once(recorder: Recorder, failures: Failures) -> None:
    async def die_once(message: Message, context: Any) -> None:
        if len(recorder.messages) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE)

    recorder.react, sent = die_once, Traffic("sent")
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        on_sent = partial(sent.count, peer.role)
        link = Link(JOB, Role.HOST, peer, limits=Limits(), on_sent=on_sent, on_failure=failures.append)
        link.send(piece(0, 6))
        await link.close(5)
    counted = sent.pop_round(KEY)["gradient"]
    assert counted["ciphertexts"] == 6
    assert 6 * 64 < counted["bytes"] < 6 * 64 + 60


async def test_a_long_vector_is_given_up_only_after_silence_and_not_after_a_second_cut(
    recorder: Recorder, make_link: MakeLink, failures: Failures
) -> None:
    """Between the cuts, which are further apart than `peer_timeout`, pieces arrive."""
    cuts = [1, 3]

    async def cut(message: Message, context: Any) -> None:
        if cuts and len(recorder.messages) >= cuts[0]:
            cuts.pop(0)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "")

    recorder.react = cut
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer, peer_timeout=0.4)
        link.send(piece(0))
        await recorder.until(lambda: len(cuts) == 1)
        await asyncio.sleep(0.6)
        link.send(piece(2))
        await recorder.until(lambda: not cuts)
        link.send(piece(4))
        await link.close(10)
    assert set(ciphertexts(recorder)) == {1, 2, 3, 4, 5, 6}
    assert not failures


async def test_a_process_that_is_being_stopped_is_tried_again(
    recorder: Recorder, make_link: MakeLink, failures: Failures
) -> None:
    answers = [StoppingError("the coordinator is being stopped")]

    async def react(message: Message, context: Any) -> None:
        if answers:
            await abort(context, answers.pop(), Role.COORDINATOR)

    recorder.react = react
    async with served(Role.COORDINATOR, recorder) as address, connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        link.send(Ready(10, 2))
        await link.close(10)
    assert len(recorder.messages) == 2
    assert not failures


# --- ring elements


def elements(number: int, key: RoundKey = KEY, kind: Kind = Kind.DEALT, n_rows: int = 8) -> ElementPiece:
    return ElementPiece(key, kind, number * n_rows, 2**20, n_rows, np.full(2 * n_rows, number, dtype=np.uint64))


def begin(key: RoundKey) -> BeginRound:
    return BeginRound(key, np.zeros(0), Batch(1, 0), gradient=True)


def told(recorder: Recorder) -> list[tuple[str, RoundKey, int]]:
    """Each message of a round: what it is, its round, and which piece."""
    return [
        (m.kind.value, m.key, m.offset // m.n_rows)
        if isinstance(m, ElementPiece)
        else (type(m).__name__, getattr(m, "key", RoundKey(0, 0)), 0)
        for m in recorder.messages
    ]


async def test_pieces_of_several_vectors_share_a_call_and_keep_their_order(
    recorder: Recorder, make_link: MakeLink
) -> None:
    async with served(Role.GUEST, recorder) as address, connected(Role.GUEST, address) as peer:
        link = make_link(peer)
        for number in range(3):
            link.send(elements(number, kind=Kind.MASKED_SCORES))
            link.send(elements(number, kind=Kind.MASKED_RESIDUAL))
        await link.close(5)
    kinds = [Kind.MASKED_SCORES, Kind.MASKED_RESIDUAL]
    assert told(recorder) == [(kind.value, KEY, number) for number in range(3) for kind in kinds]
    assert recorder.calls == ["SendElements"]


async def test_a_peer_that_takes_no_elements_is_named_until_it_does(
    recorder: Recorder, make_link: MakeLink, waits: Waits
) -> None:
    """The coordinator deals as long as there is room, and asks a peer nothing while it waits for room."""
    address = free_address()
    async with connected(Role.HOST, address) as peer:
        link = make_link(peer, Role.COORDINATOR, peer_timeout=42)
        link.send(elements(0))
        async with asyncio.timeout(10):
            await waits.begun.wait()
        silence = waits[0]
        assert silence is not None
        assert silence.until == pytest.approx(silence.since + 42)
        async with served(Role.HOST, recorder, address):
            await link.close(10)
    assert told(recorder) == [("dealt", KEY, 0)]
    assert waits == [silence, None]


async def test_a_call_ends_after_its_bytes_so_that_the_link_keeps_no_more(
    recorder: Recorder, make_link: MakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "CALL_BYTES", 300)
    async with served(Role.HOST, recorder) as address, connected(Role.HOST, address) as peer:
        link = make_link(peer, Role.COORDINATOR)
        for number in range(5):
            link.send(elements(number))
        await link.close(5)
    assert told(recorder) == [("dealt", KEY, number) for number in range(5)]
    assert recorder.calls == ["SendElements"] * 3
    assert sum(piece.elements.nbytes for piece in map(elements, range(5))) > links.CALL_BYTES


async def test_pieces_are_freed_with_their_call_without_a_garbage_collection(
    recorder: Recorder, make_link: MakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a mebibyte: what waits for the collector is most of the memory of a process that sends many."""
    monkeypatch.setattr(links, "CALL_BYTES", 300)
    gc.disable()
    try:
        async with served(Role.HOST, recorder) as address, connected(Role.HOST, address) as peer:
            link = make_link(peer, Role.COORDINATOR)
            pieces = [elements(number) for number in range(5)]
            alive = [weakref.ref(piece.elements) for piece in pieces]
            for number in range(5):
                link.send(pieces[number])
            pieces.clear()
            await link.close(5)
        assert len(recorder.messages) == 5
        assert [each() is None for each in alive] == [True] * 5
    finally:
        gc.enable()


async def test_a_call_is_acknowledged_although_nothing_follows(
    recorder: Recorder, failures: Failures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next round would otherwise have to wait for the acknowledgement."""
    delivered: list[Event] = []
    monkeypatch.setattr(links, "LINGER_SECONDS", 0.001)
    async with served(Role.HOST, recorder) as address, connected(Role.HOST, address) as peer:
        link = Link(
            JOB,
            Role.COORDINATOR,
            peer,
            limits=Limits(),
            on_sent=lambda *_: None,
            on_failure=failures.append,
            on_delivered=delivered.append,
        )
        for number in range(2):
            link.send(elements(number))
        async with asyncio.timeout(10):
            while not delivered:
                await asyncio.sleep(0.001)
        await link.close(5)
    (event,) = delivered
    assert isinstance(event, Delivered)
    assert (event.what, event.key) == ("dealt", KEY)


async def test_all_pieces_of_a_call_that_was_cut_off_are_sent_again(recorder: Recorder, make_link: MakeLink) -> None:
    async def die_once(message: Message, context: Any) -> None:
        if len(recorder.messages) == 2:
            await context.abort(grpc.StatusCode.UNAVAILABLE)

    recorder.react = die_once
    async with served(Role.HOST, recorder) as address, connected(Role.HOST, address) as peer:
        link = make_link(peer, Role.COORDINATOR)
        for number in range(3):
            link.send(elements(number))
        await link.close(5)
    assert told(recorder)[2:] == [("dealt", KEY, number) for number in range(3)]


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (begin(RoundKey(1, 2)), []),
        (begin(RoundKey(2, 1)), [("dealt", RoundKey(2, 1), 2)]),
        (FinishJob(2, np.zeros(0), 0.5, 1, "converged", None), []),
    ],
    ids=["next attempt", "next round", "end"],
)
async def test_pieces_that_the_next_message_makes_useless_are_dropped(
    message: Message, kept: list[Any], recorder: Recorder, make_link: MakeLink
) -> None:
    """Among them is what was dealt ahead, for the round after an attempt that is repeated."""
    held = asyncio.Event()

    async def hold(received: Message, context: Any) -> None:
        await held.wait()

    recorder.react = hold
    async with served(Role.HOST, recorder) as address, connected(Role.HOST, address) as peer:
        link = make_link(peer, Role.COORDINATOR)
        link.send(Failed("this call is held up"))
        await recorder.until(lambda: bool(recorder.messages))
        pieces = [elements(0), elements(1), elements(2, RoundKey(2, 1))]
        for piece in pieces:
            link.expect(piece)
            link.send(piece)
        link.send(message)
        held.set()
        await link.close(5)
    assert told(recorder)[1:-1] == kept
    assert type(recorder.messages[-1]) is type(message)
    assert link._n_expected == link._n_taken


async def test_a_full_link_has_room_once_the_peer_takes_pieces(
    recorder: Recorder, make_link: MakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "QUEUE_BYTES", 300)
    monkeypatch.setattr(links, "CALL_BYTES", 1)
    held = asyncio.Event()

    async def hold(received: Message, context: Any) -> None:
        await held.wait()

    recorder.react = hold
    async with served(Role.HOST, recorder) as address, connected(Role.HOST, address) as peer:
        link = make_link(peer, Role.COORDINATOR)
        for number in range(4):
            assert not link.is_full
            link.expect(elements(number))
            link.send(elements(number))
            if not number:
                await recorder.until(lambda: bool(recorder.messages))
        waiting = asyncio.create_task(link.room())
        await asyncio.sleep(0)
        assert link.is_full
        assert not waiting.done()
        held.set()
        await asyncio.wait_for(waiting, 10)
        assert not link.is_full
        await link.close(5)


async def test_nothing_waits_for_room_at_a_link_that_has_ended(
    make_link: MakeLink, failures: Failures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "QUEUE_BYTES", 1)
    async with connected(Role.HOST, free_address()) as peer:
        link = make_link(peer, Role.COORDINATOR, peer_timeout=0.2)
        for number in range(2):
            link.expect(elements(number))
            link.send(elements(number))
        await asyncio.wait_for(link.room(), 10)
        await failures.first()
        link.expect(elements(2))
        assert not link.is_full


# --- rounds


def of_round(number: int, *, over: bool = False) -> BeginRound:
    return BeginRound(RoundKey(number, 1), np.zeros(2), Batch(1, 0), gradient=True, loss=None, over=over)


async def test_a_pause_between_rounds_may_be_longer_than_the_peer_timeout_of_the_receiver(
    recorder: Recorder, make_link: MakeLink, failures: Failures
) -> None:
    server = plaintext_server(Role.COORDINATOR, Limits(peer_timeout=3))
    server.add_generic_rpc_handlers(recorder.handlers())
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    async with connected(Role.COORDINATOR, address) as peer:
        link = make_link(peer)
        link.send(piece(0))
        await recorder.until(lambda: len(recorder.messages) == 1)
        await asyncio.sleep(3.3)
        link.send(piece(2))
        await recorder.until(lambda: len(recorder.messages) == 2)
        await link.close(5)
    await server.stop(None)
    assert not failures


async def test_rounds_share_a_call_which_another_message_ends(recorder: Recorder, make_link: MakeLink) -> None:
    end = FinishJob(4, np.zeros(2), 0.5, 1, "converged", 0.5)
    async with served(Role.HOST, recorder) as address, connected(Role.HOST, address) as peer:
        link = make_link(peer, Role.COORDINATOR)
        for message in (of_round(1, over=True), of_round(2), of_round(3), end):
            link.send(message)
        await link.close(5)
    assert recorder.calls == ["BeginRound", "FinishJob"]
    begun = [message.key.round for message in recorder.messages if isinstance(message, BeginRound)]
    assert begun == sorted(begun)
    assert 1 in begun  # A party that has missed a round gets its step, whatever follows.
    assert 3 in begun


async def test_a_peer_that_does_not_acknowledge_a_round_is_given_up(
    recorder: Recorder, make_link: MakeLink, failures: Failures
) -> None:
    async def take_nothing(message: Message, context: Any) -> None:
        await asyncio.Event().wait()

    recorder.react = take_nothing
    async with served(Role.HOST, recorder) as address, connected(Role.HOST, address) as peer:
        link = make_link(peer, Role.COORDINATOR, peer_timeout=0.3)
        link.send(of_round(1))
        assert re.search("the host at .* has not answered for 0.3 s", str(await failures.first()))
