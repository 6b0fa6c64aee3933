"""How long a training can be, which a party holds its coordinator and its peer to."""

from common.config.job import JobConfig
from common.protocol.messages import RoundKey

MOST_ATTEMPTS = 5
"""How often one round may be begun before the job fails."""


def most_rounds(job: JobConfig, n_batches: int) -> int:
    """Rounds that a job can come to: one a batch, and the losses of the two candidates on the whole training set."""
    return job.epochs * n_batches + 2


def is_beyond(key: RoundKey, rounds: int) -> bool:
    """Whether no training of at most `rounds` rounds gets to this attempt."""
    return key.round > rounds or key.attempt > MOST_ATTEMPTS
