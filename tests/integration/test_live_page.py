"""The live page of each process during real trainings: what it shows, and what it does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.support.live_page import page_events
from tests.support.three_servers import DATASET, SERVE, make_configs, serving, train_over_localhost, write_tables
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import ProcessConfig, UiConfig
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.trial.localhost import free_addresses
from trilateral.common.ui import board

LONG = JobConfig(
    name="long", dataset=DATASET, aligned=True, key_bits=256, batch=60, epochs=5000, algorithm=Sgd(), tolerance=0.0
)
SHARED = JobConfig(name="shared", dataset=DATASET, aligned=True, protocol="shares", l2=0.01)


class Browser:
    """Follows the events of a page as the page itself does."""

    def __init__(self, session: aiohttp.ClientSession, config: ProcessConfig) -> None:
        self._session = session
        self.url = f"http://{config.ui.listen}"
        self.jobs: dict[str, dict[str, Any]] = {}
        self.rounds: list[dict[str, Any]] = []
        self.work: list[dict[str, Any]] = []
        self.news: dict[str, Any] = {}

    async def follow(self, job: str | None, until: Callable[["Browser"], object], seconds: float = 60) -> None:
        """Read events of one connection until a condition is met."""
        async with asyncio.timeout(seconds), aclosing(page_events(self._session, self.url, job)) as events:  # type: ignore[type-var]
            async for name, content in events:
                self._take(name, content)
                if name == "beat" and until(self):
                    return
        raise AssertionError("the stream has ended")

    def _take(self, name: str, content: Any) -> None:
        if name == "job":
            self.jobs[content["job"]] = content
        elif name in {"rounds", "work"}:
            known: list[dict[str, Any]] = getattr(self, name)
            if content["is_from_start"]:
                known.clear()
            known += content["lines"]
        else:
            self.news[name] = content

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self._session.post(self.url + path, json=body, headers={"Origin": self.url}) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._session.get(self.url + path) as answer:
            return answer.status, await answer.json()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for news more often than for a person."""
    for name in ("LOOK_SECONDS", "LOST_SECONDS", "PEER_SECONDS"):
        monkeypatch.setattr(board, name, 0.1)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def configs(tmp_path: Path) -> dict[Role, ProcessConfig]:
    write_tables(tmp_path)
    pages = free_addresses()
    return {
        role: config.model_copy(update={"ui": UiConfig(listen=pages[role], allow_changes=True)})
        for role, config in make_configs(tmp_path).items()
    }


async def test_a_job_is_started_followed_stopped_and_resumed_on_the_page(
    configs: dict[Role, ProcessConfig], session: aiohttp.ClientSession
) -> None:
    guest = Browser(session, configs[Role.GUEST])
    job = {**LONG.model_dump(mode="json", exclude_unset=True), "algorithm": {"name": "sgd"}}
    async with serving(configs):
        assert await guest.post("/api/jobs", {"text": yaml.safe_dump(job)}) == (200, {"job": "long"})
        await guest.follow("long", lambda page: len(page.rounds) > 3 and len(page.work) > 2)
        assert guest.jobs["long"]["state"] == "training"
        assert [line["round"] for line in guest.rounds] == list(range(1, len(guest.rounds) + 1))
        assert all(line["loss"] > 0 and line["seconds"] > 0 for line in guest.rounds)
        assert all(line["sent"] > 0 and line["seconds"]["all"] > 0 for line in guest.work)
        assert guest.news["process"]["role"] == "guest"

        status, answer = await guest.post("/api/jobs", {"text": yaml.safe_dump(job)})
        assert (status, "already has a job" in answer["error"]) == (403, True)
        assert (await guest.post("/api/jobs/long/stop", {}))[0] == 200
        await guest.follow("long", lambda page: page.jobs["long"]["state"] == "stopped")
        reached = len(guest.rounds)
        assert (await guest.post("/api/jobs/long/stop", {}))[0] == 400
        assert (await guest.post("/api/jobs/other/stop", {}))[0] == 404

        assert (await guest.post("/api/jobs/long/resume", {}))[0] == 200
        await guest.follow("long", lambda page: len(page.rounds) > reached + 3)
        assert {line["round"] for line in guest.rounds} >= set(range(1, reached))
        await guest.follow("long", lambda page: all(each.get("is_well") for each in page.news["peers"]))

        _, page = await guest.get("/api/audit?decision=allowed&job=long&n_lines=100")
        by_page = [line["method"] for line in page["lines"] if line.get("page")]
        assert by_page == ["ResumeJob", "StopJob", "StopJob", "StartJob", "StartJob"]
        status, settings = await guest.get("/api/jobs/long/settings")
        assert (status, settings["epochs"]) == (200, 5000)
        assert (await guest.get("/api/jobs/other/settings"))[0] == 404
        assert (await guest.get("/reports/long"))[0] == 404
        assert (await guest.get("/api/audit?before=x"))[0] == 400
        await guest.post("/api/jobs/long/stop", {})


async def test_a_wrong_job_file_is_refused_by_its_line(
    configs: dict[Role, ProcessConfig], session: aiohttp.ClientSession
) -> None:
    host = Browser(session, configs[Role.HOST])
    async with serving(configs):
        for body, expected in (
            ({"text": "name: a\ndataset: d\nepochs: -1"}, "the job: epochs: expected at least 1, not -1 (line 3)"),
            ({"text": ": :"}, "not valid YAML"),
            ({"text": 7}, "expected a job as `text`"),
            ([], "expected a job as `text`"),
        ):
            status, answer = await host.post("/api/jobs", body)
            assert status == 400
            assert expected in answer["error"]


async def test_each_page_shows_what_its_organisation_may_see(
    configs: dict[Role, ProcessConfig], session: aiohttp.ClientSession
) -> None:
    pages = {role: Browser(session, config) for role, config in configs.items()}
    async with serving(configs) as client:
        assert (await train_over_localhost(client, SHARED)).state == JOB_STATE_FINISHED
        for page in pages.values():
            await page.follow("shared", lambda page: page.jobs["shared"]["state"] == "finished" and page.work)
            assert page.jobs["shared"]["has_report"]
    assert all(line["loss"] is not None for line in pages[Role.GUEST].rounds)
    assert all(line["loss"] is not None for line in pages[Role.COORDINATOR].rounds)
    # The losses of the rounds are functions of the labels.
    host = pages[Role.HOST]
    assert host.rounds
    assert not any("loss" in line for line in host.rounds)
    assert not any(line["loss"] for line in host.work)


async def test_without_a_coordinator_a_party_shows_its_own_jobs_and_catches_up(
    configs: dict[Role, ProcessConfig], session: aiohttp.ClientSession
) -> None:
    parties = dict(configs)
    del parties[Role.COORDINATOR]
    guest = Browser(session, configs[Role.GUEST])
    async with serving(configs) as client:
        await train_over_localhost(client, SHARED)
    async with serving(parties):
        await guest.follow("shared", lambda page: page.work)
        assert "cannot reach the coordinator" in guest.news["contact"]["lost"]
        assert guest.jobs["shared"]["state"] == "finished"
        assert guest.jobs["shared"]["has_report"]
        assert guest.rounds == []
        await guest.follow(None, lambda page: any(each.get("is_well") is False for each in page.news["peers"]))

        async with serving({Role.COORDINATOR: configs[Role.COORDINATOR]}):
            await guest.follow("shared", lambda page: page.news["contact"]["lost"] is None and page.rounds)
            assert guest.jobs["shared"]["round"] > 0


async def test_a_page_follows_a_process_through_its_restart(
    configs: dict[Role, ProcessConfig], session: aiohttp.ClientSession
) -> None:
    guest = Browser(session, configs[Role.GUEST])
    others = dict(configs)
    del others[Role.GUEST]
    async with serving(others) as client:
        async with serving({Role.GUEST: configs[Role.GUEST]}):
            await client.start(LONG)
            await guest.follow("long", lambda page: len(page.rounds) > 3)
            before = guest.news["process"]["started"]
        with pytest.raises(aiohttp.ClientError):
            await guest.follow("long", lambda page: False)
        async with serving({Role.GUEST: configs[Role.GUEST]}):
            await guest.follow("long", lambda page: len(page.rounds) > 10)
            assert guest.news["process"]["started"] > before
            assert {line["round"] for line in guest.rounds} >= set(range(1, 10))
            await client.stop("long")


async def test_a_check_runs_once_at_a_time_and_reports_what_it_finds(
    configs: dict[Role, ProcessConfig], session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    source = tmp_path / "guest.yaml"
    source.write_text(yaml.safe_dump(configs[Role.GUEST].model_dump(mode="json", exclude_unset=True)))
    configs = {Role.GUEST: load_process_config(source)}
    guest = Browser(session, configs[Role.GUEST])
    async with serving(configs, {Role.GUEST: source}):
        assert (await guest.post("/api/check", {}))[0] == 200
        assert (await guest.post("/api/check", {}))[0] == 409
        await guest.follow(None, lambda page: page.news["check"]["state"] == "done")
        found = {finding["level"] for finding in guest.news["check"]["findings"]}
        assert found >= {"ok", "problem"}  # The peers are away.
        assert guest.news["check"]["n_problems"] == 2


async def test_a_page_whose_address_is_taken_stops_the_process(configs: dict[Role, ProcessConfig]) -> None:
    from trilateral.common.base.errors import ConfigError

    host = configs[Role.HOST].model_copy(update={"ui": configs[Role.GUEST].ui})
    async with serving({Role.GUEST: configs[Role.GUEST]}):
        with pytest.raises(ConfigError, match="ui.listen"):
            await SERVE[Role.HOST](host, stop=asyncio.Event())
