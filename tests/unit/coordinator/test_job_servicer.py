"""What the coordinator tells about the rounds of a job that are over."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trilateral.common.base.roles import Role
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.pb.v1.jobs_pb2 import ListRoundsRequest, RoundSummary
from trilateral.common.rpc.access import Caller
from trilateral.coordinator import job_servicer
from trilateral.coordinator.job_servicer import JobServicer


async def told(
    folder: Path, line: dict[str, Any], *, shows_losses: bool, monkeypatch: pytest.MonkeyPatch
) -> RoundSummary:
    history = JobFolder(folder, "credit")
    history.make()
    history.history.write_text(json.dumps({"round": 1, "attempt": 1, "epoch": 1, "batch": 1, **line}) + "\n")
    job = SimpleNamespace(name="credit", shows_losses=lambda viewer: shows_losses)
    jobs: Any = SimpleNamespace(find=lambda name: job, config=SimpleNamespace(state=folder))
    monkeypatch.setattr(job_servicer, "calling", lambda: Caller(Role.HOST))
    context: Any = None
    answer = await JobServicer(jobs).ListRounds(ListRoundsRequest(job="credit"), context)
    return answer.rounds[0]


LINE = {"loss": 0.5, "seconds": {"all": 3.0, "setup": 1.0}, "evaluation": {"log_loss": 0.4123467, "auc": 0.7654321}}


async def test_past_evaluations_have_no_more_digits_than_a_watcher_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = await told(tmp_path, LINE, shows_losses=True, monkeypatch=monkeypatch)
    assert (summary.seconds, summary.loss, summary.log_loss, summary.auc) == (2.0, 0.5, 0.41235, 0.7654)
    one_label = {**LINE, "evaluation": {"log_loss": 0.4, "auc": None}}
    assert not (await told(tmp_path, one_label, shows_losses=True, monkeypatch=monkeypatch)).HasField("auc")


async def test_who_may_not_see_losses_is_told_the_times_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await told(tmp_path, LINE, shows_losses=False, monkeypatch=monkeypatch)
    assert summary.seconds == 2.0
    assert not any(summary.HasField(name) for name in ("loss", "log_loss", "auc"))
