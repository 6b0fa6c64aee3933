"""The rows of one party in one job, in the form that its state machine computes with."""

from dataclasses import dataclass

from trilateral.common.base.arrays import FloatMatrix, FloatVector


@dataclass(frozen=True, eq=False)
class TrainingBlock:
    """One party's columns. Rows are in canonical order of their IDs."""

    columns: FloatMatrix
    """X, the training columns, shape (n_train, n_columns). The mean square of every column is at most 1, to 1e-8."""
    holdout_columns: FloatMatrix
    """Shape (n_holdout, n_columns)."""
    labels: FloatVector | None
    """y in {-1, +1}, shape (n_train,); None at the host."""
    holdout_labels: FloatVector | None
    """In {-1, +1}, shape (n_holdout,); None at the host."""
    penalty: FloatMatrix
    """P with ||beta||^2 = w'P w for the coefficients beta of standardised features; shape (n_columns, n_columns)."""


@dataclass(frozen=True, eq=False)
class PartyData:
    """All data that a party brings to a job."""

    ids: list[str]
    """IDs of training and hold-out rows together, in canonical order."""
    block: TrainingBlock
