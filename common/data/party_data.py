"""From a party's table to what it brings to a job: rows split, features made into training columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trilateral.common.base.arrays import FloatRows, FloatVector, Rows
from trilateral.common.base.errors import ConfigError, Counted, DataError
from trilateral.common.base.heap import trim_heap
from trilateral.common.base.progress import Stage, report_progress
from trilateral.common.config.dataset import ClassWeight, DatasetConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.distributions import ColumnDistribution, fit_distributions
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.bins import BinnedColumn
from trilateral.common.data.preprocessing.fit import N_PASSES
from trilateral.common.data.tables.table import PartyTable, read_table
from trilateral.common.protocol.batches import holdout_split
from trilateral.common.protocol.block import PartyData, TrainingBlock
from trilateral.common.protocol.row_roles import EVALUATION_SETS, RoleVector, RowRole, rows_of
from trilateral.common.protocol.sample_weights import SampleWeights
from trilateral.common.scratch.arrays import IN_MEMORY, Scratch

MIN_ROWS_PER_FEATURE = 2
"""With fewer rows, a model fits noise. The party's policy asks for far more: see `jobs.policy`."""
MIN_TRAIN_OF_LABEL, MIN_HOLDOUT_OF_LABEL = 2, 1
"""Rows of each label that a training needs. A model fits a single row of a label exactly, whatever its features are;
AUC is defined from one hold-out row of each label on."""
HOLDOUT = "holdout"
"""The name of the evaluation set that the seed draws."""
FEW_OF_LABEL = 10
"""With fewer training rows of a label, each of them changes the model much."""


@dataclass(frozen=True, eq=False)
class PreparedData(PartyData):
    """What a party brings to a job, and the steps that made its training columns."""

    preprocessing: Preprocessing
    """Fitted on the training rows."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Columns of the table that are not used although no setting excludes them: the reason by name of the column."""
    missing: Sequence[str] | None = None
    """The texts that meant a missing category; None if the file marked missing values itself."""
    sets: Mapping[str, int] = field(default_factory=dict)
    """How many rows each evaluation set has, in their order: the hold-out rows are the first set."""
    distributions: Mapping[str, ColumnDistribution] = field(default_factory=dict)
    """Histograms of the columns that the model uses, on the training rows."""
    start: FloatVector | None = None
    """The weights at which the training starts, shape (n_columns,), if it starts from an earlier model."""


CheckSizes = Callable[[int], None]
"""Called with the number of training rows; raises if the party refuses it."""


def _accept(n_train: int) -> None:
    """Refuse nothing."""


def load_party_data(
    dataset: DatasetConfig,
    job: JobConfig,
    *,
    labelled: bool,
    check_sizes: CheckSizes = _accept,
    scratch: Scratch = IN_MEMORY,
    roles: RoleVector | None = None,
) -> PreparedData:
    """Read a party's table and make its training block.

    Args:
        dataset: where the table is, and what its columns mean.
        job: the job's settings.
        labelled: True at the guest.
        check_sizes: refuses a table whose sizes the party's policy does not allow.
        scratch: holds the columns.
        roles: what the rows are for, in a job with `holdout: column`; None if the table itself says it.

    Raises:
        ConfigError: if a guest's dataset has no label, or a host's has one.
        DataError: if the table cannot be used, or is too small for the job.
    """
    table = read_party_table(dataset, job, labelled=labelled, scratch=scratch)
    roles = table.split if roles is None else roles
    return make_party_data(table, dataset.preprocessing, job, check_sizes, scratch, roles=roles)


def read_party_table(
    dataset: DatasetConfig, job: JobConfig, *, labelled: bool, scratch: Scratch = IN_MEMORY
) -> PartyTable:
    """Read a party's table; `labelled` is True at the guest. Its columns lie in `scratch`.

    Raises:
        ConfigError: if a guest's dataset has no label, or a host's has one.
        DataError: if the table cannot be used.
    """
    if labelled and dataset.label is None:
        raise ConfigError(f"dataset {job.dataset!r}: the guest needs the labels: set `label`")
    if not labelled and dataset.label is not None:
        raise ConfigError(f"dataset {job.dataset!r}: the host has no labels: leave out `label`, and exclude its column")
    if dataset.label is not None and len(dataset.label.classes or ()) != (job.classes or 0):
        names = len(dataset.label.classes or ("positive", "negative"))
        has = "no `classes`" if job.classes is None else f"`classes: {job.classes}`"
        raise ConfigError(f"dataset {job.dataset!r}: the label has {names} values, but the job has {has}: correct one")
    # How many rows the parties of another job have in common is not known yet.
    return read_table(dataset, scratch, is_trained=job.aligned)


def make_block(table: PartyTable, config: PreprocessingConfig, job: JobConfig) -> TrainingBlock:
    """Make a table's training columns alone; see `make_party_data`."""
    return make_party_data(table, config, job).block


def make_party_data(
    table: PartyTable,
    config: PreprocessingConfig,
    job: JobConfig,
    check_sizes: CheckSizes = _accept,
    scratch: Scratch = IN_MEMORY,
    *,
    roles: RoleVector | None = None,
    folds: RoleVector | None = None,
    counted: Mapping[str, BinnedColumn] | None = None,
) -> PreparedData:
    """Split a table's rows and turn its features into training columns.

    Only the guest, whose table has labels, adds the intercept, and only if the job has one.

    Args:
        table: the rows in canonical order of their IDs.
        config: how features become columns.
        job: the job's settings.
        check_sizes: refuses a table whose sizes the party's policy does not allow.
        scratch: holds the training columns.
        roles: what each row is for, in a job with `holdout: column`; shape (n_rows,).
        folds: the fold of each training row, if a party decides it; shape (n_train,).
        counted: at the host, its columns in bins from a bins job; see `fit_columns`.

    Raises:
        ConfigError: if there is no room for the training columns.
        DataError: if the table is too small for the job, or a feature or the weights cannot be used.
    """
    train, sets = split_rows(len(table.ids), job, roles)
    intercept = table.labels is not None and job.intercept
    _check_sizes(len(train), 1, job)  # How many features are left is not known yet.
    # Bins know two labels. Those of several classes do not depend on labels, see `DatasetConfig`.
    labels = None if table.labels is None or job.classes is not None else table.labels[train]
    preprocessing = Preprocessing.fit(
        table.features,
        config,
        intercept,
        # Whitened columns are as good for every penalty of a search, since P is diagonal in any case.
        0.0 if job.folds is not None else job.l2,
        train,
        labels=labels,
        counted=counted,
        separate=job.has_l1,
    )
    # A gradient has as many equations for the labels as there are terms.
    n_features = len(preprocessing.terms)
    _check_sizes(len(train), n_features, job)
    check_sizes(len(train))
    distributions = fit_distributions(table.features, train, preprocessing.features)
    trim_heap()
    columns = scratch.array(np.float64, (len(train), preprocessing.n_columns))
    for rows in preprocessing.transform_blocks(table.features, train):
        columns.append(rows)
        report_progress(Stage.PREPARING, N_PASSES - 1 + len(columns) / len(train), N_PASSES)
    holdout, *further = sets.values()
    holdout_columns = _held_out(table, preprocessing, [holdout], scratch)
    test_columns = _held_out(table, preprocessing, further, scratch) if further else None
    test_labels = None
    if further and table.labels is not None:
        test_labels = table.labels[np.concatenate(further)]
    weights: SampleWeights | None = None
    if table.labels is not None and job.classes is None:
        of_rows = None if table.weights is None else table.weights[train]
        by_label = table.class_weight
        weights = SampleWeights.of(
            of_rows,
            (by_label.positive, by_label.negative) if isinstance(by_label, ClassWeight) else by_label,
            table.labels[train],
            job.seed,
        )
    block = TrainingBlock(
        columns=columns.finish(),
        holdout_columns=holdout_columns,
        labels=None if table.labels is None else table.labels[train],
        holdout_labels=None if table.labels is None else table.labels[holdout],
        penalty=preprocessing.penalty,
        sample_weights=None if weights is None else weights.values,
        weight_bits=None if weights is None else weights.bits,
        test_columns=test_columns,
        test_labels=test_labels,
        n_classes=job.classes,
        folds=folds,
    )
    left_out = {**table.left_out, **preprocessing.left_out}
    n_of_set = {name: len(rows) for name, rows in sets.items() if len(rows)}
    return PreparedData(
        len(table.ids), table.ids.digest(), block, preprocessing, left_out, table.missing, n_of_set, distributions
    )


def split_rows(n_rows: int, job: JobConfig, roles: RoleVector | None) -> tuple[Rows, dict[str, Rows]]:
    """Return the training rows, and the rows of each evaluation set by its name, each in ascending order.

    Raises:
        DataError: the roles leave no training row, or no row for an evaluation.
    """
    if job.holdout != "column":
        train, holdout = holdout_split(n_rows, job.holdout, job.seed)
        return train, {HOLDOUT: holdout}
    if roles is None:
        raise ValueError("the job needs the roles of the rows")
    train = rows_of(roles, RowRole.TRAIN)
    sets = {role.set_name: rows for role in EVALUATION_SETS if len(rows := rows_of(roles, role))}
    if not len(train) or not sets:
        lacking = "no row for the training" if not len(train) else "no row for an evaluation"
        raise DataError(f"the split column leaves {lacking} among the common rows: correct the `split` of its dataset")
    return train, sets


def _held_out(table: PartyTable, preprocessing: Preprocessing, sets: Sequence[Rows], scratch: Scratch) -> FloatRows:
    """Return the columns of evaluation sets, one set after the other."""
    columns = scratch.array(np.float64, (sum(map(len, sets)), preprocessing.n_columns))
    with np.errstate(over="ignore"):  # The check below finds what overflows.
        for rows in sets:
            for block in preprocessing.transform_blocks(table.features, rows):
                if not np.isfinite(block).all():
                    raise DataError(
                        "a value of a hold-out row is too far beyond the training rows to be scaled: set `clip`"
                    )
                columns.append(block)
    return columns.finish()


def check_labels(block: TrainingBlock, *, is_chosen: bool = False) -> None:
    """Check that there are training rows and hold-out rows of both labels.

    Both parties draw the split from the job's seed, so it cannot depend on the labels: the host would have to be told
    which rows are held out, and a split by labels would tell it about the labels of rows.

    Args:
        block: of the rows that both parties have. A block without labels passes. Rows of weight 0 do not count.
        is_chosen: whether the other party has chosen the hold-out rows. Then they may have one label only, because a
            refusal would tell the other party about the labels of rows of its choice.

    Raises:
        DataError: rows of a label are missing. The text does not say which. A note for the guest has the numbers.
    """
    if block.n_classes is not None:
        for each in block.one_vs_rest():
            check_labels(each)
        return
    if block.labels is None or block.holdout_labels is None:
        return
    train = _counting_labels(block.labels, block)
    sides = {"training": (train, MIN_TRAIN_OF_LABEL), "hold-out": (block.holdout_labels, MIN_HOLDOUT_OF_LABEL)}
    if is_chosen or not len(block.holdout_labels):
        del sides["hold-out"]
    if all(_count_rarer(labels) >= needed for labels, needed in sides.values()):
        return
    text = f"training needs {MIN_TRAIN_OF_LABEL} rows of each label"
    if "hold-out" in sides:
        text = (
            f"training needs {MIN_TRAIN_OF_LABEL} training rows and {MIN_HOLDOUT_OF_LABEL} hold-out row of each label,"
            " and the split of this job does not give that: set another `seed`, another `holdout`, or `holdout: 0`"
        )
    error = DataError(f"{text}; the log of the guest has the numbers")
    for side, (labels, _) in sides.items():
        n_positive = int((labels > 0).sum())
        counting = " of a weight above 0" if side == "training" and block.sample_weights is not None else ""
        error.add_note(f"{n_positive} of {len(labels)} {side} rows{counting} are positive")
    n_rarer = _count_rarer(np.concatenate([labels for labels, _ in sides.values()]))
    if n_rarer < MIN_TRAIN_OF_LABEL:
        error.add_note("the common rows have too few rows of one label for any split: no other job helps")
    elif n_rarer < MIN_TRAIN_OF_LABEL + MIN_HOLDOUT_OF_LABEL:
        error.add_note("the common rows have too few rows of one label for a hold-out: only `holdout: 0` helps")
    raise error


def describe_split(data: PreparedData) -> str:
    """Say how many rows have each role, and how many are unused: a misspelt value of a split column shows here."""
    n_train = len(data.block.columns)
    sets = [f"{n_rows:,} rows of {name}" for name, n_rows in data.sets.items() if name != HOLDOUT]
    parts = [f"{n_train:,} training rows", *(sets or [f"{len(data.block.holdout_columns):,} hold-out rows"])]
    if n_unused := data.n_rows - n_train - data.block.n_scored:
        parts.append(f"{n_unused:,} unused rows")
    return ", ".join(parts)


def describe_few_labels(block: TrainingBlock) -> str | None:
    """Return a warning, for the guest only, if there are few training rows of a label; otherwise None."""
    if block.n_classes is not None:
        few = [text for each in block.one_vs_rest() if (text := describe_few_labels(each))]
        return min(few, default=None)
    if block.labels is None or (n_rarer := _count_rarer(_counting_labels(block.labels, block))) >= FEW_OF_LABEL:
        return None
    return f"only {n_rarer} training rows have the rarer label: each of them changes the model much"


def _counting_labels(labels: FloatVector, block: TrainingBlock) -> FloatVector:
    """Return the training labels without those of rows of weight 0."""
    return labels if block.sample_weights is None else labels[block.sample_weights > 0]


def _count_rarer(labels: FloatVector) -> int:
    n_positive = int((labels > 0).sum())
    return min(n_positive, len(labels) - n_positive)


def describe_scores_beyond(job: JobConfig, scores: FloatVector | None) -> str | None:
    """Return a warning, for the guest only, if hold-out rows have scores for which the job has another loss.

    Args:
        job: a job on shares; other jobs have no range of scores.
        scores: u of the hold-out rows at the end of the training, shape (n_models * n_holdout,); None if there are
            none.
    """
    if job.protocol != "shares" or scores is None:
        return None
    largest = np.abs(scores).reshape(job.n_models, -1).max(axis=0)
    n_beyond = int(np.sum(largest > job.max_score))
    if not n_beyond:
        return None
    return (
        f"{n_beyond:,} of {len(largest):,} hold-out rows have a score of more than {job.max_score}, where the loss is "
        "not the logistic one: set a larger `max_score` or `l2`"
    )


def describe_left_out(left_out: Mapping[str, str]) -> list[str]:
    """Return a sentence for each reason for which columns are left out, for this party only."""
    names: dict[str, list[str]] = {}
    for name, why in left_out.items():
        names.setdefault(why, []).append(repr(name))
    return [
        f"left out {'column' if len(each) == 1 else 'columns'} {', '.join(each)}: {why}" for why, each in names.items()
    ]


def describe_repeated(n_repeated: int, dataset: DatasetConfig) -> str | None:
    """Return a sentence about the rows that repeat an ID, for this party only; None if there are none."""
    if not n_repeated:
        return None
    done = {"first": "kept the first row of each ID", "aggregate": "made one row of the rows of each ID"}
    return f"{Counted(n_repeated):row repeats|rows repeat} an earlier ID: {done[dataset.repeated_ids]}"


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
                f"{what} of {size} rows is too small for {n_features} features, which need at least {needed}:"
                f" raise `{key}`, or exclude features"
            )
