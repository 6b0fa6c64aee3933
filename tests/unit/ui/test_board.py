"""What the page shows of what other processes tell: bounded, in the types of JSON, and never half."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_page import IdleJobs, guest_settings
from tests.support.waiting import eventually
from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.base.outcome import Outcome
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.observe.audit import Audit
from trilateral.common.pb.v1.jobs_pb2 import (
    JOB_STATE_FINISHED,
    JOB_STATE_TRAINING,
    JobStatus,
    ListRoundsResponse,
    RoundSummary,
)
from trilateral.common.process.server import PageParts
from trilateral.common.rpc.channel import open_peers
from trilateral.common.rpc.errors import AccessError
from trilateral.common.ui import board as board_module
from trilateral.common.ui.board import Board, View


class FakeClient:
    """A coordinator, which may be hostile."""

    def __init__(self) -> None:
        self.told: list[JobStatus] = []
        self.notes: list[str] = []
        self.n_rounds = 3
        self.n_asked = 0
        self.error: TrilateralError | None = None

    async def statuses(self) -> list[JobStatus]:
        self.n_asked += 1
        if self.error is not None:
            raise self.error
        return self.told

    async def status(self, job: str) -> JobStatus:
        return JobStatus(job=job, notes=self.notes)

    async def rounds(self, job: str, place: int) -> ListRoundsResponse:
        rounds = [RoundSummary(round=place + each, attempt=1, seconds=1, loss=math.nan) for each in (1, 2)]
        is_more = place + 2 < self.n_rounds
        return ListRoundsResponse(rounds=rounds, place=place + 2, is_from_start=place == 0, is_more=is_more)


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
async def board(client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Board]:
    monkeypatch.setattr(board_module, "LOOK_SECONDS", 0.01)
    config = ProcessConfig.model_validate(guest_settings(tmp_path))
    config.state.mkdir()
    jobs = IdleJobs(config)
    async with open_peers(config, None) as peers:
        made = Board(PageParts(None, Audit(config.state / "audit.jsonl"), jobs, peers, None))
        monkeypatch.setattr(made, "client", client)
        yield made
        await made.close()
    jobs.journal.close()


def told(view: View) -> dict[str, list[Any]]:
    """Return all news of a view by their names. They are JSON, which has no NaN."""
    news: dict[str, list[Any]] = {}
    for name, content in view.news():
        json.dumps(content, allow_nan=False)
        news.setdefault(name, []).append(content)
    return news


async def test_a_view_is_told_everything_once_and_then_the_changes(board: Board, client: FakeClient) -> None:
    client.told = [JobStatus(job=name, state=JOB_STATE_TRAINING, round=1, loss=0.5) for name in ("one", "two")]
    with board.viewing("one") as view:
        await eventually(lambda: view.is_ready)
        first = told(view)
        assert [job["job"] for job in first["job"]] == ["one", "two"]
        assert first["rounds"][0]["is_from_start"]
        assert "job" not in told(view)
        client.told[1].round = 2
        await eventually(lambda: board.jobs["two"]["round"] == 2)
        assert [job["job"] for job in told(view)["job"]] == ["two"]
        del client.told[0]
        await eventually(lambda: "one" not in board.jobs)
        assert told(view)["gone"] == [{"job": "one"}]


async def test_texts_and_numbers_of_a_hostile_coordinator_are_bounded(
    board: Board, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_module, "MAX_ROUNDS", 100)
    client.told = [
        JobStatus(job="<img src=x onerror=alert(1)>", state=JOB_STATE_TRAINING),
        JobStatus(job="../../etc", state=JOB_STATE_TRAINING),
        JobStatus(
            job="job",
            state=JOB_STATE_TRAINING,
            detail="x" * 10_000,
            step="x" * 10_000,
            loss=math.inf,
            seconds=math.nan,
            rows_done=2**60,
            n_rows=1,
        ),
    ]
    client.notes = ["y" * 10_000] * 1000
    client.n_rounds = 10**9
    with board.viewing("job") as view:
        await eventually(lambda: view.is_ready)
        news = told(view)
    (job,) = news["job"]
    assert (job["job"], len(job["detail"]), job["loss"], job["seconds"]) == ("job", 2000, None, None)
    assert (len(job["step"]), job["round_done"]) == (2000, 1)
    assert len(news["rounds"][0]["lines"]) == 100
    assert news["rounds"][0]["lines"][0]["loss"] is None
    assert sum(map(len, news["notes"][0]["notes"])) == 200 * 2000


async def test_ever_new_jobs_of_a_hostile_coordinator_take_no_memory(
    board: Board, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_module, "MAX_JOBS", 10)

    async def statuses() -> list[JobStatus]:
        client.n_asked += 1
        return [JobStatus(job=f"job-{client.n_asked}-{place}", state=JOB_STATE_TRAINING) for place in range(100)]

    monkeypatch.setattr(client, "statuses", statuses)
    with board.viewing(None):
        await eventually(lambda: client.n_asked > 3)
        assert [name.rpartition("-")[2] for name in board.jobs] == [str(place) for place in range(90, 100)]
        assert board._paces.keys() == board.jobs.keys()


async def test_a_training_that_ran_away_is_shown_without_its_last_losses(board: Board, client: FakeClient) -> None:
    folder = JobFolder(board.config.state, "job")
    folder.make()
    line = {"round": 1, "attempt": 1, "loss": math.inf, "evaluation": {"log_loss": math.nan, "auc": 0.5}}
    folder.history.write_text(json.dumps(line) + "\n")
    with board.viewing("job") as view:
        await eventually(lambda: view.is_ready)
        (shown,) = told(view)["work"][0]["lines"]
    assert (shown["loss"], shown["log_loss"], shown["auc"]) == (None, None, 0.5)


async def test_rounds_of_another_job_of_the_name_replace_the_known_ones(board: Board, client: FakeClient) -> None:
    lines = board_module._Lines()
    lines.take([{"round": 1}, {"round": 2}], 80, is_from_start=True)
    assert lines.generation == 0
    lines.take([{"round": 1}], 40, is_from_start=True)
    assert (lines.generation, lines.lines) == (1, [{"round": 1}])


async def test_without_a_coordinator_the_journal_tells(board: Board, client: FakeClient) -> None:
    journal = board._process_jobs.journal
    journal.add(b"1" * 16, JobConfig(name="over", dataset="customers"))
    journal.add(b"2" * 16, JobConfig(name="runs", dataset="customers"))
    journal.set_outcome(b"1" * 16, Outcome.FAILED, "the table is gone")
    client.error = PeerError("cannot reach the coordinator")
    with board.viewing(None) as view:
        await eventually(lambda: view.is_ready)
        news = told(view)
    assert news["contact"] == [{"lost": "cannot reach the coordinator"}]
    shown = {job["job"]: (job["state"], job["detail"]) for job in news["job"]}
    assert shown == {"over": ("failed", "the table is gone"), "runs": ("training", "")}
    assert board.settings_of("over") == JobConfig(name="over", dataset="customers").model_dump(mode="json")


@pytest.mark.parametrize(("error", "is_asked_often"), [(AccessError("no"), False), (None, True)])
async def test_a_coordinator_that_refuses_is_not_asked_every_second(
    error: TrilateralError | None, is_asked_often: bool, board: Board, client: FakeClient
) -> None:
    client.error = error
    with board.viewing(None):
        changes = 0
        while changes < 10:
            await board.changed.wait()
            changes += 1
    assert (client.n_asked > 3) is is_asked_often


async def test_nothing_is_asked_while_no_page_is_open(board: Board, client: FakeClient) -> None:
    with board.viewing("job"), board.viewing("job"):
        await eventually(lambda: client.n_asked > 0)
    assert (board.n_views, board.viewed) == (0, {})
    asked = client.n_asked
    await board.changed.wait() if board._looking else None
    assert client.n_asked == asked


async def test_only_a_party_with_its_part_of_the_model_has_a_report(board: Board, client: FakeClient) -> None:
    client.told = [JobStatus(job="job", state=JOB_STATE_FINISHED)]
    folder = JobFolder(board.config.state, "job")
    with board.viewing(None):
        await eventually(lambda: board.jobs.get("job", {}).get("has_report") is False)
        folder.make()
        folder.model.write_text("{}")
        await eventually(lambda: board.jobs["job"]["has_report"])


async def test_an_unexpected_error_does_not_end_the_page(
    board: Board, client: FakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(progress: object) -> None:
        raise ValueError("secret value of a row")

    client.told = [JobStatus(job="job", state=JOB_STATE_TRAINING)]
    with monkeypatch.context() as patch, board.viewing(None):
        patch.setattr(board, "_shown", fail)
        await eventually(lambda: "ValueError" in caplog.text)
    assert "secret" not in caplog.text
    with board.viewing(None):
        await eventually(lambda: "job" in board.jobs)


async def test_many_rounds_come_in_several_events(
    board: Board, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_module, "LINES_AT_ONCE", 3)
    client.told, client.n_rounds = [JobStatus(job="job", state=JOB_STATE_FINISHED)], 8
    with board.viewing("job") as view:
        await eventually(lambda: view.is_ready)
        events = told(view)["rounds"]
        assert [line["round"] for event in events for line in event["lines"]] == list(range(1, 9))
        assert [event["is_from_start"] for event in events] == [True, False, False]
