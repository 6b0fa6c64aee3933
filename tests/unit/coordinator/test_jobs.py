"""A job's status says what is going on."""

from unittest.mock import Mock

import pytest

from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.messages import Failed
from trilateral.common.rpc.calls import Silence
from trilateral.common.rpc.channel import Peer
from trilateral.coordinator.jobs import Job

JOB = JobConfig(name="credit", dataset="credit")


@pytest.mark.parametrize(
    ("stopped", "detail"),
    [(False, "telling the others that the job has failed"), (True, "telling the others that the job was stopped")],
)
async def test_a_job_that_says_its_last_words_is_not_shown_as_one_that_trains(stopped: bool, detail: str) -> None:
    job, host = Job(JOB, b"run"), Peer(Role.HOST, "127.0.0.1:1", Mock())
    job.stopped = stopped
    job.wait_for(host, Silence(host, 0, 60))
    assert "waiting until" in job.status().detail
    await job.observe(Failed("no disk"))
    assert job.status().detail == detail
