"""Backward elimination of a party's columns, from the weights of one training and their covariance alone.

Without a column, the weights of the others change by what the covariance says, up to terms of third order: see J. F.
Lawless and K. Singhal, Efficient Screening of Nonnormal Regression Models, Biometrics 34, 1978. So a party needs no
further training to choose among its own columns, and nobody else learns anything.

    b_K - C_KJ C_JJ^-1 b_J,        C_KK - C_KJ C_JJ^-1 C_JK

are the weights of the columns K that stay, and their covariance, without the columns J.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import ConfigError
from trilateral.common.config.settings import Settings
from trilateral.common.data.model.calibration import Finite

if TYPE_CHECKING:
    from trilateral.common.data.model.model_file import PartyModel

Criterion = Literal["p_value", "aic"]


class EliminatedColumn(Settings):
    """A column that a backward elimination leaves out, and the Wald test of its weights at this point."""

    column: str
    statistic: Finite
    """Of the test that all weights of the column are 0, given the columns that are left."""
    df: int
    """Degrees of freedom."""
    p_value: Finite
    """Probability of at least this statistic."""
    aic_change: Finite
    """What Akaike's information criterion of the model rises by without the column: `statistic` minus 2 `df`."""


@dataclass(frozen=True)
class EliminationStep:
    """A column in the order of a backward elimination, and what the criterion says about it."""

    test: EliminatedColumn
    stays: bool
    """Whether the elimination ends before this column."""


def elimination_of(model: "PartyModel", by: Criterion, alpha: float) -> list[EliminationStep]:
    """Return which of a party's columns a backward elimination leaves out, in its order.

    Args:
        model: of a job with inference.
        by: with `p_value`, columns with a p-value below alpha stay; with `aic`, those without which AIC rises.
        alpha: the level of significance.

    Raises:
        ConfigError: the model has no standard errors.
    """
    if model.inference is None or by not in model.inference.elimination:
        raise ConfigError(
            f"job {model.job.name} has no standard errors, which this selection needs: train with `inference: true`"
        )
    steps, stays = [], False
    for test in model.inference.elimination[by]:
        stays = stays or (test.p_value < alpha if by == "p_value" else test.aic_change > 0)
        steps.append(EliminationStep(test, stays))
    return steps


def eliminate(
    values: FloatVector, covariance: FloatMatrix, columns: Sequence[tuple[str, int]], by: Criterion
) -> list[EliminatedColumn]:
    """Return all columns in the order in which a backward elimination leaves them out.

    Args:
        values: weights, shape (n_terms,); further ones after those of the columns, like an intercept, always stay.
        covariance: of the weights, shape (n_terms, n_terms).
        columns: name and number of terms of each column, in the order of the terms.
        by: whether the column with the largest p-value is next, or that without which AIC is the smallest.
    """
    ends = np.cumsum([n_terms for _, n_terms in columns])
    left = {name: slice(int(end) - n_terms, int(end)) for (name, n_terms), end in zip(columns, ends, strict=True)}
    b, C = values.copy(), covariance.copy()
    variance = np.diag(covariance)
    size = np.sqrt(np.where(variance > 0, variance, 1.0))
    found = []
    while left:
        tests = [test for name, part in left.items() if (test := _test(name, b[part], C[part, part], size[part]))]
        if not tests:
            break
        worst = max(tests, key=lambda test: test.p_value if by == "p_value" else -test.aic_change)
        found.append(worst)
        part = left.pop(worst.column)
        gain = C[:, part] @ np.linalg.pinv(C[part, part], hermitian=True)
        b, C = b - gain @ b[part], C - gain @ C[part, :]
    return found


def _test(name: str, b: FloatVector, C: FloatMatrix, size: FloatVector) -> EliminatedColumn | None:
    from scipy.special import chdtrc  # Only jobs with inference need it.

    scaled = C / np.outer(size, size)
    df = int(np.linalg.matrix_rank(scaled, hermitian=True, tol=1e-9))
    if not df:
        return None
    statistic = max(0.0, float(b / size @ np.linalg.pinv(scaled, hermitian=True, rcond=1e-9) @ (b / size)))
    p_value = float(chdtrc(df, statistic))
    return EliminatedColumn(column=name, statistic=statistic, df=df, p_value=p_value, aic_change=statistic - 2 * df)
