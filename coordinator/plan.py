"""What a training asks for in the next round, what the round answers, and how a training ends.

Vectors are float64 of shape (n_columns,): the columns of both parties, the host's first.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import ComparedPenalty


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """One round: move to w_k = w_{k-1} - step, then answer with an `Observation` at w_k."""

    round: int
    """From 1 up."""
    step: FloatVector
    """The vector to subtract before the round's work; zeros in the first round."""
    point: FloatVector
    """w_k itself: minus the sum of all steps so far. Under `paillier`, it is relative to the guest's secret start."""
    batch: Batch
    gradient: bool
    """False asks for the loss alone."""
    direction: FloatVector | None
    """s_t, not scaled, in rounds that measure curvature; else None."""
    curvature_draw: int
    """Which draw of S_H, from 1 up; 0 is S_H = S."""
    note: str | None
    """Public text for the log and the progress line, after an unusual event."""
    reached: float | None = None
    """Loss of the point that the training has reached, if it is known and the point is not the previous round's w_k."""
    evaluate_at: FloatVector | None = None
    """w_e - w_k, if the hold-out rows are to be evaluated at w_e; else None."""
    information: bool = False
    """Whether the round asks for the Fisher information and a finer gradient at w_k, and for nothing else."""
    is_last: bool = False
    """Whether the search is expected to end after the round. Nothing depends on it but what is prepared ahead."""


@dataclass(frozen=True, eq=False)
class Observation:
    """What a round shows at w_k. Loss, gradient and curvature include the L2 penalty.

    With folds or an L1 penalty they do not: `optimisers.proximal` adds the penalty itself.
    """

    loss: float
    gradient: FloatVector | None = None
    """Of the mean loss. With `information`, of the sum of the losses of the training rows, for sample weights of mean
    1."""
    curvature: FloatVector | None = None
    """v_t, the Hessian of the curvature batch times the plan's direction."""
    holdout_loss: float | None = None
    """Log loss of the hold-out rows at w_e."""
    information: FloatVector | None = None
    """X'(c W)X over the training rows at w_k, for sample weights of mean 1: the elements on and above the diagonal, row
    by row."""
    auc: float | None = None
    """AUC of the rows of a fold, with `choose: auc`."""

    @property
    def is_finite(self) -> bool:
        """Whether all parts are finite. A training treats anything else as divergence."""
        parts = (self.loss, self.gradient, self.curvature, self.holdout_loss, self.information)
        return all(bool(np.isfinite(part).all()) for part in parts if part is not None)


@dataclass(frozen=True, eq=False)
class Conclusion:
    """The training is over: a last step leads to its result."""

    round: int
    """One after the last."""
    step: FloatVector
    point: FloatVector
    """The result, as `RoundPlan.point`; of several models, one after the other, without a step."""
    loss: float
    """Loss and penalty of the result on all training rows."""
    epochs: int
    converged: bool
    """False if the training reached its maximum of epochs first."""
    reason: str
    compared: Sequence[ComparedPenalty] = ()
    """The penalties of a cross-validation, the strongest first."""
    information: FloatVector | None = None
    """See `Observation.information`; None if it was not asked for, or could not be measured."""


@dataclass(frozen=True)
class GivenUp:
    """The training has no result. The reason is public and says what to change."""

    reason: str


def split(vector: FloatVector, n_columns: Mapping[Role, int]) -> Mapping[Role, FloatVector]:
    """Split a joint vector by party: the host's columns come first."""
    n_host = n_columns[Role.HOST]
    return {Role.HOST: vector[:n_host], Role.GUEST: vector[n_host:]}


# --- inside the coordinator: a search names points, `Training` turns them into steps


@dataclass(frozen=True, eq=False)
class Probe:
    """A point, and what a search asks for there."""

    point: FloatVector
    batch: Batch
    gradient: bool = True
    direction: FloatVector | None = None
    note: str | None = None
    reached: float | None = None
    evaluate: FloatVector | None = None
    """w_e, a point to evaluate on the hold-out rows."""
    information: bool = False
    is_last: bool = False
    """See `RoundPlan.is_last`."""

    @property
    def points(self) -> list[FloatVector]:
        """The points at which the parties compute."""
        return [self.point] if self.evaluate is None else [self.point, self.evaluate]


@dataclass(frozen=True, eq=False)
class Found:
    """A search's result; the fields are those of `Conclusion`."""

    point: FloatVector
    loss: float
    epochs: int
    converged: bool
    reason: str
    compared: Sequence[ComparedPenalty] = ()


Search = Generator[Probe, Observation | None, Found | GivenUp]
"""Yields probes and receives their observations; None if a value was out of range, which makes the round void."""
