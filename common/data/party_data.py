"""A party's share of one job: its rows split, its features made into training columns."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trilateral.common.base.arrays import FloatMatrix
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.config.dataset import DatasetConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.tables.table import PartyTable, read_table
from trilateral.common.protocol.batches import holdout_split

MIN_ROWS_PER_FEATURE = 2
"""With fewer rows, a model fits noise. The party's policy asks for far more: see `jobs.policy`."""


@dataclass(frozen=True, eq=False)
class TrainingBlock:
    """What a party's state machine computes with. Rows are in canonical order of their IDs."""

    columns: FloatMatrix
    """Shape (n_train, n_columns); the mean square of every column is at most 1 (to 1e-9)."""
    holdout_columns: FloatMatrix
    """Shape (n_holdout, n_columns)."""
    labels: FloatMatrix | None
    """-1 or +1, shape (n_train,); None at the host."""
    holdout_labels: FloatMatrix | None
    penalty: FloatMatrix
    """P, shape (n_columns, n_columns): ||beta||^2 = w' P w, see `Preprocessing`."""
    preprocessing: Preprocessing


@dataclass(frozen=True, eq=False)
class PartyData:
    """All that a party brings to a job."""

    ids: list[str]
    """Of training and hold-out rows together, in canonical order."""
    block: TrainingBlock


CheckSizes = Callable[[int, int], None]
"""Is told the counts of training rows and of features, each category and missing indicator counted as one, and raises
if it minds."""


def _accept(n_train: int, n_features: int) -> None:
    """Mind nothing."""


def load_party_data(
    dataset: DatasetConfig, job: JobConfig, *, labelled: bool, check_sizes: CheckSizes = _accept
) -> PartyData:
    """Read a party's table and make its training block; `labelled` at the guest.

    Raises:
        ConfigError: a guest's dataset without a label, or a host's with one.
        DataError: the table cannot be used, or is too small for the job.
    """
    table = read_party_table(dataset, job, labelled=labelled)
    return make_party_data(table, dataset, job, check_sizes)


def read_party_table(dataset: DatasetConfig, job: JobConfig, *, labelled: bool) -> PartyTable:
    """Read a party's table; `labelled` at the guest.

    Raises:
        ConfigError: a guest's dataset without a label, or a host's with one.
        DataError: the table cannot be used.
    """
    if labelled and dataset.label is None:
        raise ConfigError(f"dataset {job.dataset!r}: the guest needs the labels: set `label`")
    if not labelled and dataset.label is not None:
        raise ConfigError(f"dataset {job.dataset!r}: the host has no labels: leave `label` out, and exclude its column")
    return read_table(dataset)


def make_party_data(
    table: PartyTable, dataset: DatasetConfig, job: JobConfig, check_sizes: CheckSizes = _accept
) -> PartyData:
    """Make what a party brings to a job of its table; see `make_block`."""
    return PartyData(table.ids, make_block(table, dataset.preprocessing, job, check_sizes))


def make_block(
    table: PartyTable, config: PreprocessingConfig, job: JobConfig, check_sizes: CheckSizes = _accept
) -> TrainingBlock:
    """Split a table's rows and turn its features into training columns.

    Only the guest, whose table has labels, adds the intercept, and only if the job has one.

    Raises:
        DataError: the table is too small for the job, or a feature cannot be used.
    """
    train, holdout = holdout_split(len(table.ids), job.holdout, job.seed)
    intercept = table.labels is not None and job.intercept
    _check_sizes(len(train), table.features.shape[1], job)
    preprocessing = Preprocessing.fit(table.features.iloc[train], config, intercept, job.l2)
    # A gradient has as many equations for the labels as there are terms.
    n_features = len(preprocessing.terms)
    _check_sizes(len(train), n_features, job)
    check_sizes(len(train), n_features)
    columns = preprocessing.transform(table.features.iloc[train])
    with np.errstate(over="ignore"):  # What overflows is found below.
        holdout_columns = preprocessing.transform(table.features.iloc[holdout])
    if not np.isfinite(holdout_columns).all():
        raise DataError("a hold-out row has a value beyond all training rows that cannot be scaled: set `clip`")
    return TrainingBlock(
        columns=columns,
        holdout_columns=holdout_columns,
        labels=None if table.labels is None else table.labels[train],
        holdout_labels=None if table.labels is None else table.labels[holdout],
        penalty=preprocessing.penalty,
        preprocessing=preprocessing,
    )


def _check_sizes(n_train: int, n_features: int, job: JobConfig) -> None:
    sizes = [("a batch", n_train if job.batch == "all" else job.batch, "batch")]
    if job.curvature_batch is not None:
        sizes.append(("a curvature batch", job.curvature_batch, "curvature_batch"))
    needed = MIN_ROWS_PER_FEATURE * n_features
    for what, size, key in sizes:
        if size > n_train:
            raise DataError(
                f"{what} of {size} needs at least as many training rows, and there are {n_train}:"
                f" lower `{key}` or `holdout`"
            )
        if size < needed:
            raise DataError(
                f"{what} of {size} rows is too small for {n_features} features: {needed} is the least;"
                f" raise `{key}`, or exclude features"
            )
