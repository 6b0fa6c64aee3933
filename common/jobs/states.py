"""The states of a job that has ended, as the contract names them."""

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
"""The state of a job by its outcome. A job is never suspended, only a session of it."""
ENDED = frozenset(END_STATES.values())
"""The states in which nothing changes any more."""
