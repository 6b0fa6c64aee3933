"""The outcome of a job follows from the class of the error that ended it, never from its text."""

import pytest

from trilateral.common.base.errors import (
    DataError,
    PeerError,
    PolicyError,
    StoppedError,
    SuspendedError,
    TrilateralError,
)
from trilateral.common.base.outcome import Outcome, outcome_of
from trilateral.common.rpc.errors import EndedError, InternalError


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.FINISHED),
        (StoppedError("no more of it"), Outcome.STOPPED),
        (SuspendedError("stopped by the operator"), Outcome.SUSPENDED),
        (PeerError("stopped by the operator"), Outcome.FAILED),
        (EndedError("the coordinator has ended the job: stopped by the operator"), Outcome.FAILED),
        (DataError("suspended"), Outcome.FAILED),
        (PolicyError("finished"), Outcome.FAILED),
        (InternalError("internal error; see the log of the host"), Outcome.FAILED),
    ],
    ids=str,
)
def test_the_outcome_follows_from_the_class_of_the_error(error: TrilateralError | None, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


def test_the_outcomes_are_the_words_that_journals_metrics_and_audit_logs_use() -> None:
    assert [str(outcome) for outcome in Outcome] == ["finished", "stopped", "failed", "suspended"]
