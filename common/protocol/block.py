"""The rows of one party in one job, in the form that its state machine computes with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatRows, FloatVector
from trilateral.common.protocol.row_roles import RoleVector


@dataclass(frozen=True, eq=False, repr=False)
class TrainingBlock:
    """One party's columns. Rows are in canonical order of their IDs."""

    columns: FloatRows
    """X, the training columns, shape (n_train, n_columns). The mean square of every column is at most 1, to 1e-8. Like
    the hold-out columns they may lie on disk, so read them by blocks of rows."""
    holdout_columns: FloatRows
    """Shape (n_holdout, n_columns)."""
    labels: FloatVector | None
    """y in {-1, +1}, or the number of the class in a job with classes, shape (n_train,); None at the host."""
    holdout_labels: FloatVector | None
    """As `labels`, shape (n_holdout,); None at the host."""
    penalty: FloatMatrix
    """P with ||beta||^2 = w'P w for the coefficients beta of standardised features; shape (n_columns, n_columns)."""
    sample_weights: FloatVector | None = None
    """c, at least 0, multiples of 2^-weight_bits, shape (n_train,). None if all rows count alike, and at the host. The
    root mean square is at most `protocol.sample_weights.MAX_RMS`."""
    weight_bits: int | None = None
    """f_c, the fraction bits of the weights; None without weights."""
    test_columns: FloatRows | None = None
    """Of the further evaluation sets, which are scored at the end only; shape (n_test, n_columns), one set after the
    other. None if the hold-out rows are the only set."""
    test_labels: FloatVector | None = None
    """In {-1, +1}, shape (n_test,); None at the host, and without further sets."""

    n_classes: int | None = None
    """The number of classes; None if the label has two values."""
    folds: RoleVector | None = None
    """The fold of each training row, from 0 up, if a party decides it; shape (n_train,)."""

    def one_vs_rest(self) -> "Sequence[TrainingBlock]":
        """Return a block for each model of the job: this one, or one for each class, which is +1 and all others -1."""
        if self.n_classes is None:
            return [self]
        if self.labels is None or self.holdout_labels is None:
            return [replace(self, n_classes=None)] * self.n_classes
        return [
            replace(
                self,
                labels=np.where(self.labels == number, 1.0, -1.0),
                holdout_labels=np.where(self.holdout_labels == number, 1.0, -1.0),
                n_classes=None,
            )
            for number in range(self.n_classes)
        ]

    @property
    def n_test(self) -> int:
        """Rows of the further evaluation sets."""
        return 0 if self.test_columns is None else len(self.test_columns)

    @property
    def n_scored(self) -> int:
        """Rows that are scored at the end: hold-out rows and those of the further sets."""
        return len(self.holdout_columns) + self.n_test

    @property
    def total_weight(self) -> float:
        """Sum of the weights, which is exact; 0 without weights."""
        return 0.0 if self.sample_weights is None else float(self.sample_weights.sum())

    def without_columns(self) -> Self:
        """Return the block for code that needs its sizes only: its training columns are 0 and take no memory."""
        return replace(self, columns=np.broadcast_to(np.float64(0), self.columns.shape))


@dataclass(frozen=True, eq=False, repr=False)
class PartyData:
    """All data that a party brings to a job."""

    n_rows: int
    """Training and hold-out rows together."""
    list_digest: bytes
    """The digest of the IDs of all rows in canonical order, which is all that the proof needs of them."""
    block: TrainingBlock
