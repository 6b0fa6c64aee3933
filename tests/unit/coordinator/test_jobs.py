"""A job's status says what is going on."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from trilateral.common.base.errors import PeerError, StoppedError, TrilateralError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.progress import Stage
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import PeerConfig, ProcessConfig
from trilateral.common.jobs.journal import Record
from trilateral.common.observe.audit import LOG, Audit
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_STOPPED
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import (
    BeginRound,
    Evaluation,
    Failed,
    FinishJob,
    JobEnded,
    RoundKey,
    RoundProgress,
    RoundReport,
    StageProgress,
)
from trilateral.common.rpc.calls import Silence
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.errors import NameTakenError
from trilateral.coordinator.job import Job
from trilateral.coordinator.job_record import status_fact
from trilateral.coordinator.jobs import CoordinatorJobs

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


@pytest.mark.parametrize("is_status_known", [True, False])
@pytest.mark.parametrize(
    ("outcome", "error", "state", "detail"),
    [
        (Outcome.FINISHED, None, JOB_STATE_FINISHED, "converged"),
        (Outcome.FAILED, PeerError("no disk"), JOB_STATE_FAILED, "no disk"),
        (Outcome.STOPPED, StoppedError("stopped by the operator"), JOB_STATE_STOPPED, "stopped by the operator"),
    ],
)
async def test_an_ended_job_is_shown_after_a_restart_as_the_journal_has_it(
    outcome: Outcome, error: TrilateralError | None, state: int, detail: str, is_status_known: bool
) -> None:
    job = Job(JOB, b"run")
    if error is None:
        job.on_message(JobEnded("converged", 0.25, 3))
    job.end(error)
    facts = status_fact(job.status()) if is_status_known else {}
    again = Job.from_record(Record(b"run", JOB, outcome, "" if error is None else str(error), facts))
    assert again.ended.is_set()
    assert again.status().state == state
    shown = [status async for status in again.watch()]
    assert [each.state for each in shown] == [state]
    assert again.status().detail == (detail if is_status_known or error is not None else "")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_job_shows_how_far_a_round_has_come_and_how_long_it_takes() -> None:
    clock = Clock()
    job = Job(JOB, b"run", clock=clock)
    job.on_message(BeginRound(RoundKey(1, 1), np.zeros(1), Batch(1, 0), gradient=True))
    job.on_message(RoundProgress(RoundKey(1, 1), 10, 100))
    assert not job.status().n_rows  # too early to be of interest
    clock.now += 20
    job.on_message(RoundProgress(RoundKey(1, 1), 40, 100))
    status = job.status()
    assert (status.rows_done, status.n_rows, status.seconds_left) == (40, 100, 30)
    clock.now += 1
    job.on_message(RoundProgress(RoundKey(9, 9), 90, 100))  # of another round
    assert job.status().rows_done == 40
    job.on_message(BeginRound(RoundKey(2, 1), np.zeros(1), Batch(1, 0), gradient=True))
    status = job.status()
    assert not status.n_rows
    assert not status.HasField("seconds_left")


async def test_a_job_names_the_step_of_inference_until_it_is_over() -> None:
    job = Job(JOB, b"run")
    whole = BeginRound(RoundKey(1, 1), np.zeros(1), Batch(1, 0), gradient=True)
    job.on_message(whole)
    assert job.status().step == ""
    step = replace(whole, key=RoundKey(2, 1), gradient=False, information=True)
    job.on_message(step)
    assert job.status().step == "standard errors"
    job.on_message(replace(step, key=RoundKey(2, 2)))
    assert job.status().step == "standard errors"
    assert job.last_status(None).step == ""
    job.on_message(FinishJob(3, np.zeros(1), 0.5, 1, "it converged", None))
    assert job.status().step == ""


async def test_a_job_shows_what_the_parties_do_before_the_first_round() -> None:
    clock = Clock()
    job = Job(JOB, b"run", clock=clock)
    for seconds, party, progress in (
        (1, Role.HOST, StageProgress(Stage.READING, 0.0)),
        (10, Role.HOST, StageProgress(Stage.READING, 0.5)),
        (1, Role.GUEST, StageProgress(Stage.PREPARING, 1.0)),
    ):
        clock.now += seconds
        job.on_stage(party, progress)
    assert (
        job.status().detail
        == "the guest is preparing its columns; the host is reading its table (50%, about 11 s left)"
    )
    job.on_message(BeginRound(RoundKey(1, 1), np.zeros(1), Batch(1, 0), gradient=True))
    clock.now += 1
    job.on_stage(Role.HOST, StageProgress(Stage.READING, 0.9))  # late
    assert job.status().detail == ""


@pytest.mark.parametrize("protocol", ["paillier", "shares"])
@pytest.mark.parametrize("viewer", [Role.HOST, Role.GUEST, Role.COORDINATOR, None])
async def test_under_shares_the_host_watches_without_losses_until_the_end(protocol: str, viewer: Role | None) -> None:
    """Each loss is a function of the labels, and the host learns nothing about them from its own messages."""
    job = Job(JOB.model_copy(update={"protocol": protocol}), b"run")
    evaluation = Evaluation(RoundKey(2, 1), 0.4567, None)
    job.on_message(RoundReport(RoundKey(2, 1), 2, 1, 1, 0.4321, False, "the step is cut", evaluation))
    is_hidden = viewer is Role.HOST and protocol == "shares"

    watch = job.watch(viewer)
    seen = [job.status(viewer=viewer), await anext(watch)]
    job.on_message(RoundReport(RoundKey(3, 1), 3, 1, 1, 0.4, False, "again", evaluation))
    seen.append(await anext(watch))
    for status in seen:
        assert status.HasField("loss") is not is_hidden
        assert ("0.4567" in str(status)) is not is_hidden
    assert [note for note in seen[-1].notes if "log loss" not in note] == ["round 3: again"]  # each note once
    job.on_message(JobEnded("converged", 0.25, 3))
    job.end(None)
    assert job.status(viewer=viewer).loss == 0.25


async def test_a_job_that_is_to_go_on_after_a_restart_keeps_its_name(tmp_path: Path) -> None:
    peers = {role: PeerConfig(address="127.0.0.1:1") for role in PARTIES}
    config = ProcessConfig(role=Role.COORDINATOR, plaintext=True, listen="127.0.0.1:0", peers=peers, state=tmp_path)
    audit = Audit(tmp_path / LOG)
    audit.open()
    earlier, later = (CoordinatorJobs(config, audit, {}) for _ in range(2))
    earlier.open()
    earlier.journal.add(b"run", JOB)
    await earlier.close()
    later.open()
    try:
        with pytest.raises(NameTakenError, match="already has a job named credit"):
            await later.start(JOB)
    finally:
        await later.close()
