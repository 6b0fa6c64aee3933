"""What the coordinator reads in one round on ciphertexts: slots from masked plaintexts, and means from slots."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from gmpy2 import mpz

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.paillier.ciphertexts import Ciphertexts, joined
from trilateral.common.paillier.fixed_point import decode
from trilateral.common.protocol.messages import Evaluation, Kind, VectorPiece
from trilateral.common.protocol.scales import RoundScale
from trilateral.coordinator.plan import Observation, RoundPlan

LARGEST_DIRECTION = 0.25
"""Maximum of ||s_t|| as the parties receive it: |h| = |s.x| <= ||x||/4 is in range for rows up to norm 1024."""

Check = Callable[[Ciphertexts], None]
"""Raises a BadCiphertextError if a ciphertext is not valid under the job's key."""
Decrypt = Callable[[Ciphertexts], list[mpz]]
"""Decrypts checked ciphertexts to signed plaintexts."""


@dataclass
class _Vector:
    total: int
    scale: RoundScale
    n_arrived: int = 0
    slots: list[int] = field(default_factory=list)
    """Of the ciphertexts that were decrypted."""


class PaillierOpening:
    """Collects the answers to one attempt at a round, and makes the optimiser's observation from them.

    It decrypts what has arrived in one go, when everything is there or there is time: the kernel decrypts four or eight
    ciphertexts in the time of one, and the loss is only one.

    Args:
        plan: what was asked.
        n_columns: columns of each party.
        scale: how the vectors of the batch S are coded.
        curvature_scale: how those of S_H are coded; the same as `scale` if S_H = S.
        check: see `Check`.
        decrypt: see `Decrypt`.
    """

    def __init__(
        self,
        plan: RoundPlan,
        n_columns: Mapping[Role, int],
        scale: RoundScale,
        curvature_scale: RoundScale,
        *,
        check: Check,
        decrypt: Decrypt,
    ) -> None:
        self._check = check
        self._decrypt = decrypt
        self._arrived: list[tuple[_Vector, Ciphertexts]] = []
        """What is not decrypted yet."""
        self._scale = scale
        self._curvature_scale = curvature_scale
        self._direction_scale = None if plan.direction is None else direction_scale(plan.direction)
        self._gradient = plan.gradient
        self._evaluates = plan.evaluate_at is not None
        self._evaluation: Evaluation | None = None
        self._vectors = {(Role.GUEST, Kind.LOSS): _Vector(1, scale)}
        for party in PARTIES:
            if plan.gradient:
                self._vectors[party, Kind.GRADIENT] = _Vector(n_columns[party], scale)
            if plan.direction is not None:
                self._vectors[party, Kind.CURVATURE] = _Vector(n_columns[party], curvature_scale)

    @property
    def n_rows(self) -> int:
        """See `computation.Opening.n_rows`."""
        return self._scale.n_samples + (self._curvature_scale.n_samples if self._direction_scale is not None else 0)

    @property
    def evaluation(self) -> Evaluation | None:
        """The guest's evaluation on the hold-out rows; None until it arrives."""
        return self._evaluation

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for has arrived."""
        is_evaluated = self.evaluation is not None or not self._evaluates
        return is_evaluated and all(vector.n_arrived == vector.total for vector in self._vectors.values())

    def add(self, sender: Role, piece: VectorPiece) -> None:
        """Take the next ciphertexts of a vector. Ignore ciphertexts that have arrived before.

        Args:
            sender: the party that sent them.
            piece: a piece of this attempt.

        Raises:
            ProtocolError: this round does not expect them.
            BadCiphertextError: a ciphertext is not valid under the job's key.
        """
        vector = self._vectors.get((sender, piece.kind))
        if vector is None or piece.total != vector.total:
            due = 0 if vector is None else vector.total
            raise ProtocolError(f"the {sender} sent {piece.total} ciphertexts of {piece.kind}, but {due} are expected")
        if piece.offset < vector.n_arrived:
            return
        if piece.offset != vector.n_arrived or vector.n_arrived + len(piece.ciphertexts) > vector.total:
            raise ProtocolError(f"the {sender} sent ciphertexts of {piece.kind} out of order")
        self._check(piece.ciphertexts)
        vector.n_arrived += len(piece.ciphertexts)
        self._arrived.append((vector, piece.ciphertexts))

    def decrypt(self) -> bool:
        """Decrypt what has arrived, unless it is the loss alone; return False if there was nothing to do."""
        arrived, self._arrived = self._arrived, []
        if [vector.total for vector, _ in arrived] == [1] and not self.complete:
            self._arrived = arrived
            return False
        if not arrived:
            return False
        plaintexts = iter(self._decrypt(joined([ciphertexts for _, ciphertexts in arrived])))
        for vector, ciphertexts in arrived:
            vector.slots += [vector.scale.layout.read(next(plaintexts)) for _ in range(len(ciphertexts))]
        return True

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """See `computation.Opening.add_evaluation`."""
        if not self._evaluates:
            raise ProtocolError(
                f"the guest sent an evaluation for round {evaluation.key.round}, which does not ask for one"
            )
        if self._evaluation is None:
            self._evaluation = evaluation

    def observation(self) -> Observation:
        """Return the batch's loss, g and v_t: equations (3), (4) and (6), as corrected in docs/paper.md."""
        self.decrypt()
        (squares,) = self._vectors[Role.GUEST, Kind.LOSS].slots
        # 8 loss = 8 log 2 - 4 + mean d'^2, because (u - 2y)^2 = u^2 - 4 y u + 4.
        mean_square = float(decode([squares], self._scale.loss_fraction_bits)[0]) / self._scale.n_samples
        gradient = self._mean(Kind.GRADIENT, self._scale) if self._gradient else None
        curvature = None
        if self._direction_scale is not None:
            curvature = self._mean(Kind.CURVATURE, self._curvature_scale) / self._direction_scale
        holdout_loss = None if self.evaluation is None else self.evaluation.log_loss
        return Observation(math.log(2) - 0.5 + mean_square / 8, gradient, curvature, holdout_loss)

    def _mean(self, kind: Kind, scale: RoundScale) -> FloatVector:
        """Return 1/(4m) of the inner products. The 4 is that of d = d'/4 in the gradient, and of the Hessian in v."""
        slots = [slot for party in PARTIES for slot in self._vectors[party, kind].slots]
        return decode(slots, scale.product_fraction_bits) / (4 * scale.n_samples)


def direction_scale(direction: FloatVector) -> float:
    """Return the power of two that brings ||s_t|| into (1/8, 1/4], so that h keeps its precision as s shrinks."""
    norm = float(np.linalg.norm(direction))
    if norm == 0:
        return 1.0
    mantissa, exponent = math.frexp(norm)  # norm = mantissa 2^exponent, mantissa in [1/2, 1)
    return math.ldexp(LARGEST_DIRECTION, 1 - exponent if mantissa == 0.5 else -exponent)
