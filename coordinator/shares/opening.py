"""What the coordinator reads in one round on shares: sums over all rows of a batch, and nothing about one row.

Each party masks its share of a sum by the stream that only the parties have, and drops its low bits. The coordinator
adds both and its own share, of the terms that it alone can compute. What it reads is the sum, rounded so coarsely that
the rounding errors of single rows, which depend on masks that the coordinator knows, are lost in it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trilateral.common.base.arrays import ElementVector, FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.messages import ElementPiece, Evaluation, Kind, RoundKey
from trilateral.common.protocol.shares.rows import Selection
from trilateral.common.shares.format import Format
from trilateral.common.shares.ring import decode, join_shares
from trilateral.coordinator.plan import Observation, RoundPlan
from trilateral.coordinator.shares.arriving import ArrivingVector
from trilateral.coordinator.shares.dealing import Deal, Dealing
from trilateral.coordinator.shares.products import LabelProducts

_DISCLOSED_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class Objective:
    """What the coordinator makes of the sums: means, and the penalty that only it can compute, since it knows w."""

    curvature: FloatVector
    """The diagonal of lambda P, shape (n_columns,)."""
    weight_of_a_row: float
    """Mean sample weight of the training rows; 1 without sample weights."""

    def loss(self, total: float, n_rows: int, point: FloatVector) -> float:
        """Return the mean loss of some training rows and the penalty, at a point."""
        return total / (self.weight_of_a_row * n_rows) + float(point @ (self.curvature * point)) / 2

    def gradient(self, total: FloatVector, n_rows: int, point: FloatVector) -> FloatVector:
        """Return its gradient, shape (n_columns,)."""
        return total / (self.weight_of_a_row * n_rows) + self.curvature * point


class SharesOpening:
    """Collects both parties' sums of one attempt, and makes the optimiser's observation from them.

    Args:
        fmt: the job's format.
        plan: what was asked.
        key: the attempt.
        rows: the training rows of the attempt.
        n_padded: all training rows of the job, padding included. The bits that a sum of any batch drops cover them,
            since a whitened column may have one value of sqrt(n_train).
        deal: what is dealt for the attempt.
        dealing: learns that a party needs no more.
        products: the label products of the session.
        objective: see `Objective`.
        awaits_auc: whether the guest reports the AUC of a fold.
    """

    def __init__(
        self,
        fmt: Format,
        plan: RoundPlan,
        key: RoundKey,
        *,
        rows: Selection,
        n_padded: int,
        deal: Deal,
        dealing: Dealing,
        products: LabelProducts,
        objective: Objective,
        awaits_auc: bool = False,
    ) -> None:
        self._fmt = fmt
        self._plan = plan
        self._key = key
        self._rows = rows
        self._n_padded = n_padded
        self._deal = deal
        self._dealing = dealing
        self._products = products
        self._objective = objective
        self._awaits_auc = awaits_auc
        self._auc: float | None = None
        self._holdout_point = None if plan.evaluate_at is None else plan.point + plan.evaluate_at
        self._sums = {party: ArrivingVector(party, "sums", self._n_sums) for party in PARTIES}
        self._evaluation: Evaluation | None = None

    @property
    def n_rows(self) -> int:
        """See `computation.Opening.n_rows`."""
        return self._deal.n_rows

    @property
    def evaluation(self) -> Evaluation | None:
        """The log loss of the hold-out rows, once `observation` has been read; there is no AUC during a training."""
        return self._evaluation

    @property
    def complete(self) -> bool:
        """Whether both parties have sent their sums, and the guest the AUC of a fold."""
        is_measured = not self._awaits_auc or self._auc is not None
        return is_measured and all(sums.is_complete for sums in self._sums.values())

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """See `computation.Opening.add_evaluation`: the guest reports the AUC of a fold, and no loss."""
        if not self._awaits_auc or evaluation.auc is None or not 0 <= evaluation.auc <= 1:
            raise ProtocolError("the guest sent an evaluation that this round does not ask for")
        self._auc = evaluation.auc

    def add(self, sender: Role, piece: ElementPiece) -> None:
        """Take a party's sums. Ignore them if they have arrived before.

        Raises:
            ProtocolError: they are not what was asked for, or come too early.
        """
        if piece.kind is not Kind.SUMS:
            raise ProtocolError(f"the {sender} sent {piece.kind}, but {Kind.SUMS} are expected")
        if not self._products.is_complete(sender):
            raise ProtocolError(f"the {sender} sent its sums before its products with the labels")
        self._dealing.take_all_done(sender)
        self._sums[sender].add(piece)

    def observation(self) -> Observation:
        """Return the mean loss of the rows, its gradient, and the mean loss of the hold-out rows, as asked."""
        fmt, point, n_rows = self._fmt, self._plan.point, self._rows.n_real
        gradient = None
        if self._plan.gradient:
            joined = self._join(0, self._n_gradient, self._own_gradient(), fmt.gradient_drop(self._n_padded))
            gradient = self._objective.gradient(decode(joined, fmt.gradient_bits), n_rows, point)
        total = self._objective.weight_of_a_row * n_rows * math.log(2)
        if needs_scores(self._plan):
            own = self._deal.sums.loss + self._linear(point, self._rows.numbers)
            total = self._loss(fmt, self._n_gradient, own, self._n_padded)
        holdout_loss = None
        if self._holdout_point is not None and self._deal.holdout is not None:
            own, rows = self._linear(self._holdout_point, self._products.holdout), self._deal.holdout
            holdout_loss = self._loss(fmt.holdout, self._n_sums - 1, own, rows.n_rows)
            holdout_loss /= rows.n_real
            self._evaluation = Evaluation(self._key, disclosed_loss(holdout_loss), None)
        return Observation(
            self._objective.loss(total, n_rows, point), gradient, holdout_loss=holdout_loss, auc=self._auc
        )

    @property
    def _n_gradient(self) -> int:
        return len(self._plan.point) if self._plan.gradient else 0

    @property
    def _n_sums(self) -> int:
        return self._n_gradient + needs_scores(self._plan) + (self._holdout_point is not None)

    def _own_gradient(self) -> ElementVector:
        """The coordinator's share: U'e, of what each party has opened to the other.

        At w = 0 it is that of the label products. There d = q / 2 exactly, so the gradient is h / 2. The shift gives h
        the fraction bits that every gradient has.
        """
        if needs_scores(self._plan):
            return np.concatenate([self._deal.sums.host, self._deal.sums.guest])
        return self._products.own(self._rows.numbers) << np.uint64(self._fmt.f_d - 1)

    def _linear(self, point: FloatVector, numbers: Sequence[int]) -> ElementVector:
        """The coordinator's share of the linear part of a loss: w.G / 2. The parties know the mask in G, and not w."""
        weights = self._fmt.encode_loss_weights(point)
        total: ElementVector = (weights * self._products.masked(numbers)).sum(keepdims=True, dtype=np.uint64)
        return total

    def _loss(self, fmt: Format, at: int, own: ElementVector, n_rows: int) -> float:
        """Return the sum of the losses of some rows, which is element `at` of the sums."""
        joined = self._join(at, 1, own, fmt.loss_drop(n_rows))
        return float(decode(joined, fmt.loss_bits)[0]) * fmt.loss_unit

    def _join(self, at: int, n: int, own: ElementVector, drop: int) -> ElementVector:
        host, guest = (self._sums[party].elements[at : at + n] for party in PARTIES)
        return join_shares(host, guest, own, drop)


def needs_scores(plan: RoundPlan) -> bool:
    """Return whether a round needs the scores of its training rows.

    It does not for a gradient at w = 0. There each sample has the loss log 2.
    """
    return bool(plan.point.any()) or not plan.gradient


def disclosed_loss(loss: float) -> float:
    """Return a loss that may leave the coordinator.

    Losses are functions of the labels, and the fewer digits they have, the less they say. More than 6 decimals would
    be noise; see `Format.loss_drop`.
    """
    return round(loss, _DISCLOSED_DECIMALS)
