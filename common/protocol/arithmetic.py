"""The computations of a party on its own columns and on the vectors that it receives.

`Arithmetic` is the interface that a party's state machine uses. Another protocol can implement it with its own vectors,
its own expectations for each round, and weights of which a party holds only a share. `PaillierArithmetic` contains what
the host and the guest have in common in the packed Paillier protocol.

An arithmetic does not know the order of rounds and attempts. It only marks what it sends with the key of the attempt.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatMatrix, FloatRows, FloatVector, RowArray, blocks_of
from trilateral.common.base.errors import DataError, OutOfRangeError
from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import Engine, Placed
from trilateral.common.compute.local import LOCAL
from trilateral.common.compute.ordered import Ordered
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.cipher import EncryptedVector, PartyCipher
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.exponents import ColumnBounds, Exponents
from trilateral.common.paillier.fixed_point import encode, encode_wide
from trilateral.common.protocol.batches import Batch, Batches
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.bounds import PIECE, window_pieces
from trilateral.common.protocol.fixed_columns import Extremes, FixedColumns, beside, extremes_of, fixed_bounds
from trilateral.common.protocol.inner_products import OnSums, ProductsHere, ProductsOnWorkers, task_pieces
from trilateral.common.protocol.intake import Expected, VectorBounds
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
    FinishJob,
    Kind,
    RoundKey,
    RowsDone,
    SharesReady,
    VectorPiece,
)
from trilateral.common.protocol.paillier_tasks import encrypted
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.place import Weights
from trilateral.common.protocol.scales import VALUE_BITS, RoundScale, round_scale
from trilateral.common.protocol.separation import Sign
from trilateral.common.scratch.arrays import IN_MEMORY, Scratch

LARGEST_HOLDOUT_SCORE = 1e100
"""Maximum size of a hold-out score. These scores travel in clear, so no fixed-point range bounds them, but their sums
must stay finite."""


@dataclass(frozen=True)
class Introduction:
    """What a party tells the other about its arithmetic. All of it is public to the two parties."""

    n_columns: int
    """Training columns."""
    seed: bytes = field(default=b"", repr=False)
    """Its part of the seed of the streams that only the parties have; empty under the Paillier protocol."""
    weight_bits: int | None = None
    """Fraction bits of its sample weights; None if all rows have the same weight."""


@dataclass(frozen=True, eq=False)
class PaillierSession:
    """What a party's arithmetic needs for one session of a job under the Paillier protocol."""

    cipher: PartyCipher
    """The cipher under the session's public key, which the party has checked."""
    start: FloatVector | None = None
    """w before the first step, shape (n_columns,); zeros if None. See `protocol.label_secrecy`."""
    engine: Engine = LOCAL
    """Runs the work on the partitions of the table."""
    scratch: Scratch = field(default=IN_MEMORY, repr=False)
    """Holds what grows with the rows."""


@dataclass(frozen=True)
class SharesSession:
    """The same under the protocol on secret shares."""

    seed: bytes = field(repr=False)
    """The coordinator's part of the seed of the streams that it has in common with the party."""
    engine: Engine = field(default=LOCAL, repr=False)
    """Runs the work on the partitions of the table."""
    scratch: Scratch = field(default=IN_MEMORY, repr=False)
    """Holds what grows with the rows."""
    start: FloatVector | None = field(default=None, repr=False)
    """The weights at which the training starts, shape (n_columns,); None for zero."""


Session = PaillierSession | SharesSession


class Arithmetic(Weights, Protocol):
    """One party's side of a protocol. It follows the steps, and answers for one attempt at a time."""

    @property
    def coef(self) -> FloatVector:
        """This party's part of w, in training units, shape (n_columns,)."""
        ...

    @property
    def bounds(self) -> Mapping[Role, VectorBounds]:
        """What each other role can send for one attempt at a round, if it sends vectors."""
        ...

    @property
    def tasks(self) -> Ordered[Envelope]:
        """The tasks under way at the engine of the session. A new attempt, or a void one, forgets them."""
        ...

    # --- before the first round

    @property
    def introduction(self) -> Introduction:
        """What the other party is told about this party's arithmetic with the proof of the IDs."""
        ...

    def meet(self, peer: Introduction) -> Iterator[Envelope | Expected[Any]]:
        """Exchange what the rounds need with the other party, once the parties know that they hold the same IDs.

        Args:
            peer: what the other party has told about its arithmetic.

        Yields:
            See `begin`.

        Raises:
            ProtocolError: the two cannot compute together.
        """
        ...

    @property
    def may_begin(self) -> bool:
        """Whether everything that the rounds need has been exchanged."""
        ...

    @property
    def shares_ready(self) -> SharesReady | None:
        """What the coordinator needs to know besides the sizes; None under the Paillier protocol."""
        ...

    # --- a round

    def begin(self, asked: BeginRound) -> Iterator[Envelope | Expected[Any]]:
        """Start an attempt at the current weights.

        Yields:
            The messages that can be sent at once, and each vector that the attempt waits for. A vector must be
            announced before the first message that could make the peer send it.

        Raises:
            OutOfRangeError: a value does not fit its range, which makes the attempt void.
        """
        ...

    def take_rows_done(self, done: RowsDone) -> Iterator[Envelope]:
        """Learn how many rows of the open attempt the other party is done with.

        Raises:
            ProtocolError: the protocol has no such message, or the party says more than can be true.
        """
        ...

    # --- the end

    def finish(self, asked: FinishJob) -> Iterator[Envelope | Expected[Any]]:
        """Begin what makes `coef` known after the last step; see `begin` for what it yields.

        Raises:
            ProtocolError: the request is not one of this protocol.
        """
        ...

    @property
    def has_coef(self) -> bool:
        """Whether `coef` is the result of the training, and `signs` are known, once `finish` was called."""
        ...

    @property
    def signs(self) -> Mapping[Role, Sign]:
        """What the part of each party shows about separation; empty without inference."""
        ...

    def holdout_part(self, offset: FloatVector | None = None) -> FloatVector:
        """Compute this party's part of the scores u of the hold-out rows: both parts add up to u.

        Args:
            offset: evaluate at w + offset, shape (n_columns,); None for w itself.

        Returns:
            Shape (n_holdout,).

        Raises:
            OutOfRangeError: a score is beyond `LARGEST_HOLDOUT_SCORE`.
        """
        ...

    def result_part(self) -> FloatVector:
        """Compute this party's part of the scores u, at w, of the hold-out rows and then of the further sets.

        Returns:
            Shape (n_holdout + n_test,).

        Raises:
            OutOfRangeError: a score is beyond `LARGEST_HOLDOUT_SCORE`.
        """
        ...

    def prepare(self) -> bool:
        """Do one small unit of work for the next round that needs no input; return False if there is none."""
        ...

    @property
    def prepared(self) -> int:
        """The number of ciphertexts for which randomness is ready."""
        ...


def check_scaled(columns: FloatRows) -> None:
    """Check that the mean square of each training column is at most 1, which all bounds assume.

    Args:
        columns: shape (n_train, n_columns).

    Raises:
        DataError: a column's is larger.
    """
    totals = np.zeros(columns.shape[1])
    for rows in blocks_of(len(columns)):
        totals += np.square(columns[rows]).sum(axis=0)
    if (totals > (1 + 1e-8) * len(columns)).any():
        raise DataError("a training column's mean square exceeds 1: standardise the columns")


def holdout_scores(block: TrainingBlock, coef: FloatVector) -> FloatVector:
    """Return a party's part of the scores of its hold-out rows, shape (n_holdout,).

    Raises:
        OutOfRangeError: a score is beyond `LARGEST_HOLDOUT_SCORE`.
    """
    return _scores(block.holdout_columns, coef)


def result_scores(block: TrainingBlock, coef: FloatVector) -> FloatVector:
    """Return a party's part of the scores of all rows that are scored at the end; see `Arithmetic.result_part`."""
    sets = [block.holdout_columns, *([] if block.test_columns is None else [block.test_columns])]
    return np.concatenate([_scores(columns, coef) for columns in sets])


def _scores(columns: FloatRows, coef: FloatVector) -> FloatVector:
    scores = np.empty(len(columns))
    with np.errstate(over="ignore", invalid="ignore"):  # The check below finds scores that overflow.
        for rows in blocks_of(len(scores)):
            scores[rows] = columns[rows] @ coef
    if not (np.abs(scores) <= LARGEST_HOLDOUT_SCORE).all():
        raise OutOfRangeError("a score of a hold-out row is out of range")
    return scores


class PaillierArithmetic(ABC):
    """The common part of the host and the guest: fixed point, packing, encrypted products, masks and the penalty.

    In the paper's symbols: u = X w are the scores, d = u/4 - y/2 the residual, s_t the direction of curvature and
    h = X s_t the change of the scores. The vectors that travel hold u, h and d' = 4 d.

    Args:
        job: the job's settings, the same for all three roles.
        block: this party's columns.
        session: see `PaillierSession`.
        phase: times the kinds of work, if the process has a clock.

    Raises:
        DataError: a training column's mean square exceeds 1. The bound of a slot assumes at most 1.
        ConfigError: the key has no room for the job's slots.
        ValueError: the start does not have one weight for each column.
    """

    peer: ClassVar[Role]

    def __init__(
        self,
        job: JobConfig,
        block: TrainingBlock,
        session: PaillierSession,
        phase: Phase,
    ) -> None:
        columns = block.columns
        check_scaled(columns)
        self._job = job
        self._block = block
        self._columns = columns
        self._n_train: int = columns.shape[0]
        self._n_columns: int = columns.shape[1]
        self._batches = Batches.of(job, self._n_train)
        self._cipher = session.cipher
        self._engine = session.engine
        self.tasks: Ordered[Envelope] = Ordered()
        """See Arithmetic."""
        self._window = window_pieces(job)
        """Pieces of the host's vectors that may be without an answer."""
        self._task_pieces = 1
        """Pieces that one task of the attempt encrypts, or adds to."""
        self._placed: dict[tuple[int, int], Placed[FloatMatrix]] = {}
        """The training columns that workers have, by their rows."""
        self._extremes: Extremes | None = None
        """Of the training columns, once a round has needed them."""
        self._n_rows_done = 0
        """Rows of the attempt that this party needs no more."""
        self._phase = phase
        self._start: FloatVector = np.zeros(self._n_columns) if session.start is None else session.start
        if self._start.shape != (self._n_columns,):
            raise ValueError(f"the start has {self._start.size} weights for {self._n_columns} columns")
        self._coef = self._start
        self._residues_per_round = self._count_residues()
        # Try all batch sizes that the job's rounds will have: an error must show before the training begins.
        self._longest = max(map(self._n_groups, self._batches.sizes))
        """Ciphertexts of the longest vector of a batch."""
        self._longest_curvature = 0
        """Ciphertexts of the longest vector of a curvature batch; 0 if the job does not measure curvature."""
        if job.algorithm.name == "sqn":
            drawn = self._batches.sizes if job.curvature_batch is None else {job.curvature_batch}
            self._longest_curvature = max(map(self._n_groups, drawn))

    @property
    def coef(self) -> FloatVector:
        """See Arithmetic."""
        return self._coef.copy()

    @property
    @abstractmethod
    def bounds(self) -> Mapping[Role, VectorBounds]:
        """See Arithmetic."""

    @property
    def introduction(self) -> Introduction:
        """See Arithmetic."""
        return Introduction(self._n_columns)

    def meet(self, peer: Introduction) -> Iterator[Envelope | Expected[VectorPiece]]:
        """See Arithmetic: the first vectors travel in the first round."""
        del peer
        yield from ()

    @property
    def may_begin(self) -> bool:
        """See Arithmetic."""
        return True

    @property
    def shares_ready(self) -> SharesReady | None:
        """See Arithmetic."""
        return None

    def finish(self, asked: FinishJob) -> Iterator[Envelope | Expected[VectorPiece]]:
        """See Arithmetic: the last step leads to the result."""
        del asked
        yield from ()

    @property
    def has_coef(self) -> bool:
        """See Arithmetic."""
        return True

    def apply(self, step: FloatVector) -> None:
        """See Weights: w_k = w_{k-1} - g~_{k-1}."""
        self._coef = self._coef - step

    def reset(self) -> None:
        """See Weights."""
        self._coef = self._start

    @abstractmethod
    def begin(self, asked: BeginRound) -> Iterator[Envelope | Expected[VectorPiece]]:
        """See Arithmetic."""

    @property
    def signs(self) -> Mapping[Role, Sign]:
        """See Arithmetic: there is no inference under `paillier`."""
        return {}

    def holdout_part(self, offset: FloatVector | None = None) -> FloatVector:
        """See Arithmetic."""
        with np.errstate(over="ignore", invalid="ignore"):
            coef = self._coef if offset is None else self._coef + offset
        return holdout_scores(self._block, coef)

    def result_part(self) -> FloatVector:
        """See Arithmetic."""
        return result_scores(self._block, self._coef)

    def prepare(self) -> bool:
        """See Arithmetic."""
        with self._phase("prepare"):
            return self._cipher.prepare(self._residues_per_round)

    @property
    def prepared(self) -> int:
        """See Arithmetic."""
        return self._cipher.prepared

    # --- vectors out

    def _pieces(
        self,
        key: RoundKey,
        kind: Kind,
        values: NDArray[np.int64],
        scale: RoundScale,
        ahead: tuple[Kind, Sequence[mpz]] | None = None,
    ) -> Iterator[int]:
        """Encrypt a packed vector for the peer: each step begins the encryption of `_task_pieces` pieces.

        Args:
            key: the attempt.
            kind: what the vector is.
            values: the vector in fixed point, not empty.
            scale: the scale of the batch.
            ahead: the kind and the plaintexts of a short vector that is encrypted with the first piece, at no cost, and
                leaves ahead of it.

        Yields:
            The number of pieces.
        """
        total = scale.layout.n_groups(len(values))
        for number, rows in enumerate(blocks_of(len(values), self._task_pieces * scale.piece_samples)):
            first = ahead if number == 0 else None
            with self._phase("encrypt"):
                further = () if first is None else first[1]
                task = self._engine.submit(encrypted, self._cipher, scale, values[rows], further, urgent=True)
            offset = number * self._task_pieces * PIECE
            stop = min(offset + self._task_pieces * PIECE, total)
            kind_ahead = None if first is None else first[0]
            self.tasks.add(task, partial(self._send_pieces, key, kind, place=(offset, stop, total), ahead=kind_ahead))
            yield -(-(stop - offset) // PIECE)

    def _send_pieces(
        self, key: RoundKey, kind: Kind, ciphertexts: Ciphertexts, *, place: tuple[int, int, int], ahead: Kind | None
    ) -> Iterator[Envelope]:
        """Send pieces of a vector, and ahead of them the short vector whose ciphertexts follow theirs.

        Args:
            key: the attempt.
            kind: what the vector is.
            ciphertexts: those of the pieces, then those of the short vector.
            place: the offsets of the first piece and of what follows the last one, and the length of the vector.
            ahead: the kind of the short vector; None if there is none.
        """
        first, stop, total = place
        if ahead is not None:
            further = ciphertexts[stop - first :]
            yield Envelope(self.peer, VectorPiece(key, ahead, 0, len(further), further))
        for offset in range(first, stop, PIECE):
            piece = ciphertexts[offset - first : min(offset + PIECE, stop) - first]
            yield Envelope(self.peer, VectorPiece(key, kind, offset, total, piece))

    def _keep_few(self) -> Iterator[Envelope]:
        """Use the results of tasks, and wait until no more are under way than the engine needs."""
        yield from self.tasks.drain(2 * self._engine.n_slots + 1)

    def _masked(self, own_terms: Sequence[int], scale: RoundScale) -> list[mpz]:
        """Return what is added to sums: own terms, and masks for all slots except the readable one. Use it once.

        Raises:
            OutOfRangeError: a term does not fit the readable slot.
        """
        scale.check_terms(own_terms)
        with self._phase("seal"):
            return [scale.layout.place(term) + scale.layout.mask() for term in own_terms]

    def _sealed(self, key: RoundKey, kind: Kind, sums: EncryptedVector, added: Sequence[mpz]) -> Iterator[Envelope]:
        """Send sums to the coordinator: add what `_masked` returns, and re-randomise."""
        with self._phase("seal"):
            sealed = self._cipher.rerandomise(sums, added)
        for offset in range(0, len(sealed), PIECE):
            piece = VectorPiece(key, kind, offset, len(sealed), sealed[offset : offset + PIECE])
            yield Envelope(Role.COORDINATOR, piece)

    # --- vectors in

    def _opened(self, piece: VectorPiece) -> EncryptedVector:
        """Check the ciphertexts of a piece.

        Raises:
            BadCiphertextError: one of them is not safe to compute with.
        """
        with self._phase("check"):
            return self._cipher.open(piece.ciphertexts)

    def _done_with(self, piece: VectorPiece, scale: RoundScale, is_last: bool) -> Iterator[Envelope]:
        """Tell the coordinator that this party is done with the rows of a piece. After the last one, an answer does."""
        slots = scale.layout.slots
        self._n_rows_done += min(len(piece.ciphertexts) * slots, scale.n_samples - piece.offset * slots)
        if not is_last:
            yield Envelope(Role.COORDINATOR, RowsDone(piece.key, self._n_rows_done))

    # --- inner products

    def _choose_task_pieces(self, n_groups: int) -> None:
        """Choose how many pieces each task of an attempt encrypts, or adds to.

        Args:
            n_groups: ciphertexts of its longest vector. A window of them at most is there for tasks at a time.
        """
        self._task_pieces = task_pieces(min(-(-n_groups // PIECE), self._window), self._engine)

    def _own_bounds(self, columns: FloatRows, scale: RoundScale) -> ColumnBounds:
        """Return the bounds of some rows of the training columns in fixed point."""
        if columns is not self._columns:
            return fixed_bounds(extremes_of(columns), scale)
        if self._extremes is None:
            self._extremes = extremes_of(columns)
        return fixed_bounds(self._extremes, scale)

    def _for_workers(self, columns: FloatRows, rows: slice) -> Placed[FloatMatrix] | FloatMatrix:
        """Return some rows of columns as an argument of a task.

        Workers keep those of the whole training set for the rounds that follow.
        """
        if columns is not self._columns:
            return columns[rows]
        place = rows.start, rows.stop
        if place not in self._placed:
            self._placed[place] = self._engine.place(len(self._placed), lambda: columns[rows])
        return self._placed[place]

    def _release_unless(self, n_rows: int) -> None:
        """Release the columns that workers have in parts of other sizes, because no task needs them any more."""
        if self._placed and next(iter(self._placed)) != (0, min(n_rows, self._n_train)):
            for placed in self._placed.values():
                self._engine.release(placed)
            self._placed.clear()

    def _start_products(
        self,
        columns: FloatRows | None,
        scale: RoundScale,
        on_sums: OnSums,
        further: tuple[Exponents, ColumnBounds] | None = None,
        *,
        n_pieces: int,
    ) -> ProductsHere | ProductsOnWorkers:
        """Begin the inner products of a vector.

        Args:
            columns: this party's training columns of the samples; None to multiply by `further` alone.
            scale: the scale of the batch.
            on_sums: see `OnSums`.
            further: columns in fixed point that come last, and their bounds.
            n_pieces: pieces that one task of a worker multiplies.
        """
        if not self._engine.at_once:
            if columns is self._columns:
                self._release_unless(n_pieces * scale.piece_samples)

            def read(rows: slice) -> tuple[Placed[FloatMatrix] | FloatMatrix | None, NDArray[np.int64] | None]:
                own = None if columns is None else self._for_workers(columns, rows)
                return own, None if further is None else further[0][rows]

            return ProductsOnWorkers(
                self._cipher, scale, read, on_sums, engine=self._engine, tasks=self.tasks, n_pieces=n_pieces
            )
        tables: list[tuple[Exponents, ColumnBounds]]
        tables = [] if columns is None else [(FixedColumns(columns, scale), self._own_bounds(columns, scale))]
        tables += [] if further is None else [further]
        table, bounds = beside(tables)
        product = self._cipher.start_product(scale.layout, table, bounds)
        return ProductsHere(self._cipher, product, self._phase, on_sums)

    # --- the penalty

    def _penalty_terms(self, coef: FloatVector, scale: RoundScale) -> list[int]:
        """Compute 4 m lambda P coef at the scale of an inner product. The mean of d' x / 4 then gains lambda P coef."""
        gradient = 4 * scale.n_samples * self._job.l2 * (self._block.penalty @ coef)
        return encode_wide(gradient, scale.product_fraction_bits)

    def _penalty_loss(self) -> float:
        """Compute lambda/2 w'Pw, in units of the loss."""
        return 0.5 * self._job.l2 * float(self._coef @ self._block.penalty @ self._coef)

    # --- batches

    def _scale(self, n_samples: int) -> RoundScale:
        return round_scale(self._job, n_samples, self._n_train)

    def _n_groups(self, n_samples: int) -> int:
        return self._scale(n_samples).layout.n_groups(n_samples)

    def _scores(
        self, columns: FloatRows, coef: FloatVector, scale: RoundScale, labels: RowArray[np.float64] | None = None
    ) -> NDArray[np.int64]:
        """Compute u = X w in fixed point, u - 2y if there are labels y, or the change h of the scores if w is s_t.

        Args:
            columns: X, the rows of a batch.
            coef: w or s_t.
            scale: the scale of the batch.
            labels: y, shape (n_samples,), or None.

        Returns:
            Shape (n_samples,).

        Raises:
            OutOfRangeError: a value does not fit its range.
        """
        values = np.empty(len(columns), np.int64)
        for rows in blocks_of(len(columns), scale.piece_samples):
            block = columns[rows] @ coef
            if labels is not None:
                block = block - 2 * labels[rows]
            values[rows] = encode(block, scale.value_fraction_bits, VALUE_BITS)
        return values

    def _count_residues(self) -> int:
        """Count the ciphertexts that a round encrypts or re-randomises, including curvature in jobs that use it.

        Randomness for more of them than a window has would take memory and save no time.
        """
        first = Batch(1)
        sizes = [self._batches.size(first)]
        if self._job.algorithm.name == "sqn":
            sizes.append(self._batches.curvature_size(first, draw=1))
        needed = 1 + sum(self._scale(size).layout.n_groups(size) + self._n_columns for size in sizes)
        return min(needed, self._window * PIECE)
