"""Check of a party's tables, which are read and prepared as for a training, and of its policy against a job."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from trilateral.common.base.errors import ConfigError, Counted, DataError, PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.checks.estimate import check_cost
from trilateral.common.checks.finding import Finding, Level, faults, note, ok, problem, warning
from trilateral.common.checks.machine import free_memory, peak_memory
from trilateral.common.config.dataset import DatasetConfig, LabelConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import UNLIMITED, ProcessConfig
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.features import Categories
from trilateral.common.data.folds import decides_folds, make_folds
from trilateral.common.data.model.score_columns import clash_of
from trilateral.common.data.model.warm_start import warm_start
from trilateral.common.data.party_data import (
    PreparedData,
    check_labels,
    describe_few_labels,
    describe_left_out,
    describe_repeated,
    describe_split,
    make_party_data,
    read_party_table,
    split_rows,
)
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.account import Account, training_equations
from trilateral.common.jobs.bins_job import bins_of_job
from trilateral.common.jobs.earlier_model import load_earlier
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Entry, Ledger
from trilateral.common.jobs.policy import (
    JOB,
    check_effective_rows,
    check_holdout,
    check_ids,
    check_label_secrecy,
    check_offer,
    check_peer_features,
    check_scores,
    check_sizes,
    check_split,
    describe_secrecy,
    fold_points,
    holdout_scores,
    label_secrecy,
    max_peer_features,
    scored_points,
)
from trilateral.common.jobs.quota import IdQuota, ScoreQuota
from trilateral.common.protocol.label_secrecy import LabelSecrecy
from trilateral.common.protocol.sample_weights import n_effective
from trilateral.common.rpc.errors import NameTakenError
from trilateral.common.scratch.space import JobScratch, ScratchSpace

ROOM = 2
"""Factor between the memory for reading a table and that for a training, which also holds powers and ciphertexts."""


def check_tables(config: ProcessConfig, job: JobConfig | None) -> Iterator[Finding]:
    """Check the tables of a party and, for a given job, also the policy of the party.

    At the coordinator, check only that the name of the job is free.

    Args:
        config: the configuration of the process.
        job: the job to check against; its table is prepared with the job's options, others with the defaults.
    """
    if config.role is Role.COORDINATOR:
        if job is not None:
            yield from _check_name(config, job)
        return
    if not config.datasets:
        yield warning("datasets", "no table is configured, so no job can run: add one")
    elif config.role is Role.GUEST and all(each.label is None for each in config.datasets.values()):
        yield warning("datasets", "no dataset has a `label`, so this guest can train nothing: set one")
    if job is not None:
        try:
            check_offer(job, config)
        except (PolicyError, NameTakenError) as error:
            yield from faults("policy", error)
        else:
            yield ok("policy", f"the policy permits the settings of the job {job.name}")
    yield from _same_files(config)
    free = free_memory()
    for name in config.datasets:
        if config.role is Role.GUEST:
            yield from _column_names(f"datasets.{name}", config.datasets[name])
        with ScratchSpace.of(config).open() as scratch:
            yield from _check_table(config, name, job if job is not None and job.dataset == name else None, scratch)
        if scratch.peak_bytes:
            used = scratch.peak_bytes / 1e9
            yield ok(f"datasets.{name}", f"reading and preparing it took {used:,.1f} GB of scratch space on disk")
    if config.datasets and free is not None and free < ROOM * peak_memory():
        yield warning(
            "memory",
            f"reading took up to {peak_memory() / 2**20:,.0f} MiB and {free / 2**20:,.0f} MiB were free: a training "
            f"needs about {ROOM} times as much as reading",
        )


def _same_files(config: ProcessConfig) -> Iterator[Finding]:
    """Name the datasets that read one file: the limits over all jobs know a dataset by its name."""
    names: dict[Path, list[str]] = {}
    for name, dataset in config.datasets.items():
        names.setdefault(dataset.path.resolve(), []).append(name)
    for path, together in names.items():
        if len(together) > 1:
            yield note(
                "datasets",
                f"{', '.join(together)} read {path.name}: the ledger counts what each of them tells by itself, although"
                " their rows are the same",
            )


def _check_name(config: ProcessConfig, job: JobConfig) -> Iterator[Finding]:
    if JobFolder(config.state, job.name).history.exists():
        yield problem("state", f"the coordinator already has a job named {job.name}: choose another name")
    else:
        yield ok("state", f"the name {job.name} is free for a job")


def _prepared(
    config: ProcessConfig,
    table: PartyTable,
    dataset: DatasetConfig,
    trial: JobConfig,
    *,
    scratch: JobScratch,
) -> PreparedData:
    """Prepare a table as for a training, whichever rows a bins job has counted."""
    folds = None
    if decides_folds(trial, table):
        folds = make_folds(trial, table, split_rows(len(table.ids), trial, table.split)[0])

    def check(n_train: int) -> None:
        check_sizes(trial, config.policy, n_train, config.role, folds)

    preprocessing = dataset.preprocessing
    if trial.task == "bins":  # It divides the columns itself, and needs no bins of an earlier job.
        preprocessing = preprocessing.model_copy(update={"binning": None})
    elif preprocessing.binning is not None and preprocessing.binning.job == trial.name:
        raise DataError(
            f"`preprocessing.binning.job` names {trial.name}, the job itself: if the file is for `trilateral bins`, add"
            " `task: bins` to it, and otherwise give the job another name"
        )
    counted = None if preprocessing.binning is None else bins_of_job(config.state, preprocessing.binning)
    return make_party_data(table, preprocessing, trial, check, scratch, roles=table.split, folds=folds, counted=counted)


def _unused_labels(subject: str, data: PreparedData, dataset: DatasetConfig) -> Iterator[Finding]:
    features = {column.name for column in data.preprocessing.columns} | {*data.left_out}
    for name in [name for name in dataset.reason_labels if name not in features]:
        text = f"no feature has the name {name!r}: its label will never be a reason"
        yield warning(f"{subject}.reason_labels", text)


def _check_table(config: ProcessConfig, name: str, job: JobConfig | None, scratch: JobScratch) -> Iterator[Finding]:
    subject, dataset, role = f"datasets.{name}", config.datasets[name], config.role
    trial = job or _default_job(name, dataset)
    # Another job may comply with the policy.
    level = Level.PROBLEM if job is not None else Level.WARNING
    of = "the job" if job is not None else "a job with the defaults"

    account = Account(Ledger(config.state, role), config.policy, name, role)
    is_unlabelled = role is Role.GUEST and job is None and dataset.label is None
    try:
        entry = account.ledger.entry(name)
        table = read_party_table(dataset, trial, labelled=role is Role.GUEST and not is_unlabelled, scratch=scratch)
    except (ConfigError, DataError) as error:
        yield from faults(subject, error)
        return
    yield from _contents(subject, table, dataset)
    if is_unlabelled:
        yield note(subject, "has no `label`, so it serves for predictions only; for a training, set `label`")
        return
    if job is not None and not job.aligned:
        yield from _check_ids(config, len(table.ids))
    if trial.holdout == "column" and table.split is None:
        yield note(subject, "a column of the other party decides which rows train: here all count as training rows")
        trial = trial.model_copy(update={"holdout": 0.0, "evaluate_every": None, "patience": None})
    try:
        data = _prepared(config, table, dataset, trial, scratch=scratch)
    except (ConfigError, DataError) as error:
        yield from faults(subject, error)
        return
    except PolicyError as error:
        yield from _of(of, faults(subject, error, level))
        return
    n_train, n_columns = data.block.columns.shape
    try:
        check_labels(data.block)
        secrecy = label_secrecy(trial, data.block, secret_start=True)
    except DataError as error:
        yield from _of(f"before alignment, {of}", faults(subject, error, level))
        return
    is_allowed = True
    # Each may refuse the job, and a person wants to know all refusals at once. How many features the other party has is
    # not known here, but a job needs at least one.
    checks: tuple[Callable[[], object], ...] = (
        lambda: check_holdout(trial, config.policy, len(data.block.holdout_columns), role),
        lambda: check_split(trial, config.policy, data, role),
        lambda: _check_scores(config, trial, data),
        lambda: _check_points(trial, data, account),
        lambda: check_effective_rows(trial, config.policy, data.block, role),
        lambda: check_peer_features(trial, config.policy, n_train, 1, role),
        lambda: None if secrecy is None else check_label_secrecy(trial, config.policy, secrecy, 1),
        lambda: account.check_training(
            training_equations(trial, (n_train, n_columns), 1, secrecy), account.max_equations(n_train, secrecy)
        ),
        lambda: _check_start(config, trial, table, data),
    )
    for check_one in checks:
        try:
            check_one()
        except (PolicyError, ConfigError, DataError) as error:
            is_allowed = False
            yield from _of(of, faults(subject, error, level))
    if is_allowed:
        for text in describe_left_out(data.left_out):
            yield note(subject, text)
        yield from _unused_labels(subject, data, dataset)
        most = max_peer_features(trial, config.policy, n_train)
        allowed = f"before alignment: policy.min_rows_per_feature allows the other party {most:,} features"
        for text in (*_rows(data, dataset, trial), allowed, *_ledger(account, entry, data, secrecy)):
            yield ok(subject, text)
        if few := describe_few_labels(data.block):
            yield warning(subject, f"before alignment: {few}")
        if job is not None:
            yield from check_cost(config, job, n_train, n_columns)


def _default_job(name: str, dataset: DatasetConfig) -> JobConfig:
    """Return a job with the defaults, and the protocol that can train with weights of the rows, or several classes."""
    label = dataset.label
    classes = None if label is None or label.classes is None else len(label.classes)
    needs_shares = classes is not None or (label is not None and bool(label.weighting))
    return JobConfig(name="check", dataset=name, protocol="shares" if needs_shares else "paillier", classes=classes)


def _contents(subject: str, table: PartyTable, dataset: DatasetConfig) -> Iterator[Finding]:
    """Say what a table holds."""
    yield ok(subject, f"{dataset.path.name} has {_described(table, dataset.label)}")
    if repeated := describe_repeated(table.n_repeated, dataset):
        yield note(subject, repeated)
    yield from _missing_categories(subject, table, dataset)
    yield from _fold_column(subject, table)


def _missing_categories(subject: str, table: PartyTable, dataset: DatasetConfig) -> Iterator[Finding]:
    """Say where categories are missing by the usual texts: `none` may be a category, such as no employment."""
    if dataset.missing is not None or table.missing is None:
        return
    counts = {
        name: np.count_nonzero(column.missing)
        for name, column in table.features.columns.items()
        if isinstance(column, Categories)
    }
    lacking = [f"{name!r} ({Counted(count):row|rows})" for name, count in counts.items() if count]
    if lacking:
        text = "an empty field is missing, and so are texts such as `none` and `NA`, unless `missing` names others"
        yield note(subject, f"categories are missing in {', '.join(lacking)}: {text}")


def _column_names(subject: str, dataset: DatasetConfig) -> Iterator[Finding]:
    """Say whether predictions of the rows would be refused because of the names of the columns."""
    clash = clash_of(dataset.id_columns, None if dataset.label is None else dataset.label.classes)
    if clash is not None:
        yield warning(f"{subject}.id", f"predictions are refused: {clash}")


def _fold_column(subject: str, table: PartyTable) -> Iterator[Finding]:
    """Say what the column for folds holds, and in how many rows it holds nothing that can be used."""
    if table.fold_values is None:
        return
    is_there = ~np.isnan(table.fold_values)
    counts = np.unique_counts(table.fold_values[is_there]).counts
    different = (
        f"{Counted(len(counts)):group|groups}" if table.fold_by == "group" else f"{len(counts):,} different times"
    )
    largest = f", at most {Counted(counts.max()):row|rows} in one" if len(counts) else ""
    yield ok(subject, f"the column in `folds` has {different}{largest}")
    if n_lacking := int((~is_there).sum()):
        yield warning(
            subject,
            f"the column in `folds` has no {table.fold_by} in {Counted(n_lacking):row|rows}: jobs with `fold_by:"
            f" {table.fold_by}` are refused if these rows train; correct the values",
        )


def _rows(data: PreparedData, dataset: DatasetConfig, job: JobConfig) -> Iterator[str]:
    """Say how many rows a training has and, for the guest alone, how they are weighted."""
    n_columns = data.block.columns.shape[1]
    yield f"before alignment: {describe_split(data)} and {n_columns} training columns"
    if data.block.folds is not None:
        sizes = np.bincount(data.block.folds, minlength=job.folds or 0)
        size = f"{sizes.max():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
        has = f"{len(sizes)} folds by {job.fold_by} have {size} training rows"
        yield f"before alignment: {has}"
    elif job.fold_by != "random":
        yield "the other party decides the folds of the job: here the seed draws them"
    weights = data.block.sample_weights
    if dataset.label is not None and weights is not None:
        yield (
            f"before alignment: training rows count by {' and '.join(dataset.label.weighting)}, as much as "
            f"{n_effective(weights):,.0f} rows of equal weight; "
            f"{Counted(np.count_nonzero(weights == 0)):row has|rows have} the weight 0"
        )


def _ledger(account: Account, entry: Entry, data: PreparedData, secrecy: LabelSecrecy | None) -> Iterator[str]:
    """Say what the trainings and predictions on a dataset have given the other party, and what they may give."""
    if secrecy is None:
        most = account.max_equations(len(data.block.columns), secrecy)
        yield (
            f"before alignment: {entry.equations:,} of at most {most:,} equations about these rows given to the guest "
            f"(policy.min_rows_per_equation; trainings: {entry.trainings:,})"
        )
        yield (
            f"rows scored for the guest with {len(entry.points)} of at most "
            f"{account.max_points(data.preprocessing.n_row_values)} different sets of weights "
            "(policy.min_columns_per_point)"
        )
    elif account.policy.min_label_bits > 0:
        yield f"before alignment: {describe_secrecy(secrecy, account.policy.min_label_bits, entry)}"


def _of(what: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Say what the findings are about."""
    for each in findings:
        yield replace(each, text=f"{what}: {each.text}")


def _check_scores(config: ProcessConfig, job: JobConfig, data: PreparedData) -> None:
    n_scores = holdout_scores(job, len(data.block.holdout_columns), config.role, data.block.n_test)
    n_scores += fold_points(job, config.role) * len(data.block.columns)
    if n_scores:
        check_scores(n_scores, ScoreQuota.of(config), JOB)


def _check_points(job: JobConfig, data: PreparedData, account: Account) -> None:
    n_points = scored_points(job, len(data.block.holdout_columns), account.role) + fold_points(job, account.role)
    if n_points:
        account.check_points(n_points, data.preprocessing.n_row_values, JOB)


def _check_start(config: ProcessConfig, job: JobConfig, table: PartyTable, data: PreparedData) -> None:
    if job.start_from is not None:
        rows, _ = split_rows(len(table.ids), job, table.split)
        model = load_earlier(config.state, config.role, job.start_from)
        warm_start(model, table.features, rows, data.block.columns, intercept=data.preprocessing.intercept)


def _check_ids(config: ProcessConfig, n_rows: int) -> Iterator[Finding]:
    """Check that the other party may bring its IDs to the alignment of a job today, if it has as many as this one."""
    dealing, quota, role = Dealing(b"", n_rows, n_rows), IdQuota.of(config), config.role
    room = dealing.guest_room if role is Role.HOST else dealing.host_room
    alike = f"if the other party also has {n_rows:,} rows"
    try:
        check_ids(room, quota, role)
        left = quota.limit - quota.today().given
    except (PolicyError, ConfigError) as error:
        yield from _of(alike, faults("policy.max_ids_a_day", error))
    else:
        if quota.limit < UNLIMITED:
            leaves = f"policy.max_ids_a_day leaves {left:,} today"
            yield ok("policy", f"{alike}, the alignment counts about {room:,} of its IDs; {leaves}")


def _described(table: PartyTable, label: LabelConfig | None) -> str:
    n_rows, n_features = len(table.ids), len(table.features.columns)
    text = f"{Counted(n_rows):row|rows} and {Counted(n_features):feature|features}"
    if table.labels is not None and label is not None and label.classes is not None:
        counts = np.bincount(table.labels.astype(np.int64), minlength=len(label.classes))
        text += f"; rows by class, in the order of `label.classes`: {', '.join(map(str, counts))}"
    elif table.labels is not None:
        text += f"; {Counted(np.sum(table.labels > 0)):row is|rows are} positive"
    return text
