"""The states of a job that has ended, by their names in the contract."""

from types import MappingProxyType

from trilateral.common.base.outcome import Outcome
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_STOPPED

END_STATES = MappingProxyType(
    {
        Outcome.FINISHED: JOB_STATE_FINISHED,
        Outcome.FAILED: JOB_STATE_FAILED,
        Outcome.STOPPED: JOB_STATE_STOPPED,
    }
)
"""The state of a job by its outcome. Only a session can be suspended, never a job."""
ENDED = frozenset(END_STATES.values())
"""The states that no longer change."""
