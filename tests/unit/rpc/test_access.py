"""Who may call what: everything that the table does not permit is refused."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool

from common.pb.v1 import coordinator_pb2, guest_pb2, host_pb2, jobs_pb2, party_pb2, rounds_pb2
from common.protocol.messages import Kind
from common.roles import Role
from common.rpc.access import by_certificate, call_metadata
from common.rpc.channel import open_channel
from common.rpc.server import bind
from tests.support.rpc import plaintext_server

FILES = (coordinator_pb2, guest_pb2, host_pb2, jobs_pb2, party_pb2)
CONTRACT = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
CALLERS = ["host", "guest", "coordinator", "operator", None, "auditor"]

# Written out once more, independently of the code.
MAY_CALL = {
    "HostService/ChallengeIds": {"guest"},
    "HostService/ConfirmIds": {"guest"},
    "HostService/SendVector": {"guest"},
    "GuestService/ProveIds": {"host"},
    "GuestService/SendVector": {"host"},
    "GuestService/SendHoldoutScores": {"host"},
    "PartyService/OpenJob": {"coordinator"},
    "PartyService/BeginRound": {"coordinator"},
    "PartyService/FinishJob": {"coordinator"},
    "PartyService/CheckJob": {"coordinator"},
    "PartyService/FailJob": {"coordinator"},
    "CoordinatorService/ReportReady": {"host", "guest"},
    "CoordinatorService/SendVector": {"host", "guest"},
    "CoordinatorService/ReportOutOfRange": {"host", "guest"},
    "CoordinatorService/ReportFinished": {"host", "guest"},
    "CoordinatorService/ReportWaiting": {"host", "guest"},
    "CoordinatorService/ReportFailure": {"host", "guest"},
    "JobService/StartJob": {"guest"},
    "JobService/GetJob": {"host", "guest", "coordinator"},
    "JobService/ListJobs": {"host", "guest", "coordinator"},
    "JobService/WatchJob": {"host", "guest", "coordinator"},
    "JobService/StopJob": {"guest"},
}
MAY_SEND = {
    ("host", Kind.SCORES): {"guest"},
    ("host", Kind.SQUARES): {"guest"},
    ("host", Kind.SCORE_CHANGE): {"guest"},
    ("guest", Kind.RESIDUAL): {"host"},
    ("guest", Kind.TOTAL_CHANGE): {"host"},
    ("host", Kind.GRADIENT): {"coordinator"},
    ("guest", Kind.GRADIENT): {"coordinator"},
    ("host", Kind.CURVATURE): {"coordinator"},
    ("guest", Kind.CURVATURE): {"coordinator"},
    ("guest", Kind.LOSS): {"coordinator"},
}
"""Sender and kind to the receivers."""


def metadata(caller: str | None) -> tuple[tuple[str, str], ...]:
    return () if caller is None else (("trilateral-role", caller),)


class Everything(grpc.GenericRpcHandler):
    """Answers every method there is, and one that is not, with an empty message."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def unary(request: bytes, context: Any) -> bytes:
            return b""

        async def requests(stream: AsyncIterator[Any], context: Any) -> bytes:
            async for _ in stream:
                pass
            return b""

        async def responses(request: bytes, context: Any) -> AsyncIterator[bytes]:
            yield b""

        method = CONTRACT.get(str(handler_call_details.method))
        if method is not None and method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(requests, rounds_pb2.SendVectorRequest.FromString)
        if method is not None and method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(responses)
        return grpc.unary_unary_rpc_method_handler(unary)


@pytest.fixture(params=list(Role))
async def channel(request: pytest.FixtureRequest) -> AsyncIterator[grpc.aio.Channel]:
    server = plaintext_server(request.param)
    server.add_generic_rpc_handlers([Everything()])
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    async with open_channel(address, None) as channel:
        yield channel
    await server.stop(None)


async def status(channel: grpc.aio.Channel, path: str, caller: str | None, *requests: Any) -> grpc.StatusCode:
    method = CONTRACT.get(path)
    call: Any
    try:
        if method is not None and method.client_streaming:
            call = channel.stream_unary(path, request_serializer=rounds_pb2.SendVectorRequest.SerializeToString)
            await call(iter(requests), metadata=metadata(caller), timeout=5)
        elif method is not None and method.server_streaming:
            call = channel.unary_stream(path)
            async for _ in call(b"", metadata=metadata(caller), timeout=5):
                pass
        else:
            call = channel.unary_unary(path)
            await call(b"", metadata=metadata(caller), timeout=5)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_every_method_of_the_contract_and_every_kind_of_vector_is_tried_here() -> None:
    assert {f"/common.pb.v1.{method}" for method in MAY_CALL} == CONTRACT.keys()
    assert descriptor_pool.Default().FindFileByName("common/pb/v1/rounds.proto").services_by_name == {}
    assert {kind for _, kind in MAY_SEND} == set(Kind)


async def test_every_caller_but_those_named_is_refused(channel: grpc.aio.Channel) -> None:
    for method, callers in MAY_CALL.items():
        for caller in CALLERS:
            expected = grpc.StatusCode.OK if caller in callers else grpc.StatusCode.PERMISSION_DENIED
            assert await status(channel, f"/common.pb.v1.{method}", caller) is expected, (method, caller)


async def test_anyone_may_ask_for_the_health(channel: grpc.aio.Channel) -> None:
    for method in ("Check", "Watch"):
        for caller in CALLERS:
            assert await status(channel, f"/grpc.health.v1.Health/{method}", caller) is grpc.StatusCode.OK


async def test_a_method_without_a_row_is_refused_to_all(channel: grpc.aio.Channel) -> None:
    for caller in CALLERS:
        refused = await status(channel, "/common.pb.v1.JobService/ExportKey", caller)
        assert refused is grpc.StatusCode.PERMISSION_DENIED


async def test_a_caller_of_two_roles_is_nobody(channel: grpc.aio.Channel) -> None:
    both = call_metadata(Role.GUEST) + call_metadata(Role.HOST)
    method: Any = channel.unary_unary("/common.pb.v1.JobService/StopJob")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await method(b"", metadata=both, timeout=5)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("channel", [Role.HOST, Role.GUEST, Role.COORDINATOR], indirect=True)
async def test_each_kind_of_vector_is_taken_only_from_the_role_that_makes_it(
    channel: grpc.aio.Channel, request: pytest.FixtureRequest
) -> None:
    receiver = request.node.callspec.params["channel"]
    path = f"/common.pb.v1.{receiver.value.capitalize()}Service/SendVector"
    for kind in Kind:
        number = rounds_pb2.VectorKind.Value(f"VECTOR_KIND_{kind.name}")
        for sender in CALLERS:
            sent = await status(channel, path, sender, rounds_pb2.SendVectorRequest(kind=number))
            permitted = receiver in MAY_SEND.get((str(sender), kind), set())
            assert sent is (grpc.StatusCode.OK if permitted else grpc.StatusCode.PERMISSION_DENIED), (kind, sender)


# --- who has which certificate

PEER_NAMES = {Role.HOST: "host.example.org", Role.GUEST: "10.0.0.4"}
OWN_NAMES = ("coordinator.example.org", "localhost", "::1")


class Shown:
    """A call whose caller has shown a certificate with these names, and says it is the coordinator."""

    def __init__(self, *names: bytes) -> None:
        self._names = names

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        return {"transport_security_type": (b"ssl",)} | (
            {"x509_subject_alternative_name": self._names} if self._names else {}
        )

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return call_metadata(Role.COORDINATOR)


@pytest.mark.parametrize(
    ("names", "role"),
    [
        ([b"host.example.org"], Role.HOST),
        ([b"localhost", b"HOST.example.org"], Role.HOST),
        ([b"10.0.0.4", b"guest.example.org"], Role.GUEST),
        ([b"::1", b"coordinator.example.org", b"localhost"], Role.COORDINATOR),
        ([], None),
        ([b"stranger.example.org"], None),
        ([b"*.example.org"], None),
        ([b"host.example.org.evil.example"], None),
        ([b"https://host.example.org"], None),
        ([b"root@host.example.org"], None),
        ([b"host.example.org\x00.evil.example"], None),
        ([b"\xff\xfe"], None),
        # A part of this process's own names, or more than them, is not its certificate.
        ([b"localhost"], None),
        ([b"coordinator.example.org"], None),
        ([b"coordinator.example.org", b"localhost", b"::1", b"x.example.org"], None),
        # Who would be two is nobody.
        ([b"host.example.org", b"10.0.0.4"], None),
    ],
)
def test_a_certificates_names_say_whose_it_is(names: list[bytes], role: Role | None) -> None:
    context: Any = Shown(*names)
    caller = by_certificate(context, Role.COORDINATOR, PEER_NAMES, OWN_NAMES)
    assert caller.role is role
    assert len(caller.names) == len(names)


def test_a_process_without_names_of_its_own_takes_nobody_for_itself() -> None:
    context: Any = Shown()
    assert by_certificate(context, Role.COORDINATOR, {}, ()).role is None
