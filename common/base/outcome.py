"""How a job or one of its sessions ended: the same four words on the wire, in the journal, metrics and audit log."""

from enum import StrEnum

from trilateral.common.base.errors import StoppedError, SuspendedError, TrilateralError


class Outcome(StrEnum):
    """How a job or one of its sessions ended.

    `protos/trilateral/common/pb/v1/jobs.proto` has the same names and gives each its number on the wire.
    """

    FINISHED = "finished"
    """Each party has its part of the model."""
    STOPPED = "stopped"
    """An operator stopped the job."""
    FAILED = "failed"
    SUSPENDED = "suspended"
    """Only for a session: the job continues in another session."""


def outcome_of(error: TrilateralError | None) -> Outcome:
    """Return the outcome of a job or session that ended with `error`; None means that nothing went wrong."""
    match error:
        case None:
            return Outcome.FINISHED
        case StoppedError():
            return Outcome.STOPPED
        case SuspendedError():
            return Outcome.SUSPENDED
        case _:
            return Outcome.FAILED
