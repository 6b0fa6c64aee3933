"""What the page serves besides events: files, reports, settings and lines of the audit log."""

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.live_page import ServedPage, guest_settings, serving_page
from trilateral.common.base.errors import ConfigError
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.process.server import PageParts
from trilateral.common.ui import page
from trilateral.common.ui.opening import make_page


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedPage]:
    async with serving_page(guest_settings(tmp_path)) as served:
        yield served


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css"), ("/icon.svg", "image/svg+xml")],
)
async def test_each_file_has_its_type(path: str, kind: str, served: ServedPage, session: aiohttp.ClientSession) -> None:
    async with session.get(served.url + path) as answer:
        assert (answer.status, answer.content_type, answer.charset) == (200, kind, "utf-8")


@pytest.mark.parametrize("path", ["/vendor", "/index.html", "/../page.py", "/api", "/api/jobs"])
async def test_nothing_else_is_served(path: str, served: ServedPage, session: aiohttp.ClientSession) -> None:
    async with session.get(served.url + path) as answer:
        assert answer.status in {404, 405}


@pytest.mark.parametrize("error", [None, ConfigError("a report needs jinja2")])
async def test_a_report_is_in_a_sandbox_and_its_absence_is_explained(
    error: ConfigError | None, served: ServedPage, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def made(work: str, **arguments: Any) -> AsyncIterator[str]:
        assert (work, arguments["job"]) == ("report", "churn")
        # With defaults, the settings of the host would be refused at the guest.
        assert "policy" not in arguments["config"]
        if error is not None:
            raise error
        yield "<!doctype html><p>report</p>"

    monkeypatch.setattr(page, "run_apart", made)
    folder = JobFolder(served.parts.jobs.config.state, "churn")
    folder.make()
    folder.model.write_text("{}")
    async with session.get(f"{served.url}/reports/churn") as answer:
        text, policy = await answer.text(), answer.headers["Content-Security-Policy"]
        if error is None:
            assert (answer.status, text) == (200, "<!doctype html><p>report</p>")
            assert policy.startswith("sandbox allow-scripts")
            assert "allow-same-origin" not in policy
        else:
            assert (answer.status, answer.content_type) == (503, "text/plain")
            assert text == "There is no report: a report needs jinja2"


async def test_a_job_is_parsed_while_the_process_does_other_work(
    tmp_path: Path, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def read(text: str, source: str) -> JobConfig:
        threads.append(threading.current_thread())
        return JobConfig(name="churn", dataset="customers")

    monkeypatch.setattr(page, "read_job", read)
    async with (
        serving_page(guest_settings(tmp_path)) as served,
        session.post(f"{served.url}/api/jobs", json={"text": ""}, headers={"Origin": served.url}) as answer,
    ):
        assert answer.status == 403
    assert threads != []
    assert threading.main_thread() not in threads


async def test_a_process_without_a_file_cannot_be_checked(served: ServedPage, session: aiohttp.ClientSession) -> None:
    async with session.post(f"{served.url}/api/check", json={}, headers={"Origin": served.url}) as answer:
        assert answer.status == 409


def test_there_is_no_page_without_an_address(tmp_path: Path) -> None:
    class Jobs:
        def __init__(self, settings: dict[str, Any]) -> None:
            self.config = ProcessConfig.model_validate(settings)

    settings = guest_settings(tmp_path)
    del settings["ui"]
    parts: Any = PageParts(None, None, Jobs(settings), {}, None)  # type: ignore[arg-type]
    assert make_page(parts) is None
