"""The table of routes has every method of the contract, and servicers follow from it."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message as Request

from tests.support.rpc import plaintext_server
from trilateral.common.base.roles import Role
from trilateral.common.pb.v1 import (
    alignment_pb2,
    coordinator_pb2,
    guest_pb2,
    host_pb2,
    jobs_pb2,
    online_pb2,
    party_pb2,
    prediction_pb2,
    process_pb2,
    rounds_pb2,
)
from trilateral.common.process.server import bind
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.routes import MESSAGE_ROUTES, OPEN_METHODS, ROUTE_AT, ROUTES, MessageRoute, VectorRoute
from trilateral.common.rpc.servicers import add_services

MODULES = (
    alignment_pb2,
    coordinator_pb2,
    guest_pb2,
    host_pb2,
    jobs_pb2,
    online_pb2,
    party_pb2,
    prediction_pb2,
    process_pb2,
    rounds_pb2,
)
CONTRACT = {
    f"/{service.full_name}/{method.name}": (module, method)
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_the_table_has_exactly_the_methods_of_the_contract() -> None:
    assert ROUTE_AT.keys() == CONTRACT.keys()
    assert len(ROUTES) == len(ROUTE_AT)
    assert OPEN_METHODS.isdisjoint(ROUTE_AT)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_routes_types_and_streams_are_those_of_the_contract(route: Any) -> None:
    module, method = CONTRACT[route.path]
    assert (method.input_type, method.output_type) == (route.request.DESCRIPTOR, route.response.DESCRIPTOR)
    # Vectors and roles of rows have the same form whoever receives them.
    shared = rounds_pb2 if isinstance(route, VectorRoute) or route.method == "SendRowRoles" else module
    assert route.request is getattr(shared, method.input_type.name)
    assert route.response is getattr(shared, method.output_type.name)
    assert route.streams_requests is method.client_streaming
    assert route.streams_responses is method.server_streaming


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_roles_or_a_permission_decide_who_calls_a_method_and_never_both(route: Any) -> None:
    assert bool(route.callers) is (route.permission is None)


@pytest.mark.parametrize("route", MESSAGE_ROUTES, ids=lambda route: route.name)
def test_every_message_is_acknowledged_with_an_empty_response(route: MessageRoute) -> None:
    assert route.response.DESCRIPTOR.fields == []


class Inbox:
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def deliver(self, request: Request) -> None:
        self.requests.append(request)

    async def deliver_stream(self, requests: AsyncIterator[Request]) -> None:
        async for request in requests:
            self.requests.append(request)


class Watching:
    """Answers some methods of the operators' service."""

    async def GetJob(self, request: jobs_pb2.GetJobRequest, context: Any) -> jobs_pb2.GetJobResponse:
        return jobs_pb2.GetJobResponse(status=jobs_pb2.JobStatus(job=request.job))

    async def WatchJob(
        self, request: jobs_pb2.WatchJobRequest, context: Any
    ) -> AsyncIterator[jobs_pb2.WatchJobResponse]:
        for number in (1, 2):
            yield jobs_pb2.WatchJobResponse(status=jobs_pb2.JobStatus(job=request.job, round=number))

    ListJobs = ListRounds = StartJob = StopJob = ResumeJob = GetJob


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
async def channel(inbox: Inbox) -> AsyncIterator[grpc.aio.Channel]:
    server = plaintext_server(Role.COORDINATOR)
    add_services(server, {"CoordinatorService": inbox, "JobService": Watching()})
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    async with open_channel(address, None) as channel:
        yield channel
    await server.stop(None)


async def call(channel: grpc.aio.Channel, name: str, *requests: Request) -> list[Any]:
    route = ROUTE_AT[f"/trilateral.v1.{name}"]
    coding: dict[str, Any] = {
        "request_serializer": route.request.SerializeToString,
        "response_deserializer": route.response.FromString,
    }
    options: dict[str, Any] = {"metadata": call_metadata(Role.GUEST), "timeout": 5}
    make: Any
    if route.streams_requests:
        make = channel.stream_unary(route.path, **coding)
        return [await make(iter(requests), **options)]
    if route.streams_responses:
        make = channel.unary_stream(route.path, **coding)
        return [response async for response in make(requests[0], **options)]
    make = channel.unary_unary(route.path, **coding)
    return [await make(requests[0], **options)]


async def test_a_message_goes_to_the_receiver_of_its_service(channel: grpc.aio.Channel, inbox: Inbox) -> None:
    ready = coordinator_pb2.ReportReadyRequest(job="credit", n_train=3, n_columns=2)
    assert await call(channel, "CoordinatorService/ReportReady", ready) == [coordinator_pb2.ReportReadyResponse()]
    assert inbox.requests == [ready]


async def test_a_vector_goes_to_the_receiver_chunk_by_chunk(channel: grpc.aio.Channel, inbox: Inbox) -> None:
    chunks = [rounds_pb2.SendVectorRequest(kind=rounds_pb2.VECTOR_KIND_LOSS, offset=offset) for offset in (0, 1)]
    assert await call(channel, "CoordinatorService/SendVector", *chunks) == [rounds_pb2.SendVectorResponse()]
    assert inbox.requests == chunks


async def test_a_method_without_a_message_is_answered_by_the_servicer(channel: grpc.aio.Channel) -> None:
    (found,) = await call(channel, "JobService/GetJob", jobs_pb2.GetJobRequest(job="credit"))
    assert found.status.job == "credit"
    watched = await call(channel, "JobService/WatchJob", jobs_pb2.WatchJobRequest(job="credit"))
    assert [response.status.round for response in watched] == [1, 2]


async def test_a_servicer_without_one_of_the_methods_is_not_served() -> None:
    server = plaintext_server(Role.COORDINATOR)
    with pytest.raises(AttributeError, match="StartJob"):
        add_services(server, {"JobService": object()})
