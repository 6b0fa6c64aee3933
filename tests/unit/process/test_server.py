"""A server reports when it is ready and when it stops, and names a port that it cannot use."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import trilateral.coordinator.server
import trilateral.guest_party.server
import trilateral.host_party.server
from tests.support.rpc import plaintext_server
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.process.server import bind
from trilateral.common.rpc.channel import open_channel

SERVERS = {
    Role.HOST: trilateral.host_party.server,
    Role.GUEST: trilateral.guest_party.server,
    Role.COORDINATOR: trilateral.coordinator.server,
}
SERVICES = {
    Role.HOST: ["HostService", "PartyService"],
    Role.GUEST: ["GuestService", "PartyService"],
    Role.COORDINATOR: ["CoordinatorService", "JobService"],
}
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def config(role: Role, state: Path, listen: str = "127.0.0.1:0") -> ProcessConfig:
    peers = {other: "127.0.0.1:1" for other in Role if other is not role}
    return ProcessConfig(role=role, listen=listen, peers=peers, state=state, plaintext=True)


@asynccontextmanager
async def running(settings: ProcessConfig) -> AsyncIterator[tuple[str, asyncio.Event]]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(SERVERS[settings.role].serve(settings, stop=stop, on_ready=ready.set_result))
    await asyncio.wait({ready, serving}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if serving.done():
            await serving
        yield ready.result(), stop
    finally:
        stop.set()
        await asyncio.wait({serving})


@pytest.mark.parametrize("role", list(Role))
async def test_each_service_is_healthy_once_the_server_is_ready(role: Role, tmp_path: Path) -> None:
    async with (
        running(config(role, tmp_path / "new" / "state")) as (address, _),
        open_channel(address, None) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        for service in ["", *(f"trilateral.v1.{name}" for name in SERVICES[role])]:
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert answer.status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health.Check(health_pb2.HealthCheckRequest(service="trilateral.v1.Other"), timeout=5)
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watch_of_the_health_sees_the_server_stop(tmp_path: Path) -> None:
    async with running(config(Role.HOST, tmp_path)) as (address, stop), open_channel(address, None) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=10)
        statuses = []
        async for answer in watch:
            statuses.append(answer.status)
            stop.set()
            if answer.status == NOT_SERVING:
                break
        watch.cancel()
    assert statuses == [SERVING, NOT_SERVING]


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async with running(config(Role.HOST, tmp_path)) as (address, _):
        with pytest.raises(ConfigError, match=f"listen: {address} is in use by another program.*choose another port"):
            async with running(config(Role.GUEST, tmp_path / "guest", address)):
                pass


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("192.0.2.7:50051", "is not an address of this machine: correct it, or use 0.0.0.0"),
        ("host..example:50051", "has a host name that cannot be resolved: correct it"),
    ],
)
async def test_an_address_that_cannot_be_used_is_named_with_its_cause(address: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"listen: {address} {told}"):
        bind(plaintext_server(Role.HOST), address, None)


async def test_a_port_that_needs_a_permission_is_not_called_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(own: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with socket.create_server(("127.0.0.1", 0)) as taken:  # gRPC gives one error for every cause
        monkeypatch.setattr(socket.socket, "bind", refuse)
        with pytest.raises(
            ConfigError, match=r"is not permitted for this user: choose a port of 1024 or above, or perm"
        ):
            bind(plaintext_server(Role.HOST), f"127.0.0.1:{taken.getsockname()[1]}", None)


async def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="state: the folder"):
        async with running(config(Role.HOST, tmp_path / "file" / "state")):
            pass


async def test_a_server_does_not_answer_for_another_role(tmp_path: Path) -> None:
    async with running(config(Role.HOST, tmp_path)) as (address, _), open_channel(address, None) as channel:
        method: Any = channel.unary_unary("/trilateral.v1.JobService/ListJobs")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(b"", metadata=(("trilateral-role", "guest"),), timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
