"""The Paillier protocol at the coordinator: C of the paper, which has the private key and sends the steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gmpy2 import mpz

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.cipher import Decryptor
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.keys import check_ciphertexts
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
    FinishJob,
    OpenJob,
    Piece,
    Ready,
    RoundKey,
    RowsDone,
    VectorPiece,
)
from trilateral.common.protocol.phases import Phase, no_phase
from trilateral.common.protocol.scales import GRADIENT_BITS, round_scale
from trilateral.coordinator.computation import Opening
from trilateral.coordinator.paillier.opening import Check, Decrypt, PaillierOpening, direction_scale
from trilateral.coordinator.plan import Conclusion, RoundPlan, split


class PaillierOffer:
    """Offers the public key; see `computation.Offer`.

    Args:
        job: the job's settings.
        decryptor: holds the private key, which is made for this session alone.
        phase: times the decryption.
    """

    def __init__(self, job: JobConfig, decryptor: Decryptor, *, phase: Phase = no_phase) -> None:
        self._job = job
        self._decryptor = decryptor
        self._phase = phase

    def to(self, party: Role) -> OpenJob:
        """See `computation.Offer.to`."""
        return OpenJob(self._job, self._decryptor.public_key.n, party)

    def agree(self, ready: Mapping[Role, Ready]) -> "PaillierComputation":
        """See `computation.Offer.agree`."""
        if any(each.shares is not None for each in ready.values()):
            raise ProtocolError("a party is ready for the protocol on shares, but the job's protocol is paillier")
        n_train = ready[Role.HOST].n_train
        n_columns = {party: each.n_columns for party, each in ready.items()}
        return PaillierComputation(self._job, n_train, n_columns, self._check, self._decrypt)

    def _check(self, ciphertexts: Ciphertexts) -> None:
        with self._phase("check"):
            check_ciphertexts(self._decryptor.public_key, ciphertexts)

    def _decrypt(self, ciphertexts: Ciphertexts) -> list[mpz]:
        with self._phase("decrypt"):
            return self._decryptor.decrypt_all(ciphertexts)


class PaillierComputation:
    """Asks for ciphertexts and decrypts them; see `computation.Computation`.

    Args:
        job: the job's settings.
        n_train: training rows.
        n_columns: columns of each party.
        check: see `opening.Check`.
        decrypt: see `opening.Decrypt`.
    """

    unit = "ciphertexts"
    is_weighted = False
    start = None
    """See `computation.Computation.start`. Nobody but the guest knows where it starts."""

    def __init__(
        self, job: JobConfig, n_train: int, n_columns: Mapping[Role, int], check: Check, decrypt: Decrypt
    ) -> None:
        self._job = job
        self._n_train = n_train
        self._n_columns = n_columns
        self._batches = Batches.of(job, n_train)
        self._check = check
        self._decrypt = decrypt
        self._opening: PaillierOpening | None = None

    @property
    def allowed(self) -> Mapping[Role, tuple[int, int]]:
        """One ciphertext per column in each of two vectors, and one for the loss."""
        return {party: (2 * count + 1, 0) for party, count in self._n_columns.items()}

    penalty: FloatVector | None = None
    fold_sizes: Sequence[int] = ()

    @property
    def gradient_error(self) -> float:
        """See `scales.GRADIENT_BITS`."""
        return 2.0**-GRADIENT_BITS

    def is_in_range(self, point: FloatVector) -> bool:
        """Return True: only the parties know whether their values are in range, and they say so."""
        return True

    def is_measurable(self, point: FloatVector) -> bool:
        """Return False: the protocol has no step of inference."""
        return False

    def disclose(self, loss: float) -> float:
        """Return the loss as it is: the parties have always been told."""
        return loss

    def open(self, plan: RoundPlan, key: RoundKey) -> PaillierOpening:
        """See `computation.Computation.open`."""
        sizes = self._batches.size(plan.batch), self._batches.curvature_size(plan.batch, plan.curvature_draw)
        scale, curvature_scale = (round_scale(self._job, size, self._n_train) for size in sizes)
        self._opening = PaillierOpening(
            plan, self._n_columns, scale, curvature_scale, check=self._check, decrypt=self._decrypt
        )
        return self._opening

    def ask(self, plan: RoundPlan, begins: Mapping[Role, BeginRound]) -> Mapping[Role, BeginRound]:
        """Send each party its part of the step, of the direction and of the way to the point to evaluate."""
        steps = self._parts(plan.step)
        directions: Mapping[Role, FloatVector] = {}
        if plan.direction is not None:
            directions = self._parts(plan.direction * direction_scale(plan.direction))
        offsets: Mapping[Role, FloatVector] = {}
        if plan.evaluate_at is not None:
            offsets = self._parts(plan.evaluate_at)
        return {
            party: replace(
                begin,
                step=steps[party],
                direction=directions.get(party),
                curvature_draw=plan.curvature_draw,
                evaluate_at=offsets.get(party),
            )
            for party, begin in begins.items()
        }

    def prepare(self) -> bool:
        """Decrypt what has arrived of the newest attempt."""
        return self._opening is not None and self._opening.decrypt()

    def deal(self) -> Iterator[Envelope]:
        """Yield nothing: the parties need no more than the step."""
        yield from ()

    def take_rows_done(self, sender: Role, done: RowsDone) -> None:
        """Do nothing: the message only shows progress."""
        del sender, done

    def add(self, sender: Role, piece: Piece, opening: Opening | None) -> None:
        """See `computation.Computation.add`."""
        if not isinstance(piece, VectorPiece):
            raise ProtocolError(f"the {sender} sent shares of {piece.kind}, but the job's protocol is paillier")
        if isinstance(opening, PaillierOpening):
            opening.add(sender, piece)

    def finish(self, conclusion: Conclusion, finishes: Mapping[Role, FinishJob]) -> Mapping[Role, FinishJob]:
        """Send each party its part of the last step."""
        steps = self._parts(conclusion.step)
        return {party: replace(finish, step=steps[party]) for party, finish in finishes.items()}

    def _parts(self, vector: FloatVector) -> Mapping[Role, FloatVector]:
        return split(vector, self._n_columns)
