"""What the host and the guest have in common: place in the rounds, streams in, sealed results out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import DataError, OutOfRangeError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.data.party_data import PartyData
from trilateral.common.paillier.cipher import Product, make_cipher
from trilateral.common.paillier.fixed_point import encode, encode_wide
from trilateral.common.paillier.keys import PublicKey, check_ciphertexts
from trilateral.common.protocol.batches import WHOLE_SET, Batch, Batches
from trilateral.common.protocol.bounds import MAX_ATTEMPTS, Allowance, is_beyond, max_evaluations, max_rounds
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
    Evaluated,
    FinishJob,
    Kind,
    Message,
    OutOfRange,
    Ready,
    Result,
    RoundKey,
    StepTaken,
    VectorPiece,
)
from trilateral.common.protocol.phases import Phase, no_phase
from trilateral.common.protocol.scales import VALUE_BITS, RoundScale, round_scale

PIECE = 512
"""Ciphertexts that travel and are worked on together: 256 KiB under a 2048-bit key."""
LARGEST_HOLDOUT_SCORE = 1e100
"""They travel in clear, so that no fixed-point range bounds them; sums of them are to be finite all the same."""


@dataclass
class Incoming:
    """A vector that this round waits for: how far it has come, and what to do with the next piece."""

    total: int
    take: Callable[[VectorPiece, bool], Iterator[Envelope]]
    """Is given the piece, and whether it is the last."""
    received: int = 0


class PartyMachine(ABC):
    """One party's state machine, less what only the host or only the guest does.

    Args:
        job: the job's settings, the same for all three.
        data: this party's rows, in canonical order, preprocessed.
        public_key: the job's key, already checked.
        phase: names the kinds of work, for whoever holds a clock.

    Raises:
        DataError: if a training column's mean square exceeds 1, on which the slot bound rests; or if the job
            evaluates on hold-out rows and there are none.
        ConfigError: if the key has no room for the job's slots.
    """

    role: Role
    peer: Role

    def __init__(self, job: JobConfig, data: PartyData, public_key: PublicKey, *, phase: Phase = no_phase) -> None:
        block = data.block
        if block.columns.size and np.max(np.mean(np.square(block.columns), axis=0)) > 1 + 1e-8:
            raise DataError("a training column's mean square exceeds 1: standardise the columns")
        if job.evaluate_every is not None and not len(block.holdout_columns):
            raise DataError("the job evaluates on hold-out rows, and its `holdout` comes to none: raise it")
        self._job = job
        self._ids = data.ids
        self._block = block
        self._columns = block.columns
        self._n_train: int = block.columns.shape[0]
        self._n_columns: int = block.columns.shape[1]
        self._batches = Batches.of(job, self._n_train)
        self._max_rounds = max_rounds(job, self._batches.count)
        # At most one ciphertext a sample in each of two vectors, and the sum of squares.
        self._allowance = Allowance(self.peer, self._max_rounds, 2 * self._n_train + 1)
        self._evaluated_rounds: set[int] = set()
        self._evaluations: dict[int, Evaluated] = {}
        self._phase = phase
        self._public_key = public_key
        self._cipher = make_cipher(job.cipher, public_key)
        self._coef: FloatVector = np.zeros(self._n_columns)
        self._key = RoundKey(0, 0)
        self._incoming: dict[Kind, Incoming] = {}
        self._early: list[VectorPiece] = []
        self._finished = False
        self._begun: BeginRound | None = None
        self._known: dict[int, BeginRound] = {}
        self._is_in_place = True
        self._is_void = False
        self._last_step: FinishJob | None = None
        self._residues_per_round = self._count_residues()
        # The sizes of all rounds to come: what has no room in a slot must show before anything is trained.
        for batch in (Batch(1), Batch(1, self._batches.count - 1), WHOLE_SET):
            self._scale(self._batches.size(batch))

    @property
    def coef(self) -> FloatVector:
        """This party's part of w, shape (n_columns,), in training units."""
        return self._coef.copy()

    @property
    def ready(self) -> Ready:
        """What the coordinator hears once the IDs are proved."""
        return Ready(self._n_train, self._n_columns, self._key.round)

    def restore(self, steps: Sequence[BeginRound | FinishJob], evaluations: Sequence[Evaluated] = ()) -> None:
        """Take up the place that this party had in earlier sessions of the job, before anything is handled.

        Args:
            steps: what the coordinator asked in them, of each round once, in order: see `StepTaken`.
            evaluations: at the guest, what it measured in them.

        Raises:
            ProtocolError: they are not the steps of this job on these data.
        """
        self._evaluations.update((each.key.round, each) for each in evaluations)
        for asked in steps:
            if isinstance(asked, FinishJob):
                self._last_step = asked  # It is taken when it comes again.
                continue
            begin = replace(asked, key=RoundKey(asked.key.round, 0))  # Attempts are those of a session.
            self._check_begin(begin)
            self._apply(begin.key.round, begin.step)
            self._forget_if_void(begin.key.round - 1, begin.loss)
            self._key, self._begun = begin.key, begin
            self._known[begin.key.round] = begin
        self._is_in_place = not self._known

    def start(self) -> Iterator[Envelope]:
        """Nothing, unless the role speaks first."""
        yield from ()

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """See `Machine.handle`."""
        match message:
            case BeginRound() if sender is Role.COORDINATOR:
                yield from self._begin_round(message)
            case VectorPiece() if sender is self.peer:
                yield from self._take_piece(message)
            case FinishJob() if sender is Role.COORDINATOR:
                if not self._finished:
                    self._check_finish(message)
                    self._apply(message.round, message.step)
                    self._finished = True
                    yield Envelope(self.role, StepTaken(message))
                    yield from self._finish(message)
            case _:
                yield from self._handle_own(sender, message)

    def prepare(self) -> bool:
        """Make randomness for the next round's ciphertexts while there is nothing else to do."""
        with self._phase("prepare"):
            return not self._finished and self._cipher.prepare(self._residues_per_round)

    @property
    def prepared(self) -> int:
        """See `Machine.prepared`."""
        return self._cipher.prepared

    # --- what the roles add

    @abstractmethod
    def _handle_own(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """Take a message that only this role takes."""
        raise ProtocolError(f"the {self.role} does not take a {type(message).__name__} from the {sender}")

    @abstractmethod
    def _work(self, begin: BeginRound) -> Iterator[Envelope]:
        """Begin a round: send what needs no answer, and say what is expected."""

    @abstractmethod
    def _finish(self, finish: FinishJob) -> Iterator[Envelope]:
        """Make the party's part of the model: the last step has been applied."""

    # --- the place in the rounds

    def _begin_round(self, begin: BeginRound) -> Iterator[Envelope]:
        if not self._is_in_place:
            self._go_back(begin.key.round)
        if begin.key <= self._key or self._finished:
            return
        self._check_begin(begin)
        self._apply(begin.key.round, begin.step)
        self._key = begin.key
        self._begun = begin
        self._is_void = False
        self._incoming = {}
        early = [piece for piece in self._early if piece.key == begin.key]
        self._early = [piece for piece in self._early if piece.key > begin.key]
        self._forget_if_void(begin.key.round - 1, begin.loss)
        yield Envelope(self.role, StepTaken(begin))
        if begin.over:
            return
        try:
            yield from self._work(begin)
            for piece in early:
                yield from self._receive(piece)
        except OutOfRangeError:
            yield from self._declare_void()

    def _check_begin(self, begin: BeginRound) -> None:
        """Hold the coordinator to the job: each round shows it a sum more over this party's rows."""
        asked = f"the coordinator began round {begin.key.round}, attempt {begin.key.attempt}"
        before = self._known.get(begin.key.round)
        if self._begun is not None and self._begun.key.round == begin.key.round:
            before = self._begun
        if before is not None and not _ask_alike(before, begin):
            raise ProtocolError(f"{asked}, and asks for something else than in the attempt before")
        if before is None and self._last_step is not None:
            raise ProtocolError(f"{asked}, and had taken the last step before it was restarted")
        if is_beyond(begin.key, self._max_rounds):
            raise ProtocolError(
                f"{asked}: this job has at most {self._max_rounds} rounds, and a round {MAX_ATTEMPTS} attempts"
            )
        batch, count, epochs = begin.batch, self._batches.count, self._job.epochs
        if batch != WHOLE_SET and not (1 <= batch.epoch <= epochs and 0 <= batch.index < count):
            raise ProtocolError(
                f"{asked}, with batch {batch.index + 1} of epoch {batch.epoch}:"
                f" this job has {epochs} epochs of {count} batches"
            )
        self._check_evaluation(begin, asked)
        if begin.direction is None:
            return
        if self._job.algorithm.name != "sqn":
            raise ProtocolError(f"{asked}, with curvature, which {self._job.algorithm.name} does not use")
        if begin.direction.shape != self._coef.shape:
            raise ProtocolError(
                f"{asked}, with a direction of {begin.direction.size} numbers:"
                f" the {self.role} has {self._n_columns} columns"
            )
        is_drawn = begin.curvature_draw > 0
        if is_drawn != (self._job.curvature_batch is not None) or begin.curvature_draw > self._max_rounds:
            raise ProtocolError(
                f"{asked}, with draw {begin.curvature_draw} of a curvature batch: this job has none such"
            )

    def _check_finish(self, finish: FinishJob) -> None:
        """Hold the coordinator to one point of which the host gives the scores: that after its newest round."""
        begun = self._key.round
        if finish.round != begun + 1 or finish.round in self._known:
            newest = max([begun, *self._known])
            raise ProtocolError(
                f"the coordinator took the last step in round {finish.round}, where that of round {newest + 1} is due"
            )
        last = self._last_step
        if last is not None and not (finish.round == last.round and np.array_equal(finish.step, last.step)):
            raise ProtocolError("the coordinator took another last step before it was restarted")

    def _check_evaluation(self, begin: BeginRound, asked: str) -> None:
        """Each one gives the guest one more linear function of every hold-out row."""
        if begin.evaluate_at is None:
            return
        most = max_evaluations(self._job)
        self._evaluated_rounds.add(begin.key.round)
        if len(self._evaluated_rounds) > most:
            raise ProtocolError(f"{asked}, with an evaluation: this job has at most {most} of them")
        if begin.evaluate_at.shape != self._coef.shape:
            raise ProtocolError(
                f"{asked}, with an evaluation at {begin.evaluate_at.size} numbers:"
                f" the {self.role} has {self._n_columns} columns"
            )

    def _forget_if_void(self, round_number: int, loss: float | None) -> None:
        """The coordinator has told the loss of a round that is over; without one it was void, and evaluated nothing."""
        if loss is None:
            self._evaluations.pop(round_number, None)

    def _holdout_part(self, offset: FloatVector | None = None) -> FloatVector:
        """This party's part of the scores of the hold-out rows, at w or at w + offset, shape (n_holdout,).

        Raises:
            OutOfRangeError: one of them is beyond `LARGEST_HOLDOUT_SCORE`.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # What overflows is found below.
            coef = self._coef if offset is None else self._coef + offset
            scores: FloatVector = self._block.holdout_columns @ coef
        if not (np.abs(scores) <= LARGEST_HOLDOUT_SCORE).all():
            raise OutOfRangeError("a score of a hold-out row is out of range")
        return scores

    def _go_back(self, round_number: int) -> None:
        """The session begins with a round that this party has been in: the coordinator has lost its place.

        Each of the rounds from there on shows the same sums at the same point again, or is refused.
        """
        self._is_in_place = True
        if not 1 <= round_number < self._key.round:
            return
        self._coef, self._key, self._begun = np.zeros(self._n_columns), RoundKey(0, 0), None
        for number in range(1, round_number):
            self._apply(number, self._known[number].step)
            self._key = RoundKey(number, MAX_ATTEMPTS)

    def _apply(self, round_number: int, step: FloatVector) -> None:
        """w_k = w_{k-1} - g~_{k-1}: once a round, whatever the number of attempts."""
        if round_number == self._key.round:
            return
        if round_number != self._key.round + 1 or step.shape != self._coef.shape:
            raise ProtocolError(
                f"the {self.role} is at round {self._key.round} with {self._n_columns} columns"
                f" and was sent a step of {step.size} for round {round_number}"
            )
        self._coef = self._coef - step

    def _declare_void(self) -> Iterator[Envelope]:
        """This attempt is over for this party: what still comes for it is ignored."""
        self._is_void = True
        self._incoming = {}
        yield Envelope(Role.COORDINATOR, OutOfRange(self._key))

    # --- vectors in

    def _take_piece(self, piece: VectorPiece) -> Iterator[Envelope]:
        self._allowance.take(len(piece.ciphertexts))
        # Checked of what is kept and of what is ignored too: nobody sends it in good faith.
        if is_beyond(piece.key, self._max_rounds) or piece.total > self._n_train:
            raise ProtocolError(
                f"the {self.peer} sent {piece.total} ciphertexts of {piece.kind} for round {piece.key.round}, attempt"
                f" {piece.key.attempt}: this job has {self._n_train} rows, at most {self._max_rounds} rounds, and"
                f" {MAX_ATTEMPTS} attempts at each"
            )
        if piece.key > self._key:
            self._keep_early(piece)
        elif piece.key == self._key:
            try:
                yield from self._receive(piece)
            except OutOfRangeError:
                yield from self._declare_void()

    def _keep_early(self, piece: VectorPiece) -> None:
        """The peer has begun a round that this party has not heard of yet; only its newest is kept.

        It may be several rounds ahead: a round that the peer declared void needed nothing of this party.
        """
        newest = max((early.key for early in self._early), default=piece.key)
        if piece.key < newest:
            return
        self._early = [early for early in self._early if early.key == piece.key]
        if any((early.kind, early.offset) == (piece.kind, piece.offset) for early in self._early):
            return
        # At most one ciphertext a sample in each of two vectors, and the sum of squares.
        held = sum(len(early.ciphertexts) for early in self._early)
        if held + len(piece.ciphertexts) > 2 * self._n_train + 1:
            raise ProtocolError(f"the {self.peer} has sent more ciphertexts for round {piece.key.round} than it has")
        self._early.append(piece)

    def _receive(self, piece: VectorPiece) -> Iterator[Envelope]:
        incoming = self._incoming.get(piece.kind)
        if incoming is None or piece.offset < incoming.received:
            return  # of a round declared void, or sent again
        if piece.total != incoming.total or piece.offset != incoming.received:
            raise ProtocolError(
                f"the {self.peer} sent ciphertexts {piece.offset} of {piece.total} of {piece.kind}"
                f" where {incoming.received} of {incoming.total} was due"
            )
        if incoming.received + len(piece.ciphertexts) > incoming.total:
            raise ProtocolError(f"the {self.peer} sent more ciphertexts of {piece.kind} than announced")
        with self._phase("check"):
            check_ciphertexts(self._public_key, piece.ciphertexts)
        incoming.received += len(piece.ciphertexts)
        yield from incoming.take(piece, incoming.received == incoming.total)

    # --- vectors out

    def _pieces(
        self, kind: Kind, values: NDArray[np.int64], scale: RoundScale, make: Callable[[list[mpz]], list[mpz]]
    ) -> Iterator[Envelope]:
        """To the peer, a packed vector; each piece leaves before the next is made."""
        total = scale.layout.n_groups(len(values))
        slots = scale.layout.slots
        for offset in range(0, total, PIECE):
            with self._phase("encrypt"):
                ciphertexts = make(scale.layout.pack(values[offset * slots : (offset + PIECE) * slots]))
            yield Envelope(self.peer, VectorPiece(self._key, kind, offset, total, ciphertexts))

    def _sealed(
        self, kind: Kind, ciphertexts: Sequence[mpz], own_terms: Sequence[int], scale: RoundScale
    ) -> Iterator[Envelope]:
        """To the coordinator: own terms added, everything outside the readable slot masked, re-randomised."""
        layout = scale.layout
        scale.check_terms(own_terms)
        with self._phase("seal"):
            added = [layout.place(term) + layout.mask() for term in own_terms]
            sealed = self._cipher.rerandomise(self._cipher.add_plaintexts(ciphertexts, added))
        for offset in range(0, len(sealed), PIECE):
            piece = VectorPiece(self._key, kind, offset, len(sealed), sealed[offset : offset + PIECE])
            yield Envelope(Role.COORDINATOR, piece)

    def _accumulate(self, product: Product, ciphertexts: Sequence[mpz]) -> None:
        with self._phase("product"):
            product.update(ciphertexts)

    def _penalty_terms(self, coef: FloatVector, scale: RoundScale) -> list[int]:
        """4 m lambda P coef at the scale of an inner product, so that the mean of d' x / 4 gains lambda P coef."""
        gradient = 4 * scale.n_samples * self._job.l2 * (self._block.penalty @ coef)
        return encode_wide(gradient, scale.product_fraction_bits)

    def _penalty_loss(self) -> float:
        """lambda/2 w'Pw, in units of the loss."""
        return 0.5 * self._job.l2 * float(self._coef @ self._block.penalty @ self._coef)

    def _result(
        self,
        finish: FinishJob,
        holdout_scores: FloatVector | None = None,
        evaluations: Sequence[Evaluated] = (),
    ) -> Envelope:
        """For the process around the machine, which makes a model file of it."""
        self._incoming, self._early = {}, []
        result = Result(
            coef=self.coef,
            loss=finish.loss,
            rounds=finish.round - 1,
            epochs=finish.epochs,
            reason=finish.reason,
            holdout_scores=holdout_scores,
            evaluations=evaluations,
        )
        return Envelope(self.role, result)

    # --- batches

    def _scale(self, n_samples: int) -> RoundScale:
        return round_scale(self._job, n_samples, self._n_train)

    def _scores(self, rows: Rows, coef: FloatVector) -> FloatVector:
        """Compute u = w.x, or with s in the place of w the change of the score; shape (len(rows),)."""
        return self._columns[rows] @ coef

    def _fixed_columns(self, rows: Rows, scale: RoundScale) -> NDArray[np.int64]:
        """The exponents of an encrypted product, shape (len(rows), n_columns)."""
        return scale.encode_columns(self._columns[rows])

    def _encode(self, values: FloatVector, scale: RoundScale) -> NDArray[np.int64]:
        return encode(values, scale.value_fraction_bits, VALUE_BITS)

    def _count_residues(self) -> int:
        """Ciphertexts that a round encrypts or re-randomises, curvature included where it can be due."""
        first = Batch(1)
        sizes = [self._batches.size(first)]
        if self._job.algorithm.name == "sqn":
            sizes.append(self._batches.curvature_size(first, draw=1))
        return 1 + sum(self._scale(size).layout.n_groups(size) + self._n_columns for size in sizes)


def _ask_alike(one: BeginRound, other: BeginRound) -> bool:
    """Whether two attempts at a round ask for the same sums: else each attempt would show another."""
    asked = [(begin.batch, begin.gradient, begin.curvature_draw) for begin in (one, other)]
    return (
        asked[0] == asked[1]
        and _are_same(one.step, other.step)
        and _are_same(one.direction, other.direction)
        and _are_same(one.evaluate_at, other.evaluate_at)
    )


def _are_same(one: FloatVector | None, other: FloatVector | None) -> bool:
    return np.array_equal([] if one is None else one, [] if other is None else other)
