"""From the Fisher information to the last steps of a training, and to what each party is told about its accuracy.

The inverse of the information at the maximum of the likelihood is the covariance of the weights; see P. McCullagh and
J. A. Nelder, Generalized Linear Models, 1989, section 4.4. Each party is told the block of its own training columns.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.messages import OwnCovariance
from trilateral.common.protocol.separation import OF_BOTH, SEPARATION, of_party, separated_by
from trilateral.common.shares.information import pack, unpack

SIGNIFICANT_DIGITS = 6
"""Digits of a covariance that leaves the coordinator."""
MIN_EIGENVALUE = 1e-7
"""With a smaller eigenvalue, the information counts as singular once its diagonal is scaled to ones."""
DEPENDENT = 1e-3
"""Eigenvalues below this size come with a warning."""
MAX_INFLATION = 10.0
"""By how much columns of one party may inflate a variance of the other's weights before they count as dependent."""
MIN_INFORMATION = 1.0
"""With less information on each training column, the labels are separated: a row whose label is in doubt gives 1/4."""
MIN_SHARE = 0.01
"""The share of a direction from which on a party's columns take part in it."""
MAX_ERROR = 1e-4
"""The largest relative error of a standard error that needs no warning."""

MAX_SHIFT = 0.1
"""The largest `NewtonStep.shift` of a step. Further away, F is another one."""
EXACT_SHIFT = 1e-5
"""Up to this `NewtonStep.shift`, standard errors at the point before the step are right to 5e-6."""

NOT_MEASURED = (
    "the standard errors were not measured: values are out of range at the result of the training, as with features"
    f" that separate the labels ({SEPARATION})"
)
NOT_CONVERGED = (
    "the training ended before it had converged, so the figures are not those of the maximum of the likelihood: raise"
    f" `epochs`, unless features separate the labels ({SEPARATION}), so that there is no maximum"
)


@dataclass(frozen=True, eq=False)
class NewtonStep:
    """A step of Newton's method."""

    step: FloatVector
    """F^-1 g, to subtract from the weights, shape (n_columns,)."""
    shift: float
    """By how much the step changes the scores of the rows: the root of its mean square, weighted by slopes."""

    @property
    def is_exact(self) -> bool:
        """Whether F at the point before the step counts as that of the point after it."""
        return self.shift <= EXACT_SHIFT


def newton_step(information: FloatVector, gradient: FloatVector) -> NewtonStep | None:
    """Return the step from weights near the maximum of the likelihood to the maximum.

    The rounds of a training see rounded gradients, so their weights are off by some thousandths of a standard error.
    The gradient here is finer. F belongs to the point before the step: the error of the step is of the order of the
    square of its length, and that of the slopes, hence of the standard errors, of the order of the length.

    Args:
        information: F, packed; see `own_covariances`.
        gradient: g, of the sum of the losses, shape (n_columns,).

    Returns:
        None if F cannot be inverted, or if the maximum is so far away that F is another one there.
    """
    F = unpack(information, len(gradient))
    inverse = _scaled_inverse(F)
    if not inverse.values[0] > MIN_EIGENVALUE:
        return None
    step: FloatVector = inverse.covariance @ gradient
    # The square of the change of a row's score, summed with its slope, is g'F^-1 g. With an intercept, the largest
    # diagonal element of F is the sum of the slopes.
    shift = math.sqrt(max(0.0, float(gradient @ step)) / float(np.diag(F).max()))
    return NewtonStep(step, shift) if shift <= MAX_SHIFT else None


def own_covariances(
    information: FloatVector | None,
    n_columns: Mapping[Role, int],
    *,
    noise: float,
    converged: bool,
    intercept: bool,
    whitened: Collection[Role],
) -> Mapping[Role, OwnCovariance]:
    """Return what each party is told.

    Args:
        information: X'(c W)X for sample weights of mean 1, the host's columns first, packed; None if it was not
            measured.
        n_columns: training columns of each party.
        noise: standard deviation of the rounding error of an element of the information.
        converged: whether the training has.
        intercept: whether the last column is an intercept.
        whitened: the parties whose columns are whitened.
    """
    warnings = [] if converged else [NOT_CONVERGED]
    nothing = np.zeros(0)
    if information is None:
        return {party: OwnCovariance(nothing, (*warnings, NOT_MEASURED)) for party in PARTIES}
    F = unpack(information, sum(n_columns.values()))
    inverse = _scaled_inverse(F)
    features = _Features.of(F, n_columns, intercept=intercept)
    found = _separation(F, features, whitened)
    warnings += found
    if not inverse.values[0] > max(MIN_EIGENVALUE, 10 * noise / float(inverse.size.min()) ** 2):
        warnings.append("the information cannot be inverted, so there are no standard errors")
        return {party: OwnCovariance(nothing, tuple(warnings), bool(found), OF_BOTH in found) for party in PARTIES}
    covariance = inverse.covariance
    # The error E of the information moves the covariance by C E C. Elements of E are independent.
    squares = np.square(covariance).sum(axis=0)
    error = float((noise * squares / np.diag(covariance)).max()) / 2
    if error > MAX_ERROR:
        warnings.append(
            f"the standard errors have a rounding error of up to {_percent(error)}: the protocol rounds the columns,"
            " and more coarsely if rows have weights"
        )
    n_host = n_columns[Role.HOST]
    blocks = {Role.HOST: covariance[:n_host, :n_host], Role.GUEST: covariance[n_host:, n_host:]}
    depends = OF_BOTH in found or features.inflation(covariance) > MAX_INFLATION
    return {
        party: OwnCovariance(_disclosed(block), tuple(warnings), bool(found), depends)
        for party, block in blocks.items()
    }


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


@dataclass(frozen=True, eq=False)
class _Features:
    """The information on the weights of the features, for an intercept that follows them."""

    information: FloatMatrix
    """Shape (n_features,) * 2."""
    n_host: int
    """Features of the host, which are the first ones."""

    @classmethod
    def of(cls, F: FloatMatrix, n_columns: Mapping[Role, int], *, intercept: bool) -> Self:
        """Take the features' part of an information. With an intercept, it is the Schur complement."""
        if not intercept:
            return cls(F, n_columns[Role.HOST])
        with_intercept = F[:-1, -1]
        total = max(float(F[-1, -1]), np.finfo(np.float64).tiny)
        return cls(F[:-1, :-1] - np.outer(with_intercept, with_intercept) / total, n_columns[Role.HOST])

    def inflation(self, covariance: FloatMatrix) -> float:
        """Return by how much columns of one party inflate a variance of the other's, at most, from the inverse of F.

        It is 1 / (1 - r^2) for the largest canonical correlation r, and so the same for both parties.
        """
        n = self.n_host
        if not 0 < n < len(self.information):
            return 1.0
        return float(np.linalg.eigvals(covariance[:n, :n] @ self.information[:n, :n]).real.max())


def _separation(F: FloatMatrix, features: _Features, whitened: Collection[Role]) -> list[str]:
    """Return a warning for each way in which the data hardly determine some combination of the weights.

    A small eigenvalue comes from columns that depend on each other, or from rows whose labels the scores decide. A
    party's whitened columns do not depend on each other.

    Args:
        F: the information.
        features: that on the features.
        whitened: the parties whose columns are whitened.
    """
    if float(np.diag(F).max()) < MIN_INFORMATION:
        return [separated_by("features")]
    if not len(features.information):
        return []
    # Whitened columns are all of one size. Others are scaled to ones on the diagonal.
    size = np.sqrt(np.maximum(np.diag(F)[: len(features.information)], np.finfo(np.float64).tiny))
    if len(whitened) == len(PARTIES):
        size = np.full_like(size, size.max())
    values, vectors = np.linalg.eigh(features.information / np.outer(size, size))
    weak = np.square(vectors[:, values < DEPENDENT])
    has_host = weak[: features.n_host].sum(axis=0) > MIN_SHARE
    has_guest = weak[features.n_host :].sum(axis=0) > MIN_SHARE
    warnings = []
    if (has_host & has_guest).any():
        warnings.append(OF_BOTH)
    for party, alone in ((Role.HOST, has_host & ~has_guest), (Role.GUEST, has_guest & ~has_host)):
        if not alone.any():
            continue
        if party in whitened:
            warnings.append(of_party(party))
        else:
            warnings.append(
                f"columns of the {party} almost depend on each other, or separate the labels ({SEPARATION}): leave out"
                " a feature, or whiten the columns"
            )
    return warnings


def _disclosed(block: FloatMatrix) -> FloatVector:
    """Return a block of the covariance as precisely as it may leave the coordinator, packed."""
    packed = pack(block)
    digits = SIGNIFICANT_DIGITS - 1
    return np.array([float(f"{each:.{digits}e}") for each in packed])


def _percent(error: float) -> str:
    return f"{100 * error:.{max(0, 1 - math.floor(math.log10(100 * error)))}f}%"
