"""What the three roles say to each other: plain values, no wire format.

A role is a state machine: it is handed one of these and yields envelopes with others. All of
them belong to one run of one job; the transport adds which. Everything inside a round is keyed
by (round, attempt, kind), so that a message may be sent again at any time and an old
attempt's late messages change nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gmpy2 import mpz

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.evaluation import HoldoutMetrics


class Kind(StrEnum):
    """The encrypted vectors of one round, with the paper's symbols."""

    SCORES = "scores"
    """u_A of the batch, packed; host to guest."""
    SQUARES = "squares"
    """One ciphertext, the sum of u_A^2 and of the host's penalty; host to guest."""
    RESIDUAL = "residual"
    """4 d of the batch, packed; guest to host."""
    SCORE_CHANGE = "score_change"
    """Delta u-bar_A of the curvature batch, packed; host to guest, when curvature is due."""
    TOTAL_CHANGE = "total_change"
    """h of the curvature batch, packed; guest to host, when curvature is due."""
    GRADIENT = "gradient"
    """|S| g, one masked ciphertext a column; each party to the coordinator."""
    CURVATURE = "curvature"
    """|S_H| v_t, one masked ciphertext a column; each party to the coordinator, when due."""
    LOSS = "loss"
    """One masked ciphertext; guest to coordinator."""


@dataclass(frozen=True, order=True)
class RoundKey:
    """Round k from 1 up and attempt from 1 up: a later attempt replaces an earlier one."""

    round: int
    attempt: int


# --- the start of a job


@dataclass(frozen=True, eq=False)
class OpenJob:
    """Coordinator to both parties: the job, and the modulus n of its public key."""

    job: JobConfig
    modulus: mpz
    party: Role
    """Whom the coordinator takes the receiver for: with swapped addresses each party would get the other's steps."""
    job_id: bytes = b""
    """Run ID of the job's first session; empty in that session itself."""
    was_ready: bool = False
    """Whether both parties were ready in an earlier session."""


@dataclass(frozen=True)
class IdChallenge:
    """Guest to host: a fresh nonce and how many rows the guest has."""

    nonce: bytes
    n_rows: int


@dataclass(frozen=True)
class IdProof:
    """Host to guest: its own nonce, and a digest of its IDs keyed by both nonces."""

    nonce: bytes
    digest: bytes


@dataclass(frozen=True)
class IdConfirmation:
    """Guest to host: the guest's digest, which differs from the host's by a label."""

    digest: bytes


@dataclass(frozen=True)
class Ready:
    """Party to coordinator: it can begin. Sizes only, and its place."""

    n_train: int
    n_columns: int
    round: int = 0
    """The newest round that was begun in an earlier session."""


# --- a round


@dataclass(frozen=True, eq=False)
class BeginRound:
    """Coordinator to each party: apply the step of the round before, then work on this one."""

    key: RoundKey
    step: FloatVector
    """g~_{k-1}, this party's part, shape (n_columns,): w_k = w_{k-1} - step. Zeros at the first round."""
    batch: Batch
    gradient: bool
    """False asks for the loss alone."""
    direction: FloatVector | None = None
    """This party's part of s_t, scaled so that the joint norm is in (1/8, 1/4]; None when no curvature is due."""
    curvature_draw: int = 0
    """Which draw of S_H, from 1 up; 0 is S_H = S."""
    loss: float | None = None
    """Mean loss of the round before, for the party's history file; None if that was void, or there was none."""
    evaluate_at: FloatVector | None = None
    """This party's part of w_e - w_k, shape (n_columns,): the hold-out rows are to be evaluated at w_e; None if not."""
    over: bool = False
    """The round was answered before, and the party has lost its place since: it takes the step and answers nothing."""


@dataclass(frozen=True, eq=False)
class VectorPiece:
    """Consecutive ciphertexts [offset, offset + len) of one encrypted vector of `total`."""

    key: RoundKey
    kind: Kind
    offset: int
    total: int
    ciphertexts: Sequence[mpz]


@dataclass(frozen=True)
class OutOfRange:
    """Party to coordinator: a value does not fit the fixed-point range, so the round is void."""

    key: RoundKey


@dataclass(frozen=True, eq=False)
class HoldoutScores:
    """Host to guest, in clear and only if the host permits it: u_A of hold-out rows [offset, offset + len)."""

    key: RoundKey
    """The round that asks for an evaluation; at the end that of the last step, attempt 1."""
    offset: int
    total: int
    scores: FloatVector


@dataclass(frozen=True)
class Evaluation:
    """Guest to coordinator: how good w_e is on the hold-out rows.

    Both figures are aggregates of the guest's labels, and rounded by `to_tell`.
    """

    key: RoundKey
    log_loss: float
    """Of 1 / (1 + exp(-u)), nothing calibrated."""
    auc: float | None


@dataclass(frozen=True)
class Waiting:
    """A party to the coordinator, or the coordinator to a party: do you still have the job?

    It goes from process to process; no state machine sees it.
    """


@dataclass(frozen=True)
class RoundTimedOut:
    """The coordinator's clock to its state machine: begin again with the next attempt."""

    key: RoundKey


# --- the end of a job


@dataclass(frozen=True, eq=False)
class FinishJob:
    """Coordinator to each party: a last step, and what became of the training."""

    round: int
    """The round that the step belongs to, one after the last."""
    step: FloatVector
    loss: float
    """Taylor loss of the resulting model on the training rows."""
    epochs: int
    reason: str
    round_loss: float | None
    """Mean loss of the last round, for the party's history file; None if that was void."""


@dataclass(frozen=True)
class Finished:
    """Party to coordinator: its model is made."""


@dataclass(frozen=True)
class Failed:
    """The job ends without a model: from any role to any other.

    Attributes:
        reason: why, in public words for people.
        outcome: stopped or failed. A party cannot stop a job, so what it sends is always of a failure.
    """

    reason: str
    outcome: Outcome = Outcome.FAILED


# --- from a state machine to the process around it: envelopes to the machine's own role


@dataclass(frozen=True)
class RoundReport:
    """Coordinator: a round is over."""

    key: RoundKey
    epoch: int
    batch: int
    """Which of the epoch's batches, from 1 up."""
    n_batches: int
    loss: float | None
    """Mean loss of the batch; None if the round was void."""
    loss_only: bool
    """The loss of the whole training set was asked for, no gradient."""
    note: str | None
    """What a person should know, such as a return to the best point."""
    evaluation: Evaluation | None = None
    """Of the hold-out rows, if there was one: after the epoch before."""


@dataclass(frozen=True, eq=False)
class Began:
    """Coordinator: both parties are ready for the first time; to be kept before the first round begins."""

    ready: Mapping[Role, Ready]


@dataclass(frozen=True, eq=False)
class Observed:
    """Coordinator: what a round has shown, to be kept before the next begins; the loss is None if it was void."""

    round: int
    loss: float | None
    gradient: FloatVector | None = None
    curvature: FloatVector | None = None
    holdout_loss: float | None = None


@dataclass(frozen=True, eq=False)
class StepTaken:
    """Party: what was asked is allowed, and its step is taken; to be kept before anything is answered."""

    asked: BeginRound | FinishJob


@dataclass(frozen=True)
class Evaluated:
    """Guest: all that is known of w_e on the hold-out rows."""

    key: RoundKey
    epochs: int
    """Of the training that lead to w_e."""
    metrics: HoldoutMetrics
    """Nothing calibrated."""


@dataclass(frozen=True, eq=False)
class Result:
    """Party: its part of the model, and for the guest the scores u of the hold-out rows."""

    coef: FloatVector
    loss: float
    rounds: int
    epochs: int
    reason: str
    holdout_scores: FloatVector | None = None
    evaluations: Sequence[Evaluated] = ()
    """Guest: those of the training, in order."""


@dataclass(frozen=True)
class JobEnded:
    """Coordinator: every party has its model (`loss` is set), or the job has failed."""

    reason: str
    loss: float | None = None
    epochs: int = 0


Message = (
    OpenJob
    | IdChallenge
    | IdProof
    | IdConfirmation
    | AlignmentProgress
    | Ready
    | BeginRound
    | VectorPiece
    | OutOfRange
    | HoldoutScores
    | Evaluation
    | Waiting
    | RoundTimedOut
    | FinishJob
    | Finished
    | Failed
    | RoundReport
    | Began
    | Observed
    | StepTaken
    | Evaluated
    | Result
    | JobEnded
)


@dataclass(frozen=True, eq=False)
class Envelope:
    """A message and whom it is for; to the sender's own role if the process around it shall act."""

    to: Role
    message: Message


class Machine(Protocol):
    """One role in one job, without IO, clocks or threads."""

    def start(self) -> Iterator[Envelope]:
        """Yield what the role says first, before it has heard anything."""
        ...

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """Take one message; yield what to send, as soon as it is ready.

        The caller may close the iterator early to drop work that a newer attempt has overtaken.
        """
        ...

    def prepare(self) -> bool:
        """Do one small unit of work that needs no input; False when there is none left."""
        ...

    @property
    def prepared(self) -> int:
        """For how many ciphertexts there is randomness that has been prepared."""
        ...
