"""The page of a process: what it serves over HTTP, and who does what with it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiohttp import web

from trilateral.common.base.errors import ConfigError, PolicyError, ProtocolError, TrilateralError
from trilateral.common.config.load import read_job
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import JOB_NAME
from trilateral.common.observe.audit import LOG, Audit
from trilateral.common.observe.audit_page import read_audit_page
from trilateral.common.process.http import CONTENT_POLICY, HttpRefusalError, json_body, serving_http
from trilateral.common.process.server import PageParts
from trilateral.common.ui.admission import Admission, visitor
from trilateral.common.ui.apart import run_apart
from trilateral.common.ui.board import Board

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content policy of the page: nothing inline, and nothing from elsewhere."""
REPORT_POLICY = "sandbox allow-scripts allow-modals; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content policy of a report, besides that in its own text. Its script cannot send requests in the name of the page."""
BEAT_SECONDS = 5.0
"""Longest time between two events. A page that hears nothing for longer connects again."""
WRITE_SECONDS = 10.0
"""How long a page may take to read what it was sent, beyond what the system keeps for it."""
MAX_STREAM_SECONDS = 3600.0
"""After this time a page connects again, and shows its certificate again."""
MAX_JOB_CHARACTERS = 64 * 1024
MAX_PAGE_LINES = 200
TYPES: Mapping[str, str] = MappingProxyType(
    {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
)
AUDIT_FILTERS = ("decision", "role", "job", "method")


class Page:
    """Answers the requests of pages.

    Args:
        board: what they show.
        audit: records who changes what.
    """

    def __init__(self, board: Board, audit: Audit) -> None:
        self._board = board
        self._audit = audit
        self._reporting = asyncio.Lock()
        self._reading = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return what is served."""
        return [
            *(web.get(path, self._file(path)) for path in _static_paths()),
            web.get("/api/events", self.events),
            web.get("/api/audit", self.audit_lines),
            web.get("/api/jobs/{job}/settings", self.settings),
            web.get("/reports/{job}", self.report),
            web.post("/api/check", self.check),
            web.post("/api/jobs", self.start),
            web.post("/api/jobs/{job}/stop", self.stop),
            web.post("/api/jobs/{job}/resume", self.resume),
        ]

    def _file(self, path: str) -> Any:
        name = path.removeprefix("/") or "index.html"
        content = (files("trilateral.common.ui") / "static" / name).read_bytes()
        headers = {CONTENT_POLICY: POLICY, "Content-Type": f"{TYPES[Path(name).suffix]}; charset=utf-8"}

        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=content, headers=headers)

        return answer

    # --- what it shows

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Stream everything that the page shows, and each change of it, as server-sent events.

        A page that connects again is told everything again, so it catches up whatever it has missed.
        """
        board = self._board
        if board.is_full:
            raise HttpRefusalError(503, "too many pages are open: close some of them")
        job = request.query.get("job")
        if job is not None:
            _check_name(job)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        with board.viewing(job) as view:
            await response.prepare(request)
            try:
                async with asyncio.timeout(MAX_STREAM_SECONDS):
                    while not view.is_ready and not board.is_closed:
                        await _wait(board.changed)
                    while not board.is_closed:
                        changed = board.changed
                        for name, content in (*view.news(), ("beat", {})):
                            text = f"event: {name}\ndata: {json.dumps(content, allow_nan=False)}\n\n"
                            async with asyncio.timeout(WRITE_SECONDS):
                                await response.write(text.encode())
                            # A write to a fast reader does not wait.
                            await asyncio.sleep(0)
                        await _wait(changed)
            except (TimeoutError, OSError):  # It has lasted long enough, or the page does not read or has gone.
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def audit_lines(self, request: web.Request) -> web.Response:
        """Return a page of the audit log."""
        query = request.query
        wanted = {name: query[name] for name in AUDIT_FILTERS if query.get(name)}
        before, n_lines = _number(query, "before", None), _number(query, "n_lines", 50)

        def is_wanted(line: Mapping[str, Any]) -> bool:
            return all(str(line.get(name)) == value for name, value in wanted.items())

        async with _turn(self._reading, request):
            page = await asyncio.to_thread(
                read_audit_page,
                self._board.config.state / LOG,
                is_wanted,
                before=before,
                n_lines=min(n_lines or 1, MAX_PAGE_LINES),
            )
        return web.json_response({"lines": page.lines, "before": page.before})

    async def settings(self, request: web.Request) -> web.Response:
        """Return the settings of a job, as the journal of this process has them."""
        settings = await asyncio.to_thread(self._board.settings_of, _job_of(request))
        if settings is None:
            raise HttpRefusalError(404, "this process has no record of the job")
        return web.json_response(settings)

    async def report(self, request: web.Request) -> web.Response:
        """Return the report of a finished job."""
        job, config = _job_of(request), self._board.config
        if not self._board.has_result(job):
            raise HttpRefusalError(404, "this process has no result of the job")
        settings = config.model_dump(mode="json", exclude_unset=True)
        try:
            async with _turn(self._reporting, request):
                parts = [part async for part in run_apart("report", config=settings, job=job)]
        except TrilateralError as error:  # A person reads it, in a window of its own.
            return web.Response(status=503, text=f"There is no report: {error}")
        return web.Response(text="".join(parts), content_type="text/html", headers={CONTENT_POLICY: REPORT_POLICY})

    # --- what it does

    async def check(self, request: web.Request) -> web.Response:
        """Begin a check."""
        await json_body(request)
        if not self._board.check.begin():
            raise HttpRefusalError(409, "a check runs already, or this process has no configuration file to check")
        return web.json_response({})

    async def start(self, request: web.Request) -> web.Response:
        """Start a job."""
        body = await json_body(request)
        text = body.get("text") if isinstance(body, dict) else None
        if not isinstance(text, str) or len(text) > MAX_JOB_CHARACTERS:
            raise ProtocolError(f"expected a job as `text` of at most {MAX_JOB_CHARACTERS} characters")
        try:
            job = await asyncio.to_thread(read_job, text, "the job")
        except ConfigError as error:
            raise HttpRefusalError(400, str(error)) from None
        self._allow("StartJob", job.name, dataset=job.dataset)
        await self._board.client.start(job)
        return web.json_response({"job": job.name})

    async def stop(self, request: web.Request) -> web.Response:
        """Stop a job."""
        return await self._change(request, "StopJob")

    async def resume(self, request: web.Request) -> web.Response:
        """Resume a job."""
        return await self._change(request, "ResumeJob")

    async def _change(self, request: web.Request, method: str) -> web.Response:
        await json_body(request)
        job, client = _job_of(request), self._board.client
        if job not in self._board.jobs:
            raise HttpRefusalError(404, "there is no such job")
        self._allow(method, job)
        await (client.stop(job) if method == "StopJob" else client.resume(job))
        return web.json_response({"job": job})

    def _allow(self, method: str, job: str, **what: str) -> None:
        """Record a change that the page asks for, if it may ask. The coordinator still decides about it."""
        if not self._board.config.ui.allow_changes:
            error = PolicyError("this page may only look: set `ui.allow_changes: true` to let it start and stop jobs")
            self._audit.refused(visitor.get(), method, str(error), job=job, page=True)
            raise error
        self._audit.allowed(visitor.get(), method, job=job, page=True, **what)


class ProcessPage:
    """The page of a process.

    Args:
        parts: what it is made of.

    Attributes:
        board: what the page shows.
    """

    def __init__(self, parts: PageParts) -> None:
        self._parts = parts
        self._address = parts.jobs.config.ui.listen or ""
        self._admission = Admission(parts.jobs.config, parts.certificates, parts.audit)
        self.board = Board(parts)

    @property
    def config(self) -> ProcessConfig:
        """The configuration of the process. While the process runs, a changed one replaces it."""
        return self._admission.config

    @config.setter
    def config(self, changed: ProcessConfig) -> None:
        self._admission.config = changed

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve the page within the block.

        Raises:
            ConfigError: the address cannot be used.
        """
        board, admission = self.board, self._admission
        routes, role = Page(board, self._parts.audit).routes(), self.config.role
        async with (
            board.client,
            serving_http(self._address, routes, role, "ui.listen", admit=admission, tls=admission.tls),
        ):
            try:
                yield
            finally:
                await board.close()


@asynccontextmanager
async def _turn(lock: asyncio.Lock, request: web.Request) -> AsyncIterator[None]:
    """Hold a lock for a request whose page is still there when its turn has come.

    Raises:
        HttpRefusalError: the page has gone.
    """
    async with lock:
        if request.transport is None or request.transport.is_closing():
            raise HttpRefusalError(503, "the page has gone")
        yield


async def _wait(news: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(BEAT_SECONDS):
            await news.wait()


def _static_paths() -> list[str]:
    static = files("trilateral.common.ui") / "static"
    names = sorted(each.name for each in static.iterdir() if Path(each.name).suffix in TYPES)
    return ["/", *(f"/{name}" for name in names if name != "index.html")]


def _number(query: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = query.get(name)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 15:
        raise HttpRefusalError(400, f"expected a whole number as `{name}`")
    return int(text)


def _job_of(request: web.Request) -> str:
    job = request.match_info["job"]
    _check_name(job)
    return job


def _check_name(job: str) -> None:
    # The name becomes part of a path.
    if re.fullmatch(JOB_NAME, job) is None:
        raise HttpRefusalError(404, "there is no such job")
