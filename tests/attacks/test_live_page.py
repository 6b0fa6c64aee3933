"""Who else than its own organisation could read a live page, or act through it."""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.support.certificates import (
    issued_below,
    make_identity,
    root_without_limit,
    signed_as_requested,
    write_identity,
)
from tests.support.live_page import ServedPage, guest_settings, page_events, serving_page
from tests.support.waiting import eventually
from trilateral.common.config.process import ProcessConfig
from trilateral.common.observe.audit_page import AuditPage
from trilateral.common.process import http
from trilateral.common.rpc.certificates import Identity, load_certificates
from trilateral.common.rpc.pinning import client_tls
from trilateral.common.trial.authority import Authority
from trilateral.common.ui import board, page

EVIL = "https://evil.example"
STOP = "/api/jobs/churn/stop"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
        yield session


# --- pages of other servers, in a browser on this machine


@pytest.mark.parametrize("is_protected", [False, True])
async def test_a_name_that_is_moved_to_this_machine_reads_nothing(
    is_protected: bool, tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    # The page of evil.example lets its own name resolve to 127.0.0.1, so for the browser this is the same origin.
    headers = {"Host": "evil.example:8080", "Sec-Fetch-Site": "same-origin"}
    async with (
        serving_page(guest_settings(tmp_path), is_protected=is_protected) as served,
        session.get(f"{served.url}/api/audit", headers=headers) as answer,
    ):
        assert answer.status == (421 if is_protected else 200)


@pytest.mark.parametrize("is_protected", [False, True])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost:9"},  # another program on this machine
        {"Origin": "null"},  # a report, which is in a sandbox
        {"Sec-Fetch-Site": "same-site"},
        {},
    ],
)
async def test_the_page_of_another_server_changes_nothing(
    headers: dict[str, str], is_protected: bool, tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    settings = guest_settings(tmp_path, allow_changes=True)
    job = {"text": "name: churn\ndataset: customers"}
    async with serving_page(settings, is_protected=is_protected) as served:
        async with session.post(f"{served.url}/api/jobs", json=job, headers=headers) as answer:
            await answer.read()
        asked = [line["method"] for line in served.audited if line["decision"] == "allowed"]
        assert asked == ([] if is_protected else ["StartJob"])


async def test_the_page_of_another_server_reads_nothing(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    async with serving_page(guest_settings(tmp_path)) as served:
        for path in ("/", "/api/events", "/api/audit"):
            async with session.get(f"{served.url}{path}", headers={"Sec-Fetch-Site": "cross-site"}) as answer:
                assert answer.status == 403


async def test_a_form_starts_no_job(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    async with serving_page(guest_settings(tmp_path, allow_changes=True)) as served:
        headers = {"Content-Type": "text/plain", "Origin": served.url}
        async with session.post(f"{served.url}/api/jobs", data='{"text": "name: a"}', headers=headers) as answer:
            assert answer.status == 415
        assert served.audited == []


async def test_no_page_may_frame_it_and_no_script_is_inline(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    async with serving_page(guest_settings(tmp_path)) as served, session.get(f"{served.url}/") as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "Set-Cookie" not in answer.headers
        text = await answer.text()
        assert "style=" not in text
        assert "<script>" not in text
        assert "http" not in text.replace("<!doctype html>", "")


@pytest.mark.parametrize("allow_changes", [False, True])
async def test_a_page_that_may_only_look_changes_nothing(
    allow_changes: bool, tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    async with serving_page(guest_settings(tmp_path, allow_changes=allow_changes)) as served:
        body = {"text": "name: churn\ndataset: customers"}
        async with session.post(f"{served.url}/api/jobs", json=body, headers={"Origin": served.url}) as answer:
            # The coordinator is away in this test.
            assert answer.status == (503 if allow_changes else 403)
        assert [line["decision"] for line in served.audited] == ["allowed" if allow_changes else "refused"]


# --- certificates


def over_tls(folder: Path, authority: Authority, **ui: Any) -> dict[str, Any]:
    settings = guest_settings(folder, clients=["alice.example.org"], **ui)
    tls = write_identity(folder, make_identity(authority, "guest.example.org", "127.0.0.1"))
    peers = {role: {"address": address, "name": f"{role}.example.org"} for role, address in settings["peers"].items()}
    return {**settings, "plaintext": False, "tls": tls, "peers": peers}


async def status_for(served: ServedPage, identity: Identity | None, trusts: Authority) -> int | str:
    """Return the status of the page for the holder of a certificate, or `refused` without an answer."""
    if identity is None:
        context = ssl.create_default_context(cadata=trusts.pem.decode())
    else:
        context = client_tls(replace(identity, authorities=trusts.pem))
        context.set_alpn_protocols(["http/1.1"])
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"{served.url}/api/audit", ssl=context) as answer:
                return answer.status
        except aiohttp.ClientError:
            return "refused"


async def test_only_listed_certificates_of_the_authority_open_the_page(tmp_path: Path) -> None:
    authority, other = root_without_limit(), Authority("other", timedelta(days=1))
    settings = over_tls(tmp_path, authority)
    certificates = load_certificates(ProcessConfig.model_validate(settings))
    _, between = signed_as_requested(authority, "mallory.example.org")
    async with serving_page(settings, certificates=certificates) as served:

        async def status(identity: Identity | None) -> int | str:
            return await status_for(served, identity, authority)

        assert await status(make_identity(authority, "alice.example.org")) == 200
        for name in ("host.example.org", "coordinator.example.org", "bob.example.org", "guest.example.org"):
            assert await status(make_identity(authority, name)) == 403, name
        both = make_identity(authority, "alice.example.org", "host.example.org")
        assert await status(both) == 403
        assert await status(issued_below(authority, between, "alice.example.org")) == 403
        assert await status(make_identity(other, "alice.example.org", trusts=authority)) == "refused"
        assert await status(None) == "refused"
        reasons = {tuple(line["certificate"]): line["reason"] for line in served.audited}
        assert "no name in `ui.clients`" in reasons["host.example.org",]
        assert "not issued directly" in reasons["alice.example.org",]


async def test_a_renewed_certificate_and_other_authorities_count_without_a_restart(tmp_path: Path) -> None:
    former, authority = root_without_limit(), root_without_limit()
    settings = over_tls(tmp_path, former)
    certificates = load_certificates(ProcessConfig.model_validate(settings))
    alice = {each: make_identity(each, "alice.example.org") for each in (former, authority)}
    async with serving_page(settings, certificates=certificates) as served:
        assert await status_for(served, alice[former], former) == 200
        write_identity(tmp_path, make_identity(authority, "guest.example.org", "127.0.0.1"))
        assert await status_for(served, alice[authority], authority) == 200
        assert await status_for(served, alice[former], authority) == "refused"


async def test_a_name_that_is_taken_from_the_list_counts_no_longer(tmp_path: Path) -> None:
    authority = root_without_limit()
    settings = over_tls(tmp_path, authority)
    alice = make_identity(authority, "alice.example.org")
    async with serving_page(settings, certificates=load_certificates(ProcessConfig.model_validate(settings))) as served:
        assert served.page is not None
        for clients, expected in ((["bob.example.org"], 403), ([], 403), (["alice.example.org"], 200)):
            ui = served.page.config.ui.model_copy(update={"clients": clients})
            served.page.config = served.page.config.model_copy(update={"ui": ui})
            assert await status_for(served, alice, authority) == expected


async def test_a_page_without_tls_answers_nobody_once_certificates_are_asked_for(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    async with serving_page(guest_settings(tmp_path)) as served:
        assert served.page is not None
        ui = served.page.config.ui.model_copy(update={"clients": ["alice.example.org"]})
        served.page.config = served.page.config.model_copy(update={"ui": ui})
        async with session.get(f"{served.url}/") as answer:
            assert answer.status == 403


# --- too much of everything


async def test_too_many_pages_are_refused_and_closed_ones_make_room(
    tmp_path: Path, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "MAX_PAGES", 2)
    monkeypatch.setattr(page, "BEAT_SECONDS", 0.05)
    async with serving_page(guest_settings(tmp_path)) as served:
        first, second = (page_events(session, served.url) for _ in range(2))
        await anext(first)
        await anext(second)
        async with session.get(f"{served.url}/api/events") as answer:
            assert answer.status == 503
        await first.aclose()  # type: ignore[attr-defined]

        async def is_open() -> bool:
            async with session.get(f"{served.url}/api/events") as answer:
                return answer.status == 200

        await eventually(is_open)
        await second.aclose()  # type: ignore[attr-defined]


async def test_a_page_that_does_not_read_is_cut_off_and_holds_nobody_up(
    tmp_path: Path, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "WRITE_SECONDS", 0.2)
    monkeypatch.setattr(page, "BEAT_SECONDS", 0.01)
    for name in ("LOOK_SECONDS", "LOST_SECONDS"):
        monkeypatch.setattr(board, name, 0.01)
    numbers = iter(range(10**9))

    def much(self: board.Board) -> dict[str, Any]:
        return {"job": {"job": "job", "detail": f"{next(numbers)} {'x' * 200_000}"}}

    monkeypatch.setattr(board.Board, "_own_jobs", much)
    async with serving_page(guest_settings(tmp_path)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        # A small buffer, so that a kernel does not take everything.
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(f"GET /api/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        async for name, _ in page_events(session, served.url):
            if name == "job":
                break
        assert served.page is not None
        shown = served.page.board
        await eventually(lambda: shown.n_views == 0)
        del reader
        writer.close()


async def test_connections_beyond_the_maximum_are_closed(
    tmp_path: Path, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    async with serving_page(guest_settings(tmp_path)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"{served.url}/")
        for _, writer in idle:
            writer.close()

        async def is_open() -> bool:
            try:
                async with session.get(f"{served.url}/") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(is_open)


async def test_callers_without_a_certificate_hold_few_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_HANDSHAKES", 3)
    monkeypatch.setattr(http, "HANDSHAKE_SECONDS", 1.0)
    authority = root_without_limit()
    settings = over_tls(tmp_path, authority)
    alice = make_identity(authority, "alice.example.org")
    async with serving_page(settings, certificates=load_certificates(ProcessConfig.model_validate(settings))) as served:
        host, port = served.url.removeprefix("https://").split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
        ends = [asyncio.create_task(reader.read()) for reader, _ in silent]
        done, _ = await asyncio.wait(ends, timeout=0.5)
        assert len(done) == 3

        async def is_open() -> bool:
            return await status_for(served, alice, authority) == 200

        await eventually(is_open)
        for _, writer in silent:
            writer.close()
        await asyncio.gather(*ends, return_exceptions=True)


async def test_pages_that_have_gone_leave_no_work_behind(
    tmp_path: Path, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_read = 0
    may_end = threading.Event()

    def read(*arguments: Any, **options: Any) -> AuditPage:
        nonlocal n_read
        n_read += 1
        may_end.wait(30)
        return AuditPage((), None)

    monkeypatch.setattr(page, "read_audit_page", read)
    async with serving_page(guest_settings(tmp_path)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        for _ in range(20):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET /api/audit HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            await asyncio.sleep(0.01)
            writer.close()
        await eventually(lambda: n_read == 1)
        await asyncio.sleep(0.1)
        may_end.set()
        async with session.get(f"{served.url}/api/audit") as answer:
            assert answer.status == 200
        assert n_read == 2


# --- names that are paths or markup


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2Fstate", "%2Fetc%2Fpasswd", "<b>", "a%00", "%2e"])
async def test_a_name_that_is_a_path_leads_nowhere(name: str, tmp_path: Path) -> None:
    async with serving_page(guest_settings(tmp_path)) as served, aiohttp.ClientSession() as session:
        (tmp_path / "state" / "model.json").write_text("{}")
        for path in (f"/reports/{name}", f"/api/jobs/{name}/settings"):
            async with session.get(URL(served.url + path, encoded=True)) as answer:
                assert answer.status == 404


def test_no_script_of_the_page_turns_text_into_markup() -> None:
    static = Path(page.__file__).parent / "static"
    scripts = {path.name: path.read_text() for path in static.glob("*.js")}
    assert scripts
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "srcdoc",
        "javascript:",
    ):
        assert [name for name, text in scripts.items() if way in text] == [], way
    assert not any("http://" in text.replace("http://www.w3.org/2000/svg", "") for text in scripts.values())
    assert not any("https://" in text for text in scripts.values())
