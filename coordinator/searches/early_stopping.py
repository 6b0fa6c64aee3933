"""When a training is evaluated on the hold-out rows, and when it stops for what they show."""

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
    """On the training rows, as far as the search knows it there."""
    holdout_loss: float
    epochs: int
    """Of the training that lead to it."""


class EarlyStopping:
    """Keeps the best point that was evaluated, and counts how many evaluations ago that was.

    Better is a hold-out log loss that is lower by more than the job's tolerance: less is noise, in which a training in
    fixed-point arithmetic and the same one in floating point may differ.
    """

    def __init__(self, job: JobConfig) -> None:
        self._every = job.evaluate_every
        self._patience = job.patience
        self._tolerance = job.tolerance
        self._since_best = 0
        self.best: EvaluatedPoint | None = None
        """None while nothing was evaluated."""

    def is_due(self, epoch: int) -> bool:
        """Whether the first round of an epoch, from 1 up, evaluates the point that those before it have reached."""
        return self._every is not None and epoch > 1 and (epoch - 1) % self._every == 0

    def take(self, probed: FloatVector | None, seen: Observation, *, loss: float, epochs: int) -> None:
        """Take what a round has shown of the point that it was to evaluate; nothing if that was none."""
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
        """The best point, if the job goes by evaluations and those after it were no better."""
        return self.best if self._patience is not None and self._since_best > 0 else None

    def reason(self, otherwise: str) -> str:
        """Why training ended, for people, where it would have ended for the reason `otherwise`."""
        best = self.result
        if best is None:
            return otherwise
        why = f"the hold-out loss did not fall in {self._patience} evaluations" if self.is_over else otherwise
        return f"{why}: the model is that of epoch {best.epochs}, whose hold-out loss is the least"
