"""One job of the coordinator, as an operator sees it: its status from start to end, over all sessions."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Self

from trilateral.common.base.errors import PeerError, StoppedError, TrilateralError
from trilateral.common.base.outcome import Outcome, outcome_of
from trilateral.common.base.progress import Remaining, duration
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.journal import Record
from trilateral.common.jobs.states import END_STATES, ENDED
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED, JOB_STATE_STARTING, JOB_STATE_TRAINING, JobStatus
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.messages import (
    BeginRound,
    ComparedPenalty,
    Evaluation,
    Failed,
    FinishJob,
    JobEnded,
    Message,
    OpenJob,
    RoundProgress,
    RoundReport,
    StageProgress,
)
from trilateral.common.rpc.calls import Silence
from trilateral.common.rpc.channel import Peer
from trilateral.coordinator.job_record import read_status

STANDARD_ERRORS = "standard errors"
"""What the step of inference is for."""
SHOW_SECONDS = 0.5
"""Minimum time between two changes of the status that show nothing but progress."""


@dataclass
class _Stage:
    """What a party does before the first round."""

    newest: StageProgress
    remaining: Remaining

    def __str__(self) -> str:
        done = self.newest.done
        how_far = f" ({_how_far(done, self.remaining.seconds_left(done))})" if 0 < done < 1 else ""
        return f"{self.newest.stage}{how_far}"


class Job:
    """What an operator can learn about one job.

    Args:
        config: the job's settings.
        job_id: run ID of its first session.
        known: the status that an earlier process saved; None for a new job.
        clock: returns seconds since a fixed moment.
    """

    def __init__(
        self,
        config: JobConfig,
        job_id: bytes,
        known: JobStatus | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._shown_at = clock()
        """When progress was shown last."""
        self.name = config.name
        self.id = job_id
        self.fruitless = 0
        """How many sessions in a row ended soon and without progress."""
        self.ended = asyncio.Event()
        self.error: TrilateralError | None = None
        """Why the job has ended; None if it runs or has finished."""
        self.stopping = False
        """Whether an operator has stopped the job, which may not have ended yet."""
        self.finishing = False
        """Whether the parties may have their models already, so that the job can no longer be stopped."""
        self._protocol = config.protocol
        self._status = known or JobStatus(job=config.name, n_epochs=config.epochs, n_fits=config.n_fits)
        self._seconds = self._status.seconds
        self.begin_session()
        self._left = False
        self._waiting: dict[Role, str] = {}
        self._round = Remaining(clock)
        self._aligned = False
        self._started = clock()
        self._changed = asyncio.Event()

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Return the job of a record of the journal."""
        known = read_status(record)
        detail = "" if known is None else known.detail
        job = cls(record.job, record.id, known)
        match record.outcome:
            case Outcome.FINISHED:
                job.update(detail=detail)
                job.end(None)
            case Outcome.STOPPED:
                job.end(StoppedError(record.reason))
            case Outcome.FAILED:
                job.end(PeerError(record.reason))
        return job

    def begin_session(self, why: str | None = None) -> None:
        """Begin a session; `why` is the reason for another session, or None for the first one."""
        self._status.state, self._status.detail = JOB_STATE_STARTING, ""
        if self._protocol == "paillier":
            self._status.detail = "making the job's key"
        self._n_opened = self._n_caught_up = 0
        self._stages: dict[Role, _Stage] = {}
        self._alignment: Remaining | None = None
        if why is not None:
            self._status.notes.append(f"the job continues in another session: {why}")

    def leave(self) -> None:
        """End all watches because the process stops. The job continues when the process is started again."""
        self._left = True
        self.update()

    def status(self, n_known_notes: int | None = 0, viewer: Role | None = None) -> JobStatus:
        """Return what the job is doing now.

        Args:
            n_known_notes: how many notes the receiver already has; None to leave out all notes.
            viewer: the role of the receiver, if it has one. Under shares, the host sees no loss of a round and no
                evaluation: these are functions of the labels, and it learns nothing else about them before the end.
        """
        status = JobStatus()
        status.CopyFrom(self._status)
        del status.notes[:n_known_notes]
        if not self.shows_losses(viewer):
            shown = [note for note in status.notes if _EVALUATED not in note and _COMPARED not in note]
            del status.notes[:]
            status.notes.extend(shown)
            if status.state != JOB_STATE_FINISHED:
                status.ClearField("loss")
        if not self.ended.is_set():
            status.seconds = self._elapsed()
            status.detail = "; ".join(self._waiting.values()) or status.detail
        return status

    def shows_losses(self, viewer: Role | None) -> bool:
        """Return whether a receiver may see the losses of rounds; see `status`."""
        return viewer is not Role.HOST or self._protocol != "shares"

    async def watch(self, viewer: Role | None = None) -> AsyncIterator[JobStatus]:
        """Yield the status now and after each change, until the job ends; see `status` for the viewer.

        Statuses are not queued: a watcher that is slow to ask for the next status gets the newest one.
        """
        n_notes = 0
        while True:
            changed = self._changed
            status = self.status(n_notes, viewer)
            n_notes = len(self._status.notes)
            yield status
            if status.state in ENDED or self._left:
                return
            await changed.wait()

    def update(self, **fields: Any) -> None:
        """Set fields of the status, and wake the watchers."""
        for name, value in fields.items():
            setattr(self._status, name, value)
        self._changed.set()
        self._changed = asyncio.Event()

    def on_wait(self, peer: Peer, silence: Silence | None) -> None:
        """Show that a peer has not answered for a while; with None, that it has answered again."""
        self._waiting.pop(peer.role, None)
        if silence is not None:
            self._waiting[peer.role] = str(silence)
        self.update()

    def on_message(self, message: Message) -> None:
        """Update the status after a message of the state machine."""
        match message:
            case OpenJob():
                self._n_opened += 1
                if self._n_opened == len(PARTIES):
                    self.update(detail="the parties are reading their tables")
            case AlignmentProgress() if self._status.state == JOB_STATE_STARTING:
                self._on_alignment(message)
            case RoundProgress():
                self._on_progress(message)
            case BeginRound(key=key, over=True):
                self._n_caught_up += 1
                self.update(detail=f"sending round {key.round} to a party whose journal lacks it")
            case BeginRound(key=key) if (key.round, key.attempt) != (self._status.round, self._status.attempt):
                self._on_round(key.round, key.attempt, STANDARD_ERRORS if message.information else "")
            case RoundReport():
                self._on_report(message)
            case FinishJob():
                self.finishing = True
                self.update(step="", detail="the parties are writing their parts of the model")
            case Failed(outcome=outcome):  # `end` shows the reason.
                self._waiting.clear()
                how = "was stopped" if outcome is Outcome.STOPPED else "has failed"
                self.update(detail=f"telling the parties that the job {how}")
            case JobEnded(counted=True):
                self._status.detail = message.reason
            case JobEnded(loss=float(loss)):  # `end` shows it.
                self._status.detail, self._status.epoch, self._status.loss = message.reason, message.epochs, loss
                self._status.notes.extend(map(_compared, message.compared))

    def on_stage(self, party: Role, progress: StageProgress) -> None:
        """Show how far a party has come before the first round."""
        known = self._stages.get(party)
        if known is None or known.newest.stage is not progress.stage:
            self._stages[party] = _Stage(progress, Remaining(self._clock, progress.done))
        else:
            known.newest = progress
        if self._status.state == JOB_STATE_STARTING and self._is_due():
            self.update(detail="; ".join(f"the {party} is {self._stages[party]}" for party in sorted(self._stages)))

    def _on_progress(self, progress: RoundProgress) -> None:
        """Show how far a round has come."""
        key, status = progress.key, self._status
        if (key.round, key.attempt) != (status.round, status.attempt) or not self._is_due():
            return
        left = self._round.seconds_left(progress.rows_done / progress.n_rows) if progress.n_rows else None
        status.ClearField("seconds_left")
        if left is not None:
            status.seconds_left = left
        self.update(rows_done=progress.rows_done, n_rows=progress.n_rows)

    def _is_due(self) -> bool:
        """Return whether to show progress, which may come many times a second."""
        now = self._clock()
        if now - self._shown_at < SHOW_SECONDS:
            return False
        self._shown_at = now
        return True

    def _on_alignment(self, progress: AlignmentProgress) -> None:
        counts = f"the host has {progress.n_host:,} rows, the guest {progress.n_guest:,}"
        if progress.done < progress.n_shards:
            done = progress.done / progress.n_shards
            self._alignment = self._alignment or Remaining(self._clock, done)
            left = self._alignment.seconds_left(done)
            rest = "" if left is None else f", about {duration(left)} left"
            self.update(
                detail=f"the parties are looking for their common rows: {progress.done} of {progress.n_shards} parts "
                f"done{rest}, {progress.n_common:,} rows found; {counts}"
            )
        elif not self._aligned:
            self._aligned = True
            self._status.notes.append(f"{counts}; they have {progress.n_common:,} in common")
            self.update(detail="the parties are proving to each other that their IDs match")

    def _on_round(self, number: int, attempt: int, step: str) -> None:
        if self._n_caught_up:
            self._status.notes.append(
                f"round {number}: a party's journal was behind, and {self._n_caught_up} steps were sent again"
            )
            self._n_caught_up = 0
        if attempt > 1:
            self._status.notes.append(f"round {number} was begun again, attempt {attempt}")
        # A job that trains undisturbed needs no text besides its numbers.
        self._shown_at, self._round = self._clock(), Remaining(self._clock)
        self._status.rows_done = self._status.n_rows = 0
        self._status.ClearField("seconds_left")
        self.update(state=JOB_STATE_TRAINING, detail="", round=number, attempt=attempt, step=step)

    def _on_report(self, report: RoundReport) -> None:
        if report.note:
            self._status.notes.append(f"round {report.key.round}: {report.note}")
        if report.loss is not None:
            self._status.loss = report.loss
        if report.evaluation is not None:
            self._status.notes.append(_described(report.evaluation, report.epoch - 1))
        if not report.loss_only:  # A round for the loss alone covers the whole training set, not a batch.
            self._status.batch = report.batch
        self.update(epoch=report.epoch, n_batches=report.n_batches, fits_done=report.fits_done)

    def last_status(self, error: TrilateralError | None) -> JobStatus:
        """Return the final status of the job. The journal keeps it before any watcher learns that the job has ended.

        Args:
            error: why the job ended; None if it has finished.
        """
        status = JobStatus()
        status.CopyFrom(self._status)
        status.seconds = self._elapsed()
        status.state = END_STATES[outcome_of(error)]
        for name in ("rows_done", "n_rows", "seconds_left", "step"):  # of a round that is over
            status.ClearField(name)
        if error is not None:
            status.detail = str(error)
        return status

    def end(self, error: TrilateralError | None) -> None:
        """End the job; `error` is the reason, or None if the job has finished."""
        self._status, self.error = self.last_status(error), error
        self.ended.set()
        self.update()
        self._changed = self.ended  # The process remembers many ended jobs: keep one event for each.

    def _elapsed(self) -> float:
        return self._seconds + self._clock() - self._started


def _how_far(done: float, seconds_left: float | None) -> str:
    rest = "" if seconds_left is None else f", about {duration(seconds_left)} left"
    return f"{done:.0%}{rest}"


_EVALUATED = "on the hold-out rows: log loss"
"""What the note on an evaluation says, and no other note."""


_COMPARED = "mean log loss on the folds"
"""What the note on a penalty says, and no other note."""


def _compared(each: ComparedPenalty) -> str:
    figures = "none"
    if each.loss is not None and each.standard_error is not None:
        figures = f"{each.loss:.6f}, standard error {each.standard_error:.6f}"
    if each.auc is not None and each.auc_error is not None:
        figures += f"; mean AUC {each.auc:.6f}, standard error {each.auc_error:.6f}"
    chosen = "; chosen" if each.is_chosen else ""
    return (
        f"l1 {each.l1:.4g}, l2 {each.l2:.4g}: {_COMPARED} {figures}; columns with a weight: {each.n_terms:.3g}{chosen}"
    )


def told_evaluation(log_loss: float, auc: float | None) -> tuple[float, float | None]:
    """Return the figures of an evaluation as a watcher is told them: with fewer digits, they say less about labels."""
    return float(f"{log_loss:.5g}"), None if auc is None else round(auc, 4)


def _described(evaluation: Evaluation, epochs: int) -> str:
    log_loss, auc = told_evaluation(evaluation.log_loss, evaluation.auc)
    area = "" if auc is None else f", AUC {auc:.4f}"
    return f"after epoch {epochs}, {_EVALUATED} {log_loss:.5g}{area}"
