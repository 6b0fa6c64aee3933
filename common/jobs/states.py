"""The states of a job, as the contract names them."""

from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_STOPPED

ENDED = frozenset({JOB_STATE_FINISHED, JOB_STATE_FAILED, JOB_STATE_STOPPED})
"""Nothing changes any more."""
