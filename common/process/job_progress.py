"""What a job is doing, without the types of the wire."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.html import facts_html
from trilateral.common.base.progress import duration
from trilateral.common.pb.v1.jobs_pb2 import (
    JOB_STATE_FAILED,
    JOB_STATE_FINISHED,
    JOB_STATE_STARTING,
    JOB_STATE_STOPPED,
    JOB_STATE_TRAINING,
    JobStatus,
)


class JobState(StrEnum):
    """The state of a job.

    Attributes:
        STARTING: the processes make the key, read the tables and find the common rows.
        TRAINING: rounds are under way.
        FINISHED: both parties have their part of the model.
        FAILED: the job ended with an error and has no model. It can be resumed.
        STOPPED: an operator ended the job. It has no model and can be resumed.
    """

    STARTING = "starting"
    TRAINING = "training"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended. Only a resume changes a final state."""
        return self in {JobState.FINISHED, JobState.FAILED, JobState.STOPPED}


_STATES: Mapping[int, JobState] = MappingProxyType(
    {
        JOB_STATE_STARTING: JobState.STARTING,
        JOB_STATE_TRAINING: JobState.TRAINING,
        JOB_STATE_FINISHED: JobState.FINISHED,
        JOB_STATE_FAILED: JobState.FAILED,
        JOB_STATE_STOPPED: JobState.STOPPED,
    }
)


@dataclass(frozen=True)
class Progress:
    """A snapshot of one job.

    Attributes:
        job: name of the job.
        state: state of the job.
        detail: what the job is doing or waiting for, or why it ended, as a sentence for people.
        epoch: epoch under way, counted from 1; 0 before the first one.
        n_epochs: maximum number of epochs.
        round: round under way, counted from 1; 0 before the first one.
        attempt: attempt at this round. It rises when a party has to repeat the round.
        step: what this round is for, if that is no step of the training: `standard errors`.
        batch: batch under way within the epoch, counted from 1.
        n_batches: batches in an epoch.
        fits_done: fits of a cross-validation that are over.
        n_fits: all fits of the job; 1 without cross-validation. With more, an epoch is that of a fit.
        loss: loss of the latest round, or of the result once the job has finished; None before the first round. The
            Taylor loss under `paillier`, the logistic loss under `shares`.
        seconds: seconds since the job started.
        rows_done: rows of the round under way that are done, while a long round reports them.
        n_rows: all rows of that round; 0 while nothing is reported.
        seconds_left: seconds until the end of that round, at its pace so far; None while the pace is unknown.
        notes: remarks for the operator. While you watch a job, each note arrives once. In a single snapshot, all
            notes are there. A list of jobs has none.
    """

    job: str
    state: JobState
    detail: str = ""
    epoch: int = 0
    n_epochs: int = 0
    round: int = 0
    attempt: int = 0
    step: str = ""
    batch: int = 0
    n_batches: int = 0
    fits_done: int = 0
    n_fits: int = 1
    loss: float | None = None
    seconds: float = 0.0
    rows_done: int = 0
    n_rows: int = 0
    seconds_left: float | None = None
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Describe the job in a notebook."""
        return facts_html(
            f"job {self.job}",
            {
                "state": self.state,
                "detail": self.detail or None,
                "round": ", ".join(filter(None, (f"{self.round:,}", self.step))) if self.round else None,
                "loss": None if self.loss is None else f"{self.loss:.6g}",
                "time": duration(self.seconds),
                "notes": "; ".join(self.notes) or None,
            },
        )

    @property
    def rounds_done(self) -> int:
        """Number of rounds that belong to an epoch and are complete; with cross-validation, of fits."""
        if self.n_fits > 1:
            return self.fits_done
        return max(0, self.epoch - 1) * self.n_batches + self.batch

    @property
    def round_done(self) -> float:
        """The part of the round under way that is done, from 0 to 1."""
        return min(self.rows_done / self.n_rows, 1.0) if self.n_rows else 0.0

    @property
    def doing(self) -> str:
        """What an unfinished job does or waits for; empty while it trains undisturbed."""
        return "" if self.state.is_final else self.detail

    @property
    def max_rounds(self) -> int:
        """Maximum number of rounds. Training that converges needs fewer. With cross-validation, the number of fits."""
        if self.n_fits > 1:
            return self.n_fits
        return self.n_epochs * self.n_batches


def progress_of(status: JobStatus) -> Progress:
    """Convert a status as it came over the wire.

    Raises:
        ProtocolError: this release does not know the state.
    """
    state = _STATES.get(status.state)
    if state is None:
        raise ProtocolError(
            f"the coordinator reports job {status.job} in a state that this release does not know: install the same "
            "release of trilateral at all three organisations"
        )
    return Progress(
        job=status.job,
        state=state,
        detail=status.detail,
        epoch=status.epoch,
        n_epochs=status.n_epochs,
        round=status.round,
        attempt=status.attempt,
        step=status.step,
        batch=status.batch,
        n_batches=status.n_batches,
        fits_done=status.fits_done,
        n_fits=max(status.n_fits, 1),
        loss=status.loss if status.HasField("loss") else None,
        seconds=status.seconds,
        rows_done=status.rows_done,
        n_rows=status.n_rows,
        seconds_left=status.seconds_left if status.HasField("seconds_left") else None,
        notes=tuple(status.notes),
    )


class Pace:
    """Estimates how long the remaining rounds take, from the rounds seen so far.

    Two things are left out: the time before the first round seen, which went into keys and data, and rounds in which a
    party was away.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._disturbed = False
        self._n_rounds = 0
        self._seconds = 0.0

    def seconds_left(self, progress: Progress) -> float | None:
        """Return an upper bound, because training may converge before the last epoch; None while it is unknown."""
        if progress.state is not JobState.TRAINING:
            return None
        waits = bool(progress.doing)
        self._disturbed |= waits or progress.attempt > 1
        done = progress.rounds_done
        if done and (self._last is None or done > self._last[0]):
            if self._last is not None and not self._disturbed:
                self._n_rounds += done - self._last[0]
                self._seconds += progress.seconds - self._last[1]
            self._last = done, progress.seconds
            self._disturbed = waits
        if waits or self._n_rounds == 0:
            return None
        return max(0.0, self._seconds / self._n_rounds * (progress.max_rounds - done))
