"""A party's share of one job: its rows split, its features made into training columns."""

from dataclasses import dataclass

from common.arrays import FloatMatrix
from common.config.dataset import DatasetConfig, PreprocessingConfig
from common.config.job import JobConfig
from common.data.preprocessing import Preprocessing
from common.data.split import holdout_split
from common.data.table import PartyTable, read_table
from common.errors import ConfigError, DataError

ROWS_PER_COLUMN = 2
"""Training needs at least this many rows for each column: with fewer, sums over the rows
would give single rows away, and the fit would be of noise."""


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


def load_party_data(dataset: DatasetConfig, job: JobConfig, *, labelled: bool) -> PartyData:
    """Read a party's table and make its training block; `labelled` at the guest.

    Raises:
        ConfigError: a guest's dataset without a label, or a host's with one.
        DataError: the table cannot be used, or is too small for the job.
    """
    if labelled and dataset.label is None:
        raise ConfigError(f"dataset {job.dataset!r}: the guest needs the labels: set `label`")
    if not labelled and dataset.label is not None:
        raise ConfigError(f"dataset {job.dataset!r}: the host has no labels: leave `label` out, and exclude its column")
    table = read_table(dataset)
    return PartyData(table.ids, make_block(table, dataset.preprocessing, job))


def make_block(table: PartyTable, config: PreprocessingConfig, job: JobConfig) -> TrainingBlock:
    """Split a table's rows and turn its features into training columns.

    Only the guest, whose table has labels, adds the intercept, and only if the job has one.

    Raises:
        DataError: the table is too small for the job, or a feature cannot be used.
    """
    train, holdout = holdout_split(len(table.ids), job.holdout, job.seed)
    intercept = table.labels is not None and job.intercept
    _check_size(len(train), table.features.shape[1] + intercept, job)

    preprocessing = Preprocessing.fit(table.features.iloc[train], config, intercept, job.l2)
    columns = preprocessing.transform(table.features)
    return TrainingBlock(
        columns=columns[train],
        holdout_columns=columns[holdout],
        labels=None if table.labels is None else table.labels[train],
        holdout_labels=None if table.labels is None else table.labels[holdout],
        penalty=preprocessing.penalty,
        preprocessing=preprocessing,
    )


def _check_size(n_train: int, n_columns: int, job: JobConfig) -> None:
    needs = [(f"training on {n_columns} columns", ROWS_PER_COLUMN * n_columns, "exclude columns or lower `holdout`")]
    if job.batch != "all":
        needs.append((f"a batch of {job.batch}", job.batch, "lower `batch` or `holdout`"))
    if (size := job.curvature_batch) is not None:
        needs.append((f"a curvature batch of {size}", size, "lower `curvature_batch` or `holdout`"))
    for what, n_needed, way_out in needs:
        if n_train < n_needed:
            raise DataError(f"{what} needs at least {n_needed} training rows, and there are {n_train}: {way_out}")
