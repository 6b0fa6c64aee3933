"""When a training is evaluated on the hold-out rows, and when the result stops it."""

import math
from dataclasses import dataclass

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import JobConfig
from trilateral.coordinator.plan import Observation


@dataclass(frozen=True, eq=False)
class EvaluatedPoint:
    """A point that was evaluated."""

    point: FloatVector
    loss: float
    """Loss on the training rows, as the search knows it."""
    holdout_loss: float
    epochs: int
    """Length of the training that led to the point."""


class EarlyStopping:
    """Keeps the best point that was evaluated, and counts the evaluations after it.

    A point is better if its hold-out log loss is lower by more than the job's tolerance. A smaller difference is noise:
    a training in fixed-point arithmetic and the same one in floating point may differ by as much.
    """

    def __init__(self, job: JobConfig) -> None:
        self._every = job.evaluate_every
        self._patience = job.patience
        self._tolerance = job.tolerance
        self._since_best = 0
        self.best: EvaluatedPoint | None = None
        """None while nothing was evaluated."""

    def is_due(self, epoch: int) -> bool:
        """Return whether the first round of an epoch, from 1 up, evaluates the point of the earlier epochs."""
        return self._every is not None and epoch > 1 and (epoch - 1) % self._every == 0

    def record(self, probed: FloatVector | None, seen: Observation, *, loss: float, epochs: int) -> None:
        """Record what a round has shown about the hold-out rows.

        Args:
            probed: the point that the round evaluated, shape (n_columns,); None if it evaluated none.
            seen: what the round has shown.
            loss: loss of that point on the training rows, as the search knows it.
            epochs: length of the training that led to the point.
        """
        if probed is None or seen.holdout_loss is None:
            return
        least = math.inf if self.best is None else self.best.holdout_loss
        if seen.holdout_loss < least - self._tolerance:
            self.best = EvaluatedPoint(probed, loss, seen.holdout_loss, epochs)
            self._since_best = 0
        else:
            self._since_best += 1

    @property
    def is_over(self) -> bool:
        """Whether patience has run out."""
        return self._patience is not None and self._since_best >= self._patience

    @property
    def result(self) -> EvaluatedPoint | None:
        """The best point, if the job stops early by evaluations and later ones were no better; else None."""
        return self.best if self._patience is not None and self._since_best > 0 else None

    def reason(self, otherwise: str) -> str:
        """Return why the training ended, as a text for people; `otherwise` is the reason without early stopping."""
        best = self.result
        if best is None:
            return otherwise
        why = f"the hold-out loss did not fall in {self._patience} evaluations" if self.is_over else otherwise
        return f"{why}: the model is from epoch {best.epochs}, which has the lowest hold-out loss"
