"""Bounds on the length of a training. A party enforces them on the coordinator and on its peer."""

from trilateral.common.base.errors import ProtocolError
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.keys import ciphertext_width
from trilateral.common.protocol.messages import RoundKey

MAX_ATTEMPTS = 5
"""How often one round may be begun before the job fails."""

MAX_SENDINGS = 4
"""How often one vector of an attempt may arrive: after a broken connection, it is sent again."""

PIECE = 512
"""Ciphertexts that travel and are worked on together, and the most that a receiver takes in one message: 256 KiB under
a key of 2048 bits."""

MAX_INFERENCE_STEPS = 3
"""Steps of inference in a session. Each is a step of Newton's method, so the third one follows only a training that
ended early."""

WINDOW_BYTES = 32 * 2**20
"""Bytes of the host's vectors that may be on their way to the guest, or wait there, without an answer. Whatever the
number of rows, this bounds what waits in the queues of both. Under a key of 2048 bits these are 128 pieces, so that as
many workers of an engine have work at a time."""


def window_pieces(job: JobConfig) -> int:
    """Return the pieces of a job's vectors that `WINDOW_BYTES` have room for, at least 2."""
    return max(2, WINDOW_BYTES // (PIECE * ciphertext_width(job.key_bits)))


def max_rounds(job: JobConfig, n_batches: int) -> int:
    """Return the most rounds of a job.

    There is one for each batch, one for each of two candidates on the whole training set, and the steps of inference.
    With folds, each fit has one round for an epoch at most, and one for its loss on the fold. With classes, each class
    has epochs of its own.
    """
    if job.folds is not None:
        return job.n_fits * job.epochs + len(job.penalties) * job.folds
    return job.epochs * n_batches * job.n_models + 2 + MAX_INFERENCE_STEPS * job.inference


def max_curvature_draws(job: JobConfig, n_batches: int) -> int:
    """Return the most curvature batches that a job draws: one in every `interval` rounds, or none."""
    algorithm = job.algorithm
    if algorithm.name != "sqn" or algorithm.curvature_batch is None:
        return 0
    return max_rounds(job, n_batches) // algorithm.interval


def max_evaluations(job: JobConfig) -> int:
    """Return the maximum evaluations on the hold-out rows during a training, without the one at the end.

    There is at most one evaluation after every `evaluate_every` epochs, except at the last epoch. At each evaluation
    the host gives its part of the score of every hold-out row, so n_holdout (max_evaluations + 1) scores leave it in
    total.
    """
    return 0 if job.evaluate_every is None else (job.epochs - 1) // job.evaluate_every


def is_beyond(key: RoundKey, rounds: int) -> bool:
    """Return whether an attempt is impossible in a training of at most `rounds` rounds."""
    return key.round > rounds or key.attempt > MAX_ATTEMPTS


class Allowance:
    """How many values (ciphertexts or ring elements) a sender may still send in a job. Repeated ones count too.

    Args:
        sender: the sender, for the text of the error.
        rounds: the maximum number of rounds of the job.
        in_a_round: the maximum number of values of one attempt at a round.
        unit: what the values are, for the text of the error.
        in_a_session: the maximum number of values that belong to no round.
    """

    def __init__(
        self, sender: str, rounds: int, in_a_round: int, unit: str = "ciphertexts", *, in_a_session: int = 0
    ) -> None:
        self._sender = sender
        self._unit = unit
        self._most = self._left = MAX_ATTEMPTS * MAX_SENDINGS * (rounds * in_a_round + in_a_session)

    def spend(self, n_values: int) -> None:
        """Count values that have arrived.

        Raises:
            ProtocolError: there are more than the job can have.
        """
        self._left -= n_values
        if self._left < 0:
            raise ProtocolError(
                f"the {self._sender} sent more than the {self._most} {self._unit} that this job can have"
            )
