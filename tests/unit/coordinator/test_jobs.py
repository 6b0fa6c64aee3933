"""A job's status says what is going on."""

from unittest.mock import Mock

import pytest

from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.messages import Failed
from trilateral.common.rpc.calls import Silence
from trilateral.common.rpc.channel import Peer
from trilateral.coordinator.job import Job

JOB = JobConfig(name="credit", dataset="credit")


@pytest.mark.parametrize(
    ("outcome", "detail"),
    [
        (Outcome.FAILED, "telling the parties that the job has failed"),
        (Outcome.STOPPED, "telling the parties that the job was stopped"),
    ],
)
async def test_a_job_that_is_ending_is_not_shown_as_training(outcome: Outcome, detail: str) -> None:
    job, host = Job(JOB, b"run"), Peer(Role.HOST, "127.0.0.1:1", Mock())
    job.on_wait(host, Silence(host, 0, 60))
    assert "waiting until" in job.status().detail
    job.on_message(Failed("no disk", outcome))
    assert job.status().detail == detail
