"""`trilateral healthcheck` ends soon: with 0 if the configured process serves, else with 1 and the reason."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from typer.testing import CliRunner, Result

from tests.support.three_servers import make_configs, serving
from trilateral.cli.main import app
from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.process.health import check_health
from trilateral.common.trial.development import write_development_files

HEAVY = {"numpy", "pandas", "pyarrow", "scipy", "sklearn", "gmpy2", "rich.progress", "nacl"}


def written(config: ProcessConfig, folder: Path) -> Path:
    path = folder / f"{config.role}.yaml"
    path.write_text(config.model_dump_json(exclude_unset=True))  # JSON is YAML
    return path


async def healthcheck(config: ProcessConfig, folder: Path) -> Result:
    command = ["healthcheck", "--config", str(written(config, folder))]
    return await asyncio.to_thread(CliRunner().invoke, app, command)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("secured", [False, True], ids=["plaintext", "tls"])
async def test_a_serving_process_is_healthy_and_a_stopped_one_is_not(role: Role, secured: bool, tmp_path: Path) -> None:
    certificates = tmp_path / "certs" if secured else None
    if certificates:
        write_development_files(certificates)
    config = make_configs(tmp_path, certificates=certificates)[role]
    async with serving({role: config}):
        result = await healthcheck(config, tmp_path)
        assert (result.exit_code, result.output) == (0, "")
    result = await healthcheck(config, tmp_path)
    assert result.exit_code == 1
    assert result.stderr == (f"error: the {role} at {config.listen} does not answer: nothing listens there\n")


async def test_a_process_that_listens_on_all_addresses_is_checked_at_localhost(tmp_path: Path) -> None:
    write_development_files(tmp_path / "certs")
    config = make_configs(tmp_path, certificates=tmp_path / "certs")[Role.HOST]
    port = config.listen.rpartition(":")[2]
    config = config.model_copy(update={"listen": f"0.0.0.0:{port}"})
    async with serving({Role.HOST: config}):
        assert (await healthcheck(config, tmp_path)).exit_code == 0


async def test_a_certificate_of_another_authority_is_unhealthy(tmp_path: Path) -> None:
    for folder in ("certs", "others"):
        write_development_files(tmp_path / folder)
    config = make_configs(tmp_path, certificates=tmp_path / "certs")[Role.HOST]
    other = make_configs(tmp_path, certificates=tmp_path / "others")[Role.HOST]
    async with serving({Role.HOST: config}):
        result = await healthcheck(config.model_copy(update={"tls": other.tls}), tmp_path)
    assert result.exit_code == 1
    assert "`tls.authorities` did not issue" in result.stderr


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("rolle: host", "unknown key; did you mean role?"),
        ("listen: 127.0.0.1:0", "listen: 127.0.0.1:0 has no fixed port"),
    ],
)
def test_an_unusable_configuration_is_unhealthy_and_not_another_kind_of_failure(
    change: str, text: str, tmp_path: Path
) -> None:
    key = change.partition(":")[0]
    lines = {
        "role": "role: guest",
        "listen": "listen: 127.0.0.1:50052",
        "peers": "peers: {host: '127.0.0.1:50051', coordinator: '127.0.0.1:50050'}",
        "state": "state: state",
        "plaintext": "plaintext: true",
    }
    path = tmp_path / "guest.yaml"
    path.write_text("\n".join((lines | {key: change}).values()))
    result = CliRunner().invoke(app, ["healthcheck", "--config", str(path)])
    assert result.exit_code == 1
    assert text in result.stderr


# --- what listens and does not serve

Serve = Callable[[grpc.aio.Server], Awaitable[None]]


async def not_serving(server: grpc.aio.Server) -> None:
    servicer = health.aio.HealthServicer()
    await servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)


async def something_else(server: grpc.aio.Server) -> None:
    pass


@pytest.mark.parametrize(
    ("serve", "text"),
    [(not_serving, "does not serve: it is starting or stopping"), (something_else, "another program listens there")],
)
async def test_a_server_that_does_not_serve_is_unhealthy(serve: Serve, text: str, tmp_path: Path) -> None:
    config = make_configs(tmp_path)[Role.HOST]
    server = grpc.aio.server()
    await serve(server)
    server.add_insecure_port(config.listen)
    await server.start()
    with pytest.raises(PeerError, match=text):
        await check_health(config)
    await server.stop(None)


@asynccontextmanager
async def listening(address: str, answer: bytes | None) -> AsyncIterator[None]:
    """A program that accepts connections, and answers with some bytes or not at all."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is not None:
            writer.write(answer)
            await writer.drain()
            writer.close()
        else:
            await over.wait()
            writer.close()

    over = asyncio.Event()
    host, _, port = address.rpartition(":")
    async with await asyncio.start_server(talk, host, int(port)):
        yield
        over.set()


@pytest.mark.parametrize(
    ("answer", "text"),
    [(None, "no answer within 0.2 s"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "another program listens there")],
    ids=["silent", "http"],
)
async def test_the_check_gives_up_soon_on_the_port_of_another_program(
    answer: bytes | None, text: str, tmp_path: Path
) -> None:
    config = make_configs(tmp_path)[Role.HOST]
    async with listening(config.listen, answer):
        with pytest.raises(PeerError, match=text):
            await check_health(config, seconds=0.2 if answer is None else 5)


# --- how fast it is


def test_the_check_loads_no_slow_libraries() -> None:
    modules = "trilateral.cli.main, trilateral.common.config.load, trilateral.common.process.health"
    code = f"import {modules}, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & set(loaded)


def test_help_loads_even_less() -> None:
    code = "import trilateral.cli.main, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not (HEAVY | {"grpc", "pydantic", "cryptography", "yaml"}) & set(loaded)
