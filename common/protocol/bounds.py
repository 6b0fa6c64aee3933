"""Bounds on the length of a training. A party holds the coordinator and its peer to them."""

from trilateral.common.base.errors import ProtocolError
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.messages import RoundKey

MAX_ATTEMPTS = 5
"""How often one round may be begun before the job fails."""


MAX_SENDINGS = 4
"""How often one vector of an attempt may come: after a broken connection, it is sent again."""


def max_rounds(job: JobConfig, n_batches: int) -> int:
    """Return the most rounds of a job: one per batch, and one for each of two candidates on the whole training set."""
    return job.epochs * n_batches + 2


def max_evaluations(job: JobConfig) -> int:
    """Return the most evaluations on the hold-out rows during a training. The one at its end is not counted.

    There is at most one after every `evaluate_every` epochs except the last. At each evaluation the host gives its
    part of the score of every hold-out row, so that n_holdout (max_evaluations + 1) scores leave it in all.
    """
    return 0 if job.evaluate_every is None else (job.epochs - 1) // job.evaluate_every


def is_beyond(key: RoundKey, rounds: int) -> bool:
    """Whether an attempt lies beyond every training of at most `rounds` rounds."""
    return key.round > rounds or key.attempt > MAX_ATTEMPTS


class Allowance:
    """How many ciphertexts a sender may still send in a job. Those that are ignored as repeated count, too.

    Args:
        sender: for the error.
        rounds: the most rounds that the job has.
        in_a_round: the most ciphertexts of one attempt at a round.
    """

    def __init__(self, sender: str, rounds: int, in_a_round: int) -> None:
        self._sender = sender
        self._most = self._left = rounds * MAX_ATTEMPTS * MAX_SENDINGS * in_a_round

    def spend(self, n_ciphertexts: int) -> None:
        """Count ciphertexts that have come.

        Raises:
            ProtocolError: once they are more than the job can have.
        """
        self._left -= n_ciphertexts
        if self._left < 0:
            raise ProtocolError(
                f"the {self._sender} sent more than the {self._most} ciphertexts that this job can have"
            )
