"""A live page of a process: served without the process, and read without a browser."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.journal import Journal
from trilateral.common.observe.audit import LOG, Audit
from trilateral.common.observe.metrics import Metrics
from trilateral.common.process.http import serving_http
from trilateral.common.process.server import PageParts
from trilateral.common.rpc.access import Caller
from trilateral.common.rpc.certificates import Certificates
from trilateral.common.rpc.channel import open_peers
from trilateral.common.trial.ports import free_address
from trilateral.common.ui.admission import visitor
from trilateral.common.ui.board import Board
from trilateral.common.ui.page import Page, ProcessPage


class IdleJobs:
    """The jobs of a process that runs none."""

    def __init__(self, config: ProcessConfig) -> None:
        self.config = config
        self.metrics = Metrics(config.role, config.state)
        self.journal = Journal(config.state, config.role, 90)

    def open(self) -> None: ...

    async def go_on(self) -> None: ...

    async def close(self) -> None:
        self.journal.close()


@dataclass
class ServedPage:
    """A page that is served.

    Attributes:
        url: its address.
        parts: what it is made of.
        page: of the process; None if everybody is admitted.
    """

    url: str
    parts: PageParts
    page: ProcessPage | None

    @property
    def audited(self) -> list[dict[str, Any]]:
        """The lines of the audit log."""
        path = self.parts.jobs.config.state / LOG
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def guest_settings(folder: Path, **ui: Any) -> dict[str, Any]:
    """Return the settings of a guest with a page, whose peers are away."""
    return {
        "role": "guest",
        "plaintext": True,
        "listen": free_address(),
        "peers": {"host": free_address(), "coordinator": free_address()},
        "state": folder / "state",
        "ui": {"listen": free_address(), **ui},
    }


def admit_all(request: web.Request) -> None:
    """Admit everybody, as a page without protection would."""
    visitor.set(Caller(None))


@asynccontextmanager
async def serving_page(
    settings: dict[str, Any], *, is_protected: bool = True, certificates: Certificates | None = None
) -> AsyncIterator[ServedPage]:
    """Serve the page of a process that does nothing else.

    Args:
        settings: of the process.
        is_protected: whether the page decides whom it answers.
        certificates: of the process; None for plaintext.
    """
    config = ProcessConfig.model_validate(settings)
    config.state.mkdir(exist_ok=True)
    jobs, audit = IdleJobs(config), Audit(config.state / LOG)
    async with open_peers(config, certificates) as peers:
        parts = PageParts(certificates, audit, jobs, peers, None)
        address = config.ui.listen or ""
        url = f"http{'s' if config.ui.clients else ''}://{address}"
        try:
            if is_protected:
                page = ProcessPage(parts)
                async with page.running():
                    yield ServedPage(url, parts, page)
            else:
                board = Board(parts)
                routes = Page(board, audit).routes()
                async with board.client, serving_http(address, routes, Role.GUEST, "ui.listen", admit=admit_all):
                    try:
                        yield ServedPage(url, parts, None)
                    finally:
                        await board.close()
        finally:
            await jobs.close()


async def page_events(
    session: aiohttp.ClientSession, url: str, job: str | None = None, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, Any]]:
    """Yield the name and the content of each event of a page, until the server ends the stream."""
    query = {} if job is None else {"job": job}
    async with session.get(f"{url}/api/events", params=query, ssl=tls or True) as answer:
        answer.raise_for_status()
        name = ""
        async for line in answer.content:
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: "):
                yield name, json.loads(text.removeprefix("data: "))
