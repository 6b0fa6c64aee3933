"""The HTTP server answers programs on this machine, and gives nothing away when something fails."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.http_parser import DeflateBuffer

from trilateral.common.base.errors import ConfigError, PeerError
from trilateral.common.base.roles import Role
from trilateral.common.process import http
from trilateral.common.process.http import json_body, serving_http


async def echo(request: web.Request) -> web.Response:
    return web.json_response(await json_body(request))


async def fail(request: web.Request) -> web.Response:
    raise ValueError("secret value of a row")


async def away(request: web.Request) -> web.Response:
    raise PeerError("the host does not answer")


ROUTES = [web.post("/echo", echo), web.get("/fail", fail), web.get("/away", away)]


@asynccontextmanager
async def served(address: str = "127.0.0.1:0") -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async with serving_http(address, ROUTES, Role.GUEST, "online.listen") as bound, aiohttp.ClientSession() as session:
        yield session, f"http://{bound}"


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
async def test_each_loopback_address_answers(address: str) -> None:
    async with served(address) as (session, url), session.post(f"{url}/echo", json={"a": [1, "b"]}) as answer:
        assert await answer.json() == {"a": [1, "b"]}
        assert {name: answer.headers[name] for name in http.HEADERS} == http.HEADERS


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "localhost]evil.example", "[::1]evil.example", "127.0.0.1:80:80"],
)
async def test_a_request_under_another_name_is_refused(host: str) -> None:
    async with served() as (session, url), session.post(f"{url}/echo", json=1, headers={"Host": host}) as answer:
        assert answer.status == 421


async def test_an_unexpected_error_is_answered_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (session, url), session.get(f"{url}/fail") as answer:
        assert answer.status == 500
        assert "secret" not in await answer.text()
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_peer_that_is_away_is_a_service_that_is_unavailable() -> None:
    async with served() as (session, url), session.get(f"{url}/away") as answer:
        assert answer.status == 503
        assert await answer.json() == {"error": "the host does not answer"}


async def test_a_request_that_does_not_arrive_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_SECONDS", 0.1)

    async def slowly() -> AsyncIterator[bytes]:
        yield b"["
        await asyncio.sleep(60)

    headers = {"Content-Type": "application/json"}
    async with (
        served() as (session, url),
        session.post(f"{url}/echo", data=slowly(), headers=headers, expect100=False) as answer,
    ):
        assert answer.status == 408


async def test_a_compressed_body_is_refused_and_not_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    def decompress(self: DeflateBuffer, chunk: bytes, size: int) -> None:
        pytest.fail("decompressed a body of unknown length")

    monkeypatch.setattr(DeflateBuffer, "feed_data", decompress)
    headers = {"Content-Type": "application/json", "Content-Encoding": "deflate"}
    async with (
        served() as (session, url),
        session.post(f"{url}/echo", data=zlib.compress(b" " * 10**6), headers=headers) as answer,
    ):
        assert answer.status == 415


async def test_a_caller_that_hangs_up_is_no_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (_, url):
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /echo HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        writer.write(head.encode() + b"[")
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
        await asyncio.sleep(0.1)
    assert "unexpected" not in caplog.text


async def test_an_address_in_use_is_named() -> None:
    async with served() as (_, url):
        with pytest.raises(ConfigError, match=r"online.listen: 127.0.0.1:\d+ cannot be used"):
            async with served(url.removeprefix("http://")):
                pass


async def test_an_idle_connection_does_not_keep_the_server_from_stopping() -> None:
    async with aiohttp.ClientSession() as session:
        async with serving_http("127.0.0.1:0", ROUTES, Role.GUEST, "online.listen") as bound:
            async with session.post(f"http://{bound}/echo", json=1):
                pass
            begun = time.monotonic()
        assert time.monotonic() - begun < 60
