"""Models of several classes, one against the rest: from a score for each class to probabilities, and their quality.

A row has a score for each class: the log-odds of that class against all others together. The guest fits a map from the
scores of a row to probabilities that add up to 1 on its own labels, which needs no message. It uses the hold-out rows,
all with the same weight, because no process knows the scores of other rows.
"""

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from trilateral.common.base.arrays import FloatMatrix, FloatVector, Rows
from trilateral.common.config.settings import Settings
from trilateral.common.data.model.calibration import FOLDS, SAYS_NONE, Finite
from trilateral.common.protocol.evaluation import measure

ClassNumbers = NDArray[np.int64]
"""The number of each row's class, from 0 up; shape (n_rows,)."""
_SEED = 0
_MAX_STEPS, _TOLERANCE = 1000, 1e-10


class Softmax(Settings):
    """The map p_k = exp(a_k u_k + b_k) / sum over j of exp(a_j u_j + b_j) of the scores u of a row.

    Source: Guo, Pleiss, Sun and Weinberger (2017), On Calibration of Modern Neural Networks, section 4.2, "vector
    scaling".
    """

    method: Literal["softmax"] = "softmax"
    """Identifies the class in JSON."""
    slopes: Annotated[list[Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(min_length=2)]
    """The slope a of each class."""
    offsets: Annotated[list[Finite], Field(min_length=2)]
    """The offset b of each class. They add up to 0."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.slopes) != len(self.offsets):
            raise ValueError("`slopes` and `offsets` must have the same length")
        return self


class Normalised(Settings):
    """The map p_k = sigma(u_k) / sum over j of sigma(u_j) of the scores u of a row, with sigma(u) = 1 / (1 + exp(-u)).

    It is that of scikit-learn's `OneVsRestClassifier`.
    """

    method: Literal["normalised"] = "normalised"
    """Identifies the class in JSON."""
    reason: str
    """Why no map was fitted."""


AnyClassMap = Softmax | Normalised
ClassMap = Annotated[AnyClassMap, Field(discriminator="method")]
"""A map from the scores of a row to the probabilities of the classes, as a field of settings."""


class ClassMetrics(Settings):
    """How good the probabilities of the classes are on rows that the model was not trained on."""

    n_rows: int
    """Number of rows."""
    log_loss: float
    """Mean of -log of the probability of each row's class."""
    accuracy: float
    """Share of the rows whose class has the highest probability."""
    auc: list[float | None]
    """For each class, the area under the ROC curve of its score, against all other classes; None if all rows or none
    have the class."""
    confusion: list[list[int]]
    """Numbers of rows: one list for each class, with the rows of this class by the class of the highest probability."""


def class_probabilities(scores: FloatMatrix, mapped: AnyClassMap) -> FloatMatrix:
    """Convert scores to probabilities.

    Args:
        scores: the scores u of both parties together, shape (n_rows, n_classes).
        mapped: the map.

    Returns:
        Probabilities in [0, 1] that add up to 1 in each row, shape (n_rows, n_classes).
    """
    return np.asarray(np.exp(log_probabilities(scores, mapped)))


def fit_class_map(scores: FloatMatrix, classes: ClassNumbers, method: str) -> AnyClassMap:
    """Fit a map from scores to probabilities on hold-out rows.

    The loss is the log loss against Platt's targets for several classes, (n_k + 1) / (n_k + K) for the class of a row
    and 1 / (n_k + K) for each other one, where n_k rows have that class. With these there is a minimum even if the
    scores separate the classes. A negative slope would reverse the ranking, so slopes are at least 0.

    Args:
        scores: the scores u, shape (n_rows, n_classes).
        classes: the class of each row.
        method: the setting `calibration` of the label; `none` fits no map.
    """
    n_classes = scores.shape[1]
    counts = np.bincount(classes, minlength=n_classes)
    if method == "none":
        return Normalised(reason=SAYS_NONE)
    if not len(scores):
        return Normalised(reason="there are no hold-out rows")
    if counts.min() < FOLDS:
        return Normalised(reason=f"fewer than {FOLDS} hold-out rows have the rarest class")
    return _fit_softmax(scores, classes, counts)


def measure_classes(scores: FloatMatrix, classes: ClassNumbers, logs: FloatMatrix) -> ClassMetrics:
    """Compare scores and probabilities with classes.

    Args:
        scores: the scores u, shape (n_rows, n_classes), at least one row.
        classes: the class of each row.
        logs: the logarithms of the probabilities of the same rows, shape (n_rows, n_classes).
    """
    n_rows, n_classes = scores.shape
    predicted = logs.argmax(axis=1)
    confusion = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(confusion, (classes, predicted), 1)
    return ClassMetrics(
        n_rows=n_rows,
        log_loss=float(-logs[np.arange(n_rows), classes].mean()),
        accuracy=float(np.mean(predicted == classes)),
        auc=[measure(scores[:, number], one_vs_rest(classes, number)).auc for number in range(n_classes)],
        confusion=confusion.tolist(),
    )


def one_vs_rest(classes: ClassNumbers, number: int) -> FloatVector:
    """Return y = +1 in the rows of a class and -1 in all others, shape (n_rows,)."""
    return np.where(classes == number, 1.0, -1.0)


def odds_of_class(logs: FloatMatrix, number: int) -> FloatVector:
    """Return log(p / (1 - p)) of the probability p of a class, shape (n_rows,); finite where p rounds to 0 or 1.

    Args:
        logs: the logarithms of the probabilities of all classes, shape (n_rows, n_classes).
        number: of the class, from 0 up.
    """
    odds: FloatVector = logs[:, number] - np.logaddexp.reduce(np.delete(logs, number, axis=1), axis=1)
    return odds


def rows_of_classes(n_rows: int, n_classes: int, seed: int) -> list[Rows]:
    """Divide rows among the classes at random: the groups of scores of a class count only its own rows.

    Each class orders the rows in another way. If the groups of two classes counted the same rows, there would be sets
    of rows of both that differ in a single row, and the difference of their counts would show its class.

    Args:
        n_rows: number of rows.
        n_classes: number of classes.
        seed: makes the division reproducible.

    Returns:
        For each class the places of its rows, in ascending order.
    """
    order = np.random.default_rng(seed).permutation(n_rows)
    return [np.sort(order[number::n_classes]) for number in range(n_classes)]


def log_probabilities(scores: FloatMatrix, mapped: AnyClassMap) -> FloatMatrix:
    """Return the logarithms of `class_probabilities`, which stay finite where a probability rounds to 0."""
    match mapped:
        case Softmax(slopes=slopes, offsets=offsets):
            return _log_softmax(scores * slopes + offsets)
        case Normalised():
            # log sigma(u), exactly even where sigma(u) rounds to 0.
            logs = -np.logaddexp(0.0, -scores)
            return np.asarray(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True))


def _log_softmax(odds: FloatMatrix) -> FloatMatrix:
    return np.asarray(odds - np.logaddexp.reduce(odds, axis=1, keepdims=True))


def _fit_softmax(scores: FloatMatrix, classes: ClassNumbers, counts: NDArray[np.int64]) -> Softmax:
    from scipy.optimize import minimize

    n_rows, n_classes = scores.shape
    own = (counts + 1) / (counts + n_classes)
    targets = np.repeat((1 / (counts + n_classes))[classes][:, np.newaxis], n_classes, axis=1)
    targets[np.arange(n_rows), classes] = own[classes]
    centre, spread = scores.mean(axis=0), scores.std(axis=0)
    spread[spread <= 1e-12 * np.abs(scores).max(axis=0)] = np.inf  # A score without information gets the slope 0.
    x = (scores - centre) / spread

    def loss(coef: FloatVector) -> tuple[float, FloatVector]:
        logs = _log_softmax(x * coef[:n_classes] + coef[n_classes:])
        residual = np.exp(logs) - targets
        gradient = np.concatenate([(residual * x).sum(axis=0), residual.sum(axis=0)]) / n_rows
        return float(-(targets * logs).sum() / n_rows), gradient

    start = np.concatenate([np.zeros(n_classes), np.log(targets.mean(axis=0))])
    bounds = [(0.0, None)] * n_classes + [(None, None)] * n_classes
    options = {"maxiter": _MAX_STEPS, "ftol": 0.0, "gtol": _TOLERANCE}
    coef = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    slopes = coef[:n_classes] / spread
    offsets = coef[n_classes:] - slopes * centre
    return Softmax(slopes=slopes.tolist(), offsets=(offsets - offsets.mean()).tolist())


def cross_fitted(scores: FloatMatrix, classes: ClassNumbers, mapped: AnyClassMap) -> FloatMatrix:
    """Return log probabilities, each from a map that was fitted without the row; the folds are stratified by class.

    Args:
        scores: the scores u, shape (n_rows, n_classes).
        classes: the class of each row.
        mapped: the map that was fitted on all rows; it determines the method.
    """
    if isinstance(mapped, Normalised):
        return log_probabilities(scores, mapped)
    n_rows, n_classes = scores.shape
    order = np.random.default_rng(_SEED).permutation(n_rows)
    folds = np.empty(n_rows, np.int64)
    for number in range(n_classes):
        rows = order[classes[order] == number]
        folds[rows] = np.arange(len(rows)) % FOLDS
    logs = np.empty(scores.shape)
    for fold in range(FOLDS):
        inside, outside = folds == fold, folds != fold
        counts = np.bincount(classes[outside], minlength=n_classes)
        logs[inside] = log_probabilities(scores[inside], _fit_softmax(scores[outside], classes[outside], counts))
    return logs
