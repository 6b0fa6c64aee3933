"""A job's status says what is going on."""

from unittest.mock import Mock

import pytest

from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.journal import Record
from trilateral.common.protocol.messages import Failed, JobEnded
from trilateral.common.rpc.calls import Silence
from trilateral.common.rpc.channel import Peer
from trilateral.coordinator.job import Job
from trilateral.coordinator.job_record import status_fact

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


async def test_a_finished_job_says_after_a_restart_of_the_coordinator_what_it_said_before() -> None:
    job = Job(JOB, b"run")
    job.on_message(JobEnded("the loss is within 1e-05 of its minimum", 0.25, 3))
    job.end(None)
    record = Record(b"run", JOB, Outcome.FINISHED, "", status_fact(job.status()))
    before, after = job.status(), Job.from_record(record).status()
    assert after.detail == before.detail == "the loss is within 1e-05 of its minimum"
    assert (after.state, after.epoch, after.loss) == (before.state, before.epoch, before.loss)
