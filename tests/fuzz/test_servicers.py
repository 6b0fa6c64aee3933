"""Every method of three real servers survives any requests, in any order, from callers that may call it."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import pytest
from gmpy2 import mpz
from google.protobuf.message import Message as Request
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.requests import requests
from tests.support.three_servers import DATASET, make_configs, serving, train_over_localhost, write_tables
from tests.support.waiting import eventually
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import OnlineConfig, Precomputed, ProcessConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.tables.id_form import form_of
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.paillier.keys import PrivateKey, generate_private_key
from trilateral.common.pb.v1 import (
    alignment_pb2,
    coordinator_pb2,
    guest_pb2,
    host_pb2,
    jobs_pb2,
    online_pb2,
    online_pb2_grpc,
    party_pb2,
    prediction_pb2,
    process_pb2,
)
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient
from trilateral.common.protocol.messages import OpenJob
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.errors import REASON_KEY
from trilateral.common.rpc.routes import MESSAGE_ROUTES, ROUTE_AT, encode

T = TypeVar("T")
JOB = JobConfig(name="a", dataset=DATASET, key_bits=512, holdout=0.0, epochs=3)
RUN = JobKey("a", bytes(16))
SECONDS = 5.0


STATUS_LOST = "Internal error from Core"
"""What grpc.aio reports in the client for a status that it has lost. A server's own errors have other texts."""
STATUS_TRIES = 10


@dataclass(frozen=True)
class Method:
    """A method of the wire contract, from its descriptor."""

    path: str
    server: Role
    request: type[Request]
    response: type[Request]
    streams_in: bool
    streams_out: bool


def methods() -> Iterator[Method]:
    at: dict[Any, tuple[Role, ...]] = {
        alignment_pb2: (Role.HOST,),
        host_pb2: (Role.HOST,),
        prediction_pb2: (Role.HOST,),
        online_pb2: (Role.HOST,),
        guest_pb2: (Role.GUEST,),
        party_pb2: PARTIES,
        coordinator_pb2: (Role.COORDINATOR,),
        jobs_pb2: (Role.COORDINATOR,),
        process_pb2: tuple(Role),
    }
    of_service = {"ScoreService": (Role.GUEST,)}
    for module, at_roles in at.items():
        for service in module.DESCRIPTOR.services_by_name.values():
            roles = of_service.get(service.name, at_roles)
            for method in service.methods:
                kinds = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
                streams = method.client_streaming, method.server_streaming
                for role in roles:
                    yield Method(f"/{service.full_name}/{method.name}", role, *kinds, *streams)


ALL_METHODS = list(methods())


def test_no_method_is_left_out() -> None:
    assert ROUTE_AT.keys() <= {method.path for method in ALL_METHODS}


@dataclass
class Servers:
    """Three servers in a thread, called from the synchronous functions that Hypothesis runs."""

    configs: dict[Role, ProcessConfig]
    key: PrivateKey
    prediction: bytes = b""
    """A request that opens a prediction with an identifier of sixteen zeros."""
    online: dict[str, Any] = field(default_factory=dict)
    """Fields of requests for online scores that are answered."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    channels: dict[Role, grpc.aio.Channel] = field(default_factory=dict)
    bugs: list[logging.LogRecord] = field(default_factory=list)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    async def find_list(self) -> bool:
        """Get the host's list of online scores, and return whether it is there."""
        opening = prediction_pb2.OpenPredictionRequest.FromString(self.prediction)
        self.online = {name: getattr(opening, name) for name in ("job", "run_id", "model", "dataset")}
        self.online["form"] = form_of(self.configs[Role.HOST].datasets[DATASET])
        stub = online_pb2_grpc.OnlineServiceStub(self.channels[Role.HOST])
        request = online_pb2.GetListRequest(**self.online)
        with suppress(grpc.aio.AioRpcError):
            async for response in stub.GetList(request, metadata=call_metadata(Role.GUEST)):
                self.online["list"] = response.list
        return "list" in self.online

    async def live(self, ready: threading.Event, stop: asyncio.Event) -> None:
        async with serving(self.configs):
            for role, config in self.configs.items():
                options = [("grpc.enable_http_proxy", 0)]
                self.channels[role] = grpc.aio.insecure_channel(config.listen, options=options)
            ready.set()
            await stop.wait()
            for channel in self.channels.values():
                await channel.close()

    async def call(self, method: Method, sender: Role, bodies: list[bytes]) -> grpc.aio.AioRpcError | None:
        """Call a method with serialised requests, and read at most one answer.

        grpc.aio loses the status of a call that ends during a write of the client. Such a call is made again.
        """
        for _ in range(STATUS_TRIES):
            error = await self._call(method, sender, bodies)
            if error is None or error.details() != STATUS_LOST:
                return error
        return error

    async def _call(self, method: Method, sender: Role, bodies: list[bytes]) -> grpc.aio.AioRpcError | None:
        name = {False: "unary", True: "stream"}
        make = getattr(self.channels[method.server], f"{name[method.streams_in]}_{name[method.streams_out]}")
        callable_ = make(method.path, response_deserializer=method.response.FromString)
        content = each(bodies) if method.streams_in else bodies[0]
        call = callable_(content, metadata=call_metadata(sender), timeout=SECONDS)
        try:
            if method.streams_out:
                await call.read()
                call.cancel()
            else:
                await call
        except grpc.aio.AioRpcError as error:
            return error
        return None


async def each(bodies: list[bytes]) -> AsyncIterator[bytes]:
    for body in bodies:
        yield body


class _Bugs(logging.Handler):
    """Keeps log records about unexpected errors, which are not subclasses of the project's own error."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__(logging.ERROR)
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or "unexpected" in record.getMessage():
            self._records.append(record)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("fuzzed")
    write_tables(folder)
    configs = make_configs(folder, peer_timeout=2)
    policy = configs[Role.HOST].policy.model_copy(update={"allow_prediction": True})
    online = OnlineConfig(precompute=[Precomputed(job="predicted", dataset=DATASET)])
    configs[Role.HOST] = configs[Role.HOST].model_copy(update={"policy": policy, "online": online})
    running = Servers(configs, generate_private_key(512))
    handler = _Bugs(running.bugs)
    logging.getLogger().addHandler(handler)
    thread = threading.Thread(target=running.loop.run_forever)
    thread.start()
    ready, stop = threading.Event(), asyncio.Event()
    life = asyncio.run_coroutine_threadsafe(running.live(ready, stop), running.loop)
    assert ready.wait(20)
    try:
        running.prediction = running.wait(prediction_of_a_model(configs))
        running.wait(eventually(running.find_list))
        yield running
    finally:
        running.loop.call_soon_threadsafe(stop.set)
        life.result(30)
        running.loop.call_soon_threadsafe(running.loop.stop)
        thread.join(10)
        running.loop.close()
        logging.getLogger().removeHandler(handler)


async def prediction_of_a_model(configs: dict[Role, ProcessConfig]) -> bytes:
    """Train a model, and return a request that opens a prediction with it."""
    job = JOB.model_copy(update={"name": "predicted"})
    async with JobClient(configs[Role.GUEST]) as client:
        assert (await train_over_localhost(client, job)).state == JOB_STATE_FINISHED
    model = load_model(JobFolder(configs[Role.GUEST].state, job.name).model)
    return prediction_pb2.OpenPredictionRequest(
        job=job.name,
        run_id=bytes.fromhex(model.run_id),
        prediction=bytes(16),
        model=model.shared_digest,
        dataset=DATASET,
    ).SerializeToString()


def offer(servers: Servers, party: Role) -> bytes:
    route = next(route for route in MESSAGE_ROUTES if route.message is OpenJob)
    return encode(RUN, OpenJob(JOB, mpz(servers.key.public_key.n), party), route).SerializeToString()


OPEN_PREDICTION = next(method for method in ALL_METHODS if method.path.endswith("/OpenPrediction"))
OPEN_JOB = {method.server: method for method in ALL_METHODS if method.path.endswith("/OpenJob")}


@settings(max_examples=40)
@pytest.mark.parametrize("method", ALL_METHODS, ids=lambda method: f"{method.server}{method.path}")
@given(data=st.data())
def test_any_request_gets_an_answer_or_a_refusal_by_the_project(
    method: Method, servers: Servers, data: st.DataObject
) -> None:
    """A job is open at a party, and half of the requests belong to it, or to a list of online scores.

    Prediction methods have an open prediction.
    """
    if "/PredictionService/" in method.path:
        assert servers.wait(servers.call(OPEN_PREDICTION, Role.GUEST, [servers.prediction])) is None
    if method.server in PARTIES:
        servers.wait(servers.call(OPEN_JOB[method.server], Role.COORDINATOR, [offer(servers, method.server)]))
    count = st.lists(requests(method.request), min_size=1, max_size=6 if method.streams_in else 1)
    drawn: list[Any] = data.draw(count)
    if data.draw(st.booleans()):
        known = {"job": RUN.name, "run_id": RUN.run_id}
        if "/OnlineService/" in method.path or "/ScoreService/" in method.path:
            known = servers.online
        for request in drawn:
            request.MergeFrom(
                method.request(**{name: known[name] for name in known if name in request.DESCRIPTOR.fields_by_name})
            )
    sender = data.draw(st.sampled_from(sorted(ROUTE_AT[method.path].callers or Role)))
    error = servers.wait(servers.call(method, sender, [request.SerializeToString() for request in drawn]))
    if error is not None:
        reason = dict(error.trailing_metadata() or ()).get(REASON_KEY)
        assert reason not in (None, "internal"), (error.code(), error.details())
    assert not servers.bugs, servers.bugs[0].getMessage()


@settings(max_examples=10)
@pytest.mark.parametrize("method", ALL_METHODS, ids=lambda method: f"{method.server}{method.path}")
@given(bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=3))
def test_bytes_that_cannot_be_parsed_get_an_answer(method: Method, servers: Servers, bodies: list[bytes]) -> None:
    """gRPC itself refuses them; the test only requires an answer before the deadline."""
    error = servers.wait(servers.call(method, Role.COORDINATOR, bodies))
    assert error is None or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED


async def is_serving(channel: grpc.aio.Channel) -> bool:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_the_servers_still_train_after_all_other_tests(servers: Servers) -> None:
    async def train() -> int:
        assert all([await is_serving(channel) for channel in servers.channels.values()])
        async with JobClient(servers.configs[Role.GUEST]) as client:
            for status in await client.statuses():
                with suppress(Exception):  # most have ended already
                    await client.stop(status.job)
            return (await train_over_localhost(client, JOB.model_copy(update={"name": "after"}))).state

    assert servers.wait(train()) == JOB_STATE_FINISHED
