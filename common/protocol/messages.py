"""The messages between the three roles: plain values, no wire format.

A role is a state machine: it takes a message and yields envelopes with other messages. All messages of a machine belong
to one run of one job, which the transport identifies. Everything inside a round is keyed by (round, attempt, kind). A
message may therefore be sent again at any time, and a late message of an old attempt changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from gmpy2 import mpz

from trilateral.common.base.arrays import ElementVector, FloatVector
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.progress import Stage
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.binning import FineBins
from trilateral.common.protocol.evaluation import HoldoutMetrics
from trilateral.common.protocol.row_roles import RolePiece
from trilateral.common.protocol.separation import Sign


class Kind(StrEnum):
    """The vectors of one round: those of the Paillier protocol, with the paper's symbols, and those of shares."""

    SCORES = "scores"
    """u_A of the batch S, packed; host to guest."""
    SQUARES = "squares"
    """One ciphertext, the sum of all u_A^2 and the host's penalty; host to guest."""
    RESIDUAL = "residual"
    """4 d of the batch S, packed; guest to host."""
    SCORE_CHANGE = "score_change"
    """Delta u-bar_A of the curvature batch S_H, packed; host to guest, if the round measures curvature."""
    TOTAL_CHANGE = "total_change"
    """h of the curvature batch S_H, packed; guest to host, if the round measures curvature."""
    GRADIENT = "gradient"
    """|S| g, one masked ciphertext per column; each party to the coordinator."""
    CURVATURE = "curvature"
    """|S_H| v_t, one masked ciphertext per column; each party to the coordinator, if the round measures curvature."""
    LOSS = "loss"
    """One masked ciphertext; guest to coordinator."""

    MASKED_COLUMNS = "masked_columns"
    """X - U of every row, once in a session; each party to the other. See `protocol.shares`."""
    MASKED_SCORES = "masked_scores"
    """z_1 or z_2 of the rows of a round; each party to the other."""
    MASKED_RESIDUAL = "masked_residual"
    """d - e, a party's share of the residual under a mask; each party to the other."""
    DEALT = "dealt"
    """Corrections that turn streams into shares of the waves of r; coordinator to each party."""
    SUMS = "sums"
    """Shares of the gradient and of the losses, masked and rounded; each party to the coordinator."""
    WEIGHTS = "weights"
    """A party's share of the other's final weights; each party to the other."""
    SEPARATION = "separation"
    """With inference, one element: what a party's part of the model shows about separation; each party to the other.
    See `protocol.separation.Sign`."""
    COUNTS = "counts"
    """Shares of the counts of labels in the host's bins, in a bins job; host and coordinator to the guest."""

    DEALT_SLOPES = "dealt_slopes"
    """In the step of inference, corrections that turn streams into shares; coordinator to each party. See
    `shares.information`."""
    UNWEIGHTED_SLOPES = "unweighted_slopes"
    """In the step of inference with sample weights, the host's shares of the slopes and of the entropies under masks;
    host to guest."""
    MASKED_SLOPES = "masked_slopes"
    """In the step of inference, a party's shares of the slopes and of the residual, under masks; each party to the
    other."""
    ROUNDED_SLOPES = "rounded_slopes"
    """The same, rounded, under other masks; each party to the other."""
    SLOPE_COLUMNS = "slope_columns"
    """In the step of inference, a share of the products of slopes and columns under a mask; from the party with fewer
    columns to the other."""
    FINE_COLUMNS = "fine_columns"
    """In the step of inference, X - U under masks of the attempt, for columns that are rounded more finely; each party
    to the other."""
    UNWEIGHTED_RESIDUAL = "unweighted_residual"
    """In the step of inference with sample weights, the host's share of the rounded residual under a mask; host to
    guest."""


SLOPE_KINDS = frozenset(
    {
        Kind.DEALT_SLOPES,
        Kind.UNWEIGHTED_SLOPES,
        Kind.MASKED_SLOPES,
        Kind.ROUNDED_SLOPES,
        Kind.SLOPE_COLUMNS,
        Kind.FINE_COLUMNS,
        Kind.UNWEIGHTED_RESIDUAL,
    }
)
"""The kinds of the step of inference alone."""
ELEMENT_KINDS = SLOPE_KINDS | {
    Kind.MASKED_COLUMNS,
    Kind.MASKED_SCORES,
    Kind.MASKED_RESIDUAL,
    Kind.DEALT,
    Kind.SUMS,
    Kind.WEIGHTS,
    Kind.SEPARATION,
    Kind.COUNTS,
}
"""The kinds that consist of ring elements. All others consist of ciphertexts."""


@dataclass(frozen=True, order=True)
class RoundKey:
    """Round k and the attempt at it, both from 1 up. A later attempt replaces an earlier one."""

    round: int
    attempt: int


# --- the start of a job


@dataclass(frozen=True, eq=False)
class OpenJob:
    """Coordinator to each party: the job, and the modulus n of its public key."""

    job: JobConfig
    modulus: mpz
    party: Role
    """The role that the coordinator expects the receiver to have. If addresses were swapped, each party would get the
    other's steps."""
    job_id: bytes = b""
    """Run ID of the job's first session; empty in that session."""
    was_ready: bool = False
    """Whether both parties were ready in an earlier session."""
    seed: bytes = field(default=b"", repr=False)
    """The coordinator's part of the seed of the streams that it has in common with the receiver. It is drawn for this
    session and this receiver. Empty under the Paillier protocol, which has no streams."""


@dataclass(frozen=True)
class IdChallenge:
    """Guest to host: a fresh nonce, and how many rows and training columns the guest has."""

    nonce: bytes
    n_rows: int
    n_columns: int
    seed: bytes = field(default=b"", repr=False)
    """The guest's part of the seed of the streams that only the parties have, drawn for this session."""
    weight_bits: int | None = None
    """Fraction bits of the sample weights; None if the guest gives every row the same weight."""


@dataclass(frozen=True)
class IdProof:
    """Host to guest: its own nonce, a digest of its IDs keyed by both nonces, and how many training columns it has."""

    nonce: bytes
    digest: bytes
    n_columns: int
    seed: bytes = field(default=b"", repr=False)
    """The host's part of the seed of the streams that only the parties have, drawn for this session."""


@dataclass(frozen=True)
class IdConfirmation:
    """Guest to host: the guest's own digest, which names its role and so differs from the host's."""

    digest: bytes


@dataclass(frozen=True, eq=False)
class SharesReady:
    """The part of `Ready` that the protocol on shares needs."""

    seed: bytes = field(repr=False)
    """The party's part of the seed of the streams that it has in common with the coordinator, drawn for this
    session."""
    n_holdout: int
    """Hold-out rows."""
    norm_bits: int
    """Ceiling of log2 of the largest Euclidean norm of a row of this party's columns, hold-out rows included."""
    spread_bits: int
    """Ceiling of log2 of the largest singular value of this party's columns, divided by sqrt(n_train); 0 if they are
    whitened. The training rows and the hold-out rows count separately, and those of more hold-out rows than n_train are
    divided by sqrt(n_holdout). The root mean square of this party's part of the scores is at most
    2^spread_bits |w|."""
    penalty: FloatVector = field(repr=False)
    """Diagonal of the party's P, shape (n_columns,); empty if the job has no penalty."""
    weight_bits: int | None = None
    """Guest: fraction bits of the sample weights; None if every row has the same weight."""
    total_weight: float = 0.0
    """Guest: sum of the sample weights of the training rows; 0 if every row has the same weight."""
    start: FloatVector = field(default_factory=lambda: np.zeros(0), repr=False)
    """This party's weights at which the training starts, shape (n_columns,); empty if it starts at zero."""
    fourth_bits: int = 0
    """With inference: ceiling of log2 of the largest mean of x^4 over the training rows, of the party's columns, at
    least 0."""
    fold_sizes: Sequence[int] = ()
    """Training rows of each fold, if a party decides the folds."""


@dataclass(frozen=True)
class Ready:
    """Party to coordinator: the party is ready. The message has only its sizes and its place."""

    n_train: int
    n_columns: int
    round: int = 0
    """The newest round that the party reached in an earlier session; 0 if there is none."""
    shares: SharesReady | None = None
    """None under the Paillier protocol."""


# --- a round


@dataclass(frozen=True, eq=False)
class WeightShares:
    """One party's shares of a point w, the host's columns first, and what it multiplies its own mask by.

    All are uniform to the party that receives them.
    """

    score: ElementVector = field(repr=False)
    """Shares of w at the scale of the scores, shape (n_host + n_guest,)."""
    opened: ElementVector = field(repr=False)
    """The other party's share of the receiver's own weights, minus a mask, shape (own columns,)."""
    loss: ElementVector = field(repr=False)
    """Shares of w at the scale of the linear part of the loss, shape (n_host + n_guest,)."""


@dataclass(frozen=True, eq=False)
class RoundShares:
    """What `BeginRound` has under the protocol on shares in place of steps, which no party may see."""

    weights: WeightShares | None
    """Of w_k; None if w_k = 0, where the residual is known without scores."""
    holdout: WeightShares | None = None
    """Of w_e, if the round evaluates the hold-out rows; else None."""


@dataclass(frozen=True, eq=False)
class BeginRound:
    """Coordinator to each party: take the step of the previous round, then work on this round."""

    key: RoundKey
    step: FloatVector
    """g~_{k-1}, this party's part, shape (n_columns,): w_k = w_{k-1} - step. Zeros at the first round."""
    batch: Batch
    gradient: bool
    """False asks for the loss alone."""
    direction: FloatVector | None = None
    """This party's part of s_t, shape (n_columns,), scaled so that the joint norm is in (1/8, 1/4]; None if the round
    does not measure curvature."""
    curvature_draw: int = 0
    """Which draw of S_H, from 1 up; 0 for S_H = S."""
    loss: float | None = None
    """Mean loss of the previous round, for the party's history file. None after a void round, in the first round, and
    under the protocol on shares."""
    evaluate_at: FloatVector | None = None
    """This party's part of w_e - w_k, shape (n_columns,), if the round evaluates hold-out rows at w_e; else None."""
    over: bool = False
    """True if the round was answered before and the party has lost its place since then, or if a training on shares
    needs it no more. The party takes the step and sends no answer."""
    peer_columns: int = 0
    """How many training columns the other party has told the coordinator. It must be what it has told the receiver: the
    gradient that the other party is shown has one number for each of them."""
    shares: RoundShares | None = None
    """None under the Paillier protocol, and in a journal. With shares, `step` is empty and `evaluate_at` is None."""
    information: bool = False
    """Whether the round is the step of inference, which comes after all others: it asks for the Fisher information of
    the training rows at w_k, and for nothing else."""
    fourth_bits: int = 0
    """Of the step of inference: the larger of the two parties' `SharesReady.fourth_bits`."""

    @property
    def evaluates(self) -> bool:
        """Whether the round evaluates the hold-out rows."""
        return self.evaluate_at is not None or (self.shares is not None and self.shares.holdout is not None)


@dataclass(frozen=True, eq=False)
class VectorPiece:
    """Consecutive ciphertexts [offset, offset + len) of one encrypted vector of `total`."""

    key: RoundKey
    kind: Kind
    offset: int
    total: int
    ciphertexts: Ciphertexts

    @property
    def n_rows(self) -> int:
        """How much of the vector's `total` the piece holds: its number of ciphertexts."""
        return len(self.ciphertexts)

    @property
    def n_ciphertexts(self) -> int:
        """Its number of ciphertexts."""
        return len(self.ciphertexts)

    @property
    def n_bytes(self) -> int:
        """The bytes of its ciphertexts."""
        return len(self.ciphertexts.data)


@dataclass(frozen=True, eq=False)
class ElementPiece:
    """The ring elements of consecutive rows [offset, offset + n_rows) of one vector of `total` rows.

    A vector without rows, such as `Kind.SUMS`, counts its elements as rows.
    """

    key: RoundKey
    """Round 0, attempt 0 for `Kind.MASKED_COLUMNS`, which belongs to the session and not to a round."""
    kind: Kind
    offset: int
    total: int
    n_rows: int
    elements: ElementVector = field(repr=False)
    """Of all columns, in the layout of `shares.layout`: shape (n_rows * n_columns,)."""
    digest: bytes = b""
    """With `Kind.MASKED_RESIDUAL` and `Kind.MASKED_SLOPES`: what the sender has computed from the scores of these rows.
    Both parties must have computed the same; see `shares.kernels`."""

    @property
    def n_ciphertexts(self) -> int:
        """Ring elements are no ciphertexts."""
        return 0

    @property
    def n_bytes(self) -> int:
        """The bytes of its elements."""
        return self.elements.nbytes


Piece = VectorPiece | ElementPiece
"""Consecutive elements of one vector."""


@dataclass(frozen=True)
class RowsDone:
    """Party to coordinator: the party is done with the first `n_rows` rows of an attempt.

    Under the protocol on shares, it needs no more dealt values for them, and the coordinator deals further ones. Under
    the Paillier protocol, the message only shows progress. The rows of a curvature batch count after those of the
    batch.

    Guest to host, under the Paillier protocol: the guest has used the scores of these rows, in a round without
    gradient. In other rounds, the residual tells the host so.
    """

    key: RoundKey
    n_rows: int


@dataclass(frozen=True)
class OutOfRange:
    """Party to coordinator: a value does not fit its fixed-point range, which makes the attempt void."""

    key: RoundKey


@dataclass(frozen=True, eq=False)
class HoldoutScores:
    """Host to guest, in clear, and only if the host's policy permits it: u_A of some hold-out rows."""

    key: RoundKey
    """The round that asks for an evaluation; at the end the round of the last step, attempt 1."""
    offset: int
    """The first of these rows."""
    total: int
    """Total number of hold-out rows."""
    scores: FloatVector
    """The scores of consecutive rows, shape (n,)."""


@dataclass(frozen=True)
class Evaluation:
    """Guest to coordinator: how good w_e is on the hold-out rows.

    Both figures are aggregates of the guest's labels, rounded by `evaluation.disclosed_log_loss` and `disclosed_auc`.
    """

    key: RoundKey
    log_loss: float
    """Log loss of the probabilities 1 / (1 + exp(-u)), without calibration."""
    auc: float | None


@dataclass(frozen=True)
class StageProgress:
    """Party to coordinator: how far the party has come with its work before the first round.

    The processes handle this message. No state machine sees it.
    """

    stage: Stage
    done: float
    """The part of the stage that is done, from 0 to 1."""


@dataclass(frozen=True)
class Waiting:
    """A party asks the coordinator, or the coordinator asks a party, whether it still has the job.

    The processes answer this message. No state machine sees it.
    """

    has_progressed: bool = False
    """From the coordinator: whether the job has progressed since it sent the receiver any message. Then the receiver
    waits on, however long the other party works."""


@dataclass(frozen=True)
class RoundTimedOut:
    """The coordinator's clock to its state machine: begin the next attempt."""

    key: RoundKey


# --- the end of a job


@dataclass(frozen=True)
class ComparedPenalty:
    """One penalty of a cross-validation."""

    l1: float
    l2: float
    loss: float | None
    """Mean log loss on the folds, each of a fit on the rows outside of the fold; None if a fit has none."""
    standard_error: float | None
    """Of that mean."""
    auc: float | None
    """With `choose: auc`, mean AUC on the folds, if `loss` is not None; else None."""
    auc_error: float | None
    """Of that mean."""
    n_terms: float
    """Training columns of both parties with a weight other than 0, without the intercept; a mean over the folds."""
    is_chosen: bool


@dataclass(frozen=True, eq=False)
class FinishJob:
    """Coordinator to each party: the last step, and the result of the training."""

    round: int
    """The round that the step belongs to, one after the last."""
    step: FloatVector
    loss: float
    """Loss of the resulting model on the training rows, penalty included: the Taylor loss, or under the protocol on
    shares the logistic loss."""
    epochs: int
    reason: str
    round_loss: float | None
    """Mean loss of the last round, for the party's history file; None if it was void, and under the protocol on
    shares."""
    share: ElementVector | None = field(default=None, repr=False)
    """Under the protocol on shares, in place of `step`: the receiver's shares of the final w, the host's columns first,
    at `shares.format.MODEL_FRACTION_BITS`, shape (n_host + n_guest,). None in a journal. With several models, the
    weights of each model follow those of the model before, for each party."""
    inference: "OwnCovariance | None" = field(default=None, repr=False)
    """With the job's `inference`; None in a journal."""
    compared: tuple[ComparedPenalty, ...] = ()
    """To the guest alone: the penalties of a cross-validation, the strongest first."""


@dataclass(frozen=True, eq=False)
class OwnCovariance:
    """What the coordinator tells a party about the accuracy of its own weights."""

    covariance: FloatVector = field(repr=False)
    """Covariance of the party's w in training units: the elements on and above the diagonal, row by row, with 6
    significant digits. Empty if the information cannot be inverted, or was not measured."""
    warnings: Sequence[str] = ()
    """Why the figures are missing or may be wrong, as public texts for people."""
    may_be_separated: bool = False
    """Whether the information shows that features separate the labels, or may do so."""
    depends: bool = False
    """Whether columns of the parties depend on each other, so that they inflate each other's standard errors."""


@dataclass(frozen=True)
class BinSizes:
    """Host to guest, in a bins job: its columns in fine bins, without names and bounds."""

    columns: tuple[FineBins, ...]


@dataclass(frozen=True)
class MergedColumn:
    """How fine bins of one of the host's columns were merged, and the labels in the merged bins."""

    groups: tuple[int, ...]
    """The number of the merged bin of each fine bin."""
    n_positive: tuple[int, ...] = field(repr=False)
    """Positive rows of each merged bin."""


@dataclass(frozen=True)
class MergedBins:
    """Guest to host, in a bins job: what the guest's policy releases of the counts."""

    columns: tuple[MergedColumn, ...]
    """One for each of the host's columns, in their order; empty if the guest releases nothing."""


@dataclass(frozen=True)
class Finished:
    """Party to coordinator: the party has made its part of the model, or in a bins job has what it gets to know."""


@dataclass(frozen=True)
class Failed:
    """The job ends without a model: from any role to any other.

    Attributes:
        reason: why, as a public text for people.
        outcome: stopped or failed. A party cannot stop a job, so its message always reports a failure.
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
    """True if the round asked for a loss and no gradient."""
    note: str | None
    """Something that a person should know, such as a return to the best point."""
    evaluation: Evaluation | None = None
    """The evaluation on the hold-out rows after the previous epoch, if the round asked for it."""
    fits_done: int = 0
    """Fits of a cross-validation that are over."""


@dataclass(frozen=True)
class RoundProgress:
    """Coordinator: how far the newest attempt at a round has come."""

    key: RoundKey
    rows_done: int
    """The rows that the slower of the parties is done with that have reported any."""
    n_rows: int
    """All rows of the attempt, and the hold-out rows that it evaluates; 0 if its answers need no row."""


@dataclass(frozen=True, eq=False)
class Began:
    """Coordinator: both parties are ready for the first time. Keep this before the first round begins."""

    ready: Mapping[Role, Ready]


@dataclass(frozen=True, eq=False)
class ObservationRecord:
    """Coordinator: what a round has shown. Keep this before the next round begins. The loss of a void round is None."""

    round: int
    loss: float | None
    gradient: FloatVector | None = None
    curvature: FloatVector | None = None
    holdout_loss: float | None = None
    information: FloatVector | None = None
    auc: float | None = None


@dataclass(frozen=True, eq=False)
class StepTaken:
    """Party: the coordinator's request is allowed, and its step is taken.

    Count this before anything is answered, and keep it before the coordinator is.
    """

    asked: BeginRound | FinishJob


@dataclass(frozen=True, eq=False)
class ScoresDue:
    """Host: scores of rows are about to leave. Count the point before they do."""

    key: RoundKey
    point: FloatVector
    """The host's weights at which the hold-out rows are scored, in training units, shape (n_columns,); empty for a
    fold, at whose point no party knows a weight."""
    fold: int = 0
    """The fold of training rows whose scores are opened, from 1 up; 0 for hold-out rows."""


@dataclass(frozen=True)
class CountsDue:
    """Party, in a bins job: numbers about its rows are about to leave. Count them before they do."""

    equations: int
    """How many equations they are, in the units of the ledger."""


@dataclass(frozen=True)
class BinsResult:
    """Party, in a bins job: what it gets to know about the host's columns."""

    bins: tuple[FineBins, ...]
    """Their fine bins, one for each column."""
    merged: tuple[MergedColumn, ...]
    """How they were merged, and the labels in them; empty at a host to which the guest releases nothing."""


@dataclass(frozen=True)
class EvaluationRecord:
    """Guest: everything that it measured at w_e on the hold-out rows. Keep this for the model."""

    key: RoundKey
    epochs: int
    """Length of the training that led to w_e."""
    metrics: HoldoutMetrics
    """Metrics without calibration."""


@dataclass(frozen=True, eq=False)
class Result:
    """Party: its part of the model, and for the guest the scores u of the hold-out rows."""

    coef: FloatVector
    loss: float
    rounds: int
    epochs: int
    reason: str
    holdout_scores: FloatVector | None = None
    evaluations: Sequence[EvaluationRecord] = ()
    """Guest: the evaluations during the training, in order."""
    compared: tuple[ComparedPenalty, ...] = ()
    """Guest: the penalties of a cross-validation, the strongest first."""
    inference: OwnCovariance | None = None
    """With the job's `inference`."""
    n_peer_columns: int = 0
    """Training columns of the other party."""
    signs: Mapping[Role, Sign] = field(default_factory=dict)
    """With the job's `inference`: what the part of each party shows about separation."""


@dataclass(frozen=True)
class JobEnded:
    """Coordinator: every party has its result, or the job has failed.

    A training that has finished has a loss. A bins job that has finished has `counted`.
    """

    reason: str
    loss: float | None = None
    epochs: int = 0
    compared: tuple[ComparedPenalty, ...] = ()
    """The penalties of a cross-validation, the strongest first."""
    counted: bool = False
    """Whether a bins job has finished."""


Message = (
    OpenJob
    | IdChallenge
    | IdProof
    | IdConfirmation
    | RolePiece
    | AlignmentProgress
    | Ready
    | BeginRound
    | VectorPiece
    | ElementPiece
    | RowsDone
    | OutOfRange
    | HoldoutScores
    | Evaluation
    | StageProgress
    | Waiting
    | RoundTimedOut
    | FinishJob
    | BinSizes
    | MergedBins
    | Finished
    | Failed
    | RoundReport
    | RoundProgress
    | Began
    | ObservationRecord
    | StepTaken
    | ScoresDue
    | EvaluationRecord
    | CountsDue
    | BinsResult
    | Result
    | JobEnded
)


@dataclass(frozen=True, eq=False)
class Envelope:
    """A message and its receiver. A message to the sender's own role is for the process around the machine."""

    to: Role
    message: Message


class Machine(Protocol):
    """One role in one job, without IO, clocks or threads."""

    def start(self) -> Iterator[Envelope]:
        """Yield the messages that the role sends before it has received any."""
        ...

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """Handle one message, and yield each message to send as soon as it is ready.

        The caller may close the iterator early, to drop work that a newer attempt has made useless.
        """
        ...

    @property
    def under_way(self) -> bool:
        """Whether tasks of the machine are under way at its engine."""
        ...

    def settle(self) -> Iterator[Envelope]:
        """Wait a moment for the oldest task under way, and yield what follows from each that is done, in order.

        The caller may close the iterator early; see `handle`.
        """
        ...

    def prepare(self) -> bool:
        """Do one small unit of work that needs no input; return False if there is none."""
        ...

    @property
    def prepared(self) -> int:
        """The number of ciphertexts for which randomness is ready."""
        ...
