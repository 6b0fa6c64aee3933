"""From the Fisher information to the last steps of a training, and to what each party is told about its accuracy.

The inverse of the information at the maximum of the likelihood is the covariance of the weights; see P. McCullagh and
J. A. Nelder, Generalized Linear Models, 1989, section 4.4. Each party is told the block of its own training columns.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.messages import OwnCovariance
from trilateral.common.shares.information import pack, unpack

SIGNIFICANT_DIGITS = 6
"""Digits of a covariance that leaves the coordinator."""
MIN_EIGENVALUE = 1e-7
"""With a smaller eigenvalue, the information counts as singular once its diagonal is scaled to ones."""
DEPENDENT = 1e-3
"""Eigenvalues below this size come with a warning."""
MIN_SHARE = 0.01
"""The share of a direction from which on a party's columns take part in it."""
MAX_ERROR = 1e-4
"""The largest relative error of a standard error that needs no warning."""

MAX_SHIFT = 0.1
"""The largest `NewtonStep.shift` of a step that is taken. Further away, F is another one."""
EXACT_SHIFT = 1e-5
"""Up to this `NewtonStep.shift`, no further step follows."""

NOT_MEASURED = "the standard errors were not measured: values are out of range at the result of the training"
NOT_CONVERGED = (
    "the training ended before it had converged, so the figures are not those of the maximum of the likelihood: raise"
    " `epochs`"
)
NOT_EXACT = (
    "the steps after the training did not reach the maximum of the likelihood, so weights and standard errors are not"
    " exact: set a smaller `tolerance`, whiten the columns, or leave out features that almost separate the labels"
)
SEPARATED = (
    "some combination of features separates the labels almost completely (quasi-complete separation): its weights have"
    " no maximum of the likelihood; leave the feature out, merge its categories, or set `l2` and leave out `inference`"
)


@dataclass(frozen=True, eq=False)
class NewtonStep:
    """A step of Newton's method."""

    step: FloatVector
    """F^-1 g, to subtract from the weights, shape (n_columns,)."""
    shift: float
    """By how much the step changes the scores of the rows: the root of its mean square, weighted by slopes."""

    @property
    def is_near(self) -> bool:
        """Whether the step may be taken."""
        return self.shift <= MAX_SHIFT

    @property
    def is_exact(self) -> bool:
        """Whether F at the point before the step counts as that of the point after it."""
        return self.shift <= EXACT_SHIFT

    @property
    def error(self) -> float:
        """Relative error of standard errors at the point before the step, if it changes the scores of all rows alike.

        The slope of a row whose score changes by a small d changes by at most d, as a part of itself, and a standard
        error by half of that. In a few rows, d can be larger than the shift.
        """
        return self.shift / 2


def newton_step(information: FloatVector, gradient: FloatVector) -> NewtonStep | None:
    """Return the step from weights near the maximum of the likelihood to the maximum.

    The rounds of a training see rounded gradients, so their weights are off by some thousandths of a standard error.
    The gradient here is finer. F belongs to the point before the step: the error of the step is of the order of the
    square of its length, and that of the slopes, hence of the standard errors, of the order of the length.

    Args:
        information: F, packed; see `own_covariances`.
        gradient: g, of the sum of the losses, shape (n_columns,).

    Returns:
        None if F cannot be inverted.
    """
    F = unpack(information, len(gradient))
    inverse = _scaled_inverse(F)
    if not inverse.values[0] > MIN_EIGENVALUE:
        return None
    step: FloatVector = inverse.covariance @ gradient
    # The square of the change of a row's score, summed with its slope, is g'F^-1 g. With an intercept, the largest
    # diagonal element of F is the sum of the slopes.
    shift = math.sqrt(max(0.0, float(gradient @ step)) / float(np.diag(F).max()))
    return NewtonStep(step, shift)


def own_covariances(
    information: FloatVector | None,
    n_columns: Mapping[Role, int],
    *,
    noise: float,
    converged: bool,
    error: float = 0.0,
) -> Mapping[Role, OwnCovariance]:
    """Return what each party is told.

    Args:
        information: X'(c W)X for sample weights of mean 1, the host's columns first, packed; None if it was not
            measured.
        n_columns: training columns of each party.
        noise: standard deviation of the rounding error of an element of the information.
        converged: whether the training has.
        error: relative error of standard errors, other than that of rounding; see `NewtonStep.error`.
    """
    warnings = [] if converged else [NOT_CONVERGED]
    nothing = np.zeros(0)
    if information is None:
        return {party: OwnCovariance(nothing, (*warnings, NOT_MEASURED)) for party in PARTIES}
    F = unpack(information, sum(n_columns.values()))
    inverse = _scaled_inverse(F)
    warnings += _weak_directions(inverse.values, inverse.vectors, n_columns)
    if not inverse.values[0] > max(MIN_EIGENVALUE, 10 * noise / float(inverse.size.min()) ** 2):
        warnings.append("the information cannot be inverted, so there are no standard errors")
        return {party: OwnCovariance(nothing, tuple(warnings)) for party in PARTIES}
    if converged and error > MAX_ERROR:
        warnings.append(NOT_EXACT)
    covariance = inverse.covariance
    # The error E of the information moves the covariance by C E C. Elements of E are independent.
    squares = np.square(covariance).sum(axis=0)
    rounding = float((noise * squares / np.diag(covariance)).max()) / 2
    if rounding > MAX_ERROR:
        warnings.append(
            f"the standard errors have a rounding error of up to {_percent(rounding)}: the protocol rounds the columns,"
            " and more coarsely if rows have weights"
        )
    n_host = n_columns[Role.HOST]
    blocks = {Role.HOST: covariance[:n_host, :n_host], Role.GUEST: covariance[n_host:, n_host:]}
    return {party: OwnCovariance(_disclosed(block), tuple(warnings)) for party, block in blocks.items()}


@dataclass(frozen=True, eq=False)
class _Inverse:
    """The eigenvalues of an information, scaled to ones on its diagonal: small columns count as any others."""

    size: FloatVector
    """Root of the diagonal, shape (n_columns,)."""
    values: FloatVector
    vectors: FloatMatrix

    @property
    def covariance(self) -> FloatMatrix:
        """The inverse of the information."""
        directions = self.vectors / self.size[:, np.newaxis]
        return np.asarray((directions / self.values) @ directions.T, np.float64)


def _scaled_inverse(F: FloatMatrix) -> _Inverse:
    size = np.sqrt(np.maximum(np.diag(F), np.finfo(np.float64).tiny))
    values, vectors = np.linalg.eigh(F / np.outer(size, size))
    return _Inverse(size, values, vectors)


def _weak_directions(values: FloatVector, vectors: FloatMatrix, n_columns: Mapping[Role, int]) -> list[str]:
    """Return a warning for each way in which the data hardly determine some combination of the weights.

    A party's training columns are whitened. So a small eigenvalue comes from columns of both parties that depend on
    each other, or from rows that all have scores far from 0.

    Args:
        values: eigenvalues of the information, scaled to ones on its diagonal.
        vectors: its eigenvectors.
        n_columns: training columns of each party.
    """
    weak = vectors[:, values < DEPENDENT]
    if not weak.shape[1]:
        return []
    n_host = n_columns[Role.HOST]
    has_host = np.square(weak[:n_host]).sum(axis=0) > MIN_SHARE
    has_guest = np.square(weak[n_host:]).sum(axis=0) > MIN_SHARE
    warnings = []
    if (has_host & has_guest).any():
        warnings.append(
            "columns of the host and of the guest almost depend on each other (collinearity): leave out a feature that"
            " both have"
        )
    for party, alone in ((Role.HOST, has_host & ~has_guest), (Role.GUEST, has_guest & ~has_host)):
        if alone.any():
            warnings.append(f"{SEPARATED} (features of the {party})")
    return warnings


def _disclosed(block: FloatMatrix) -> FloatVector:
    """Return a block of the covariance as precisely as it may leave the coordinator, packed."""
    packed = pack(block)
    digits = SIGNIFICANT_DIGITS - 1
    return np.array([float(f"{each:.{digits}e}") for each in packed])


def _percent(error: float) -> str:
    return f"{100 * error:.{max(0, 1 - math.floor(math.log10(100 * error)))}f}%"
