"""How long a training can be, which a party holds its coordinator and its peer to."""

from trilateral.common.base.errors import ProtocolError
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.messages import RoundKey

MAX_ATTEMPTS = 5
"""How often one round may be begun before the job fails."""


MAX_SENDINGS = 4
"""How often one vector of an attempt may come: links send it again after a broken connection."""


def max_rounds(job: JobConfig, n_batches: int) -> int:
    """Rounds that a job can come to: one a batch, and the losses of the two candidates on the whole training set."""
    return job.epochs * n_batches + 2


def max_evaluations(job: JobConfig) -> int:
    """Evaluations on the hold-out rows during a training, that at its end not counted.

    There is at most one after every `evaluate_every` epochs but the last. At each the host gives its part of the score
    of every hold-out row, so that all in all n_holdout (max_evaluations + 1) scores leave it.
    """
    return 0 if job.evaluate_every is None else (job.epochs - 1) // job.evaluate_every


def is_beyond(key: RoundKey, rounds: int) -> bool:
    """Whether no training of at most `rounds` rounds gets to this attempt."""
    return key.round > rounds or key.attempt > MAX_ATTEMPTS


class Allowance:
    """How many ciphertexts a sender may still send in a job; what is ignored because it came before counts too.

    Args:
        sender: for the error.
        rounds: the most that the job has.
        in_a_round: the most that one attempt at a round has of them.
    """

    def __init__(self, sender: str, rounds: int, in_a_round: int) -> None:
        self._sender = sender
        self._most = self._left = rounds * MAX_ATTEMPTS * MAX_SENDINGS * in_a_round

    def take(self, n_ciphertexts: int) -> None:
        """Count what has come; ProtocolError once it is more than the job can have."""
        self._left -= n_ciphertexts
        if self._left < 0:
            raise ProtocolError(
                f"the {self._sender} sent more than the {self._most} ciphertexts that this job can have"
            )
