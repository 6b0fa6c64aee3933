"""A party's work in a bins job beside the state machine: its fine bins, the ledger, and the file of the result."""

import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import BinningConfig, DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.data.model.bins_file import BinsFile, HostColumn, load_bins
from trilateral.common.data.party_data import split_rows
from trilateral.common.data.preprocessing.bins import (
    Bin,
    BinnedColumn,
    FineColumn,
    divide,
    fit_bins,
    merge_rule,
)
from trilateral.common.data.preprocessing.reasons import ConstantError
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.data.tables.table_file import table_sha256
from trilateral.common.jobs.account import Account
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.permission import Permission
from trilateral.common.jobs.policy import check_sizes
from trilateral.common.protocol.binning import FineBins, sum_groups
from trilateral.common.protocol.label_secrecy import LabelSecrecy
from trilateral.common.protocol.messages import BinsResult, CountsDue, MergedColumn
from trilateral.common.protocol.row_roles import RoleVector
from trilateral.common.protocol.shares.bins import BinsData, Release
from trilateral.common.protocol.shares.counting import MAX_FINE

log = logging.getLogger(__name__)

NOT_RELEASED = "no counts, which the guest's policy.share_bin_counts keeps"


class BinsWork:
    """One session of a bins job at a party.

    Args:
        job: the job.
        run_id: run ID of this session.
        permission: of the job.
        account: returns the account of the job's dataset, under the policy at the time of the call.
        add_rows: adds the rows of the job to those that this party has used, if the policy allows it.
    """

    def __init__(
        self,
        job: JobConfig,
        run_id: bytes,
        permission: Permission,
        account: Callable[[], Account],
        add_rows: Callable[[Policy], None],
    ) -> None:
        self._job = job
        self._run_id = run_id
        self._permission = permission
        self._account = account
        self._add_rows = add_rows
        self._fine: list[FineColumn] = []
        self._own: list[BinnedColumn] = []
        self._left_out: dict[str, str] = {}
        self._labels: FloatVector | None = None
        self._ids = ""
        self._train = ""
        self._path = Path()
        self._binning = BinningConfig()
        self.n_train = 0
        """Training rows, once the table is prepared."""

    def prepare(
        self, table: PartyTable, dataset: DatasetConfig, policy: Policy, roles: RoleVector | None
    ) -> tuple[BinsData, Release]:
        """Divide the columns of the training rows into bins.

        Args:
            table: the common rows.
            dataset: the party's dataset.
            policy: the party's policy.
            roles: what the rows are for, in a job with `holdout: column`.

        Raises:
            DataError: no column can be divided, or there are too many.
            PolicyError: the policy does not allow the job on a table of this size.
        """
        job, role = self._job, self._account().role
        train, _ = split_rows(len(table.ids), job, roles)
        self.n_train, self._path, self._train = len(train), dataset.path, _digest_of(train)
        check_sizes(job, policy, self.n_train, role)
        self._binning = dataset.preprocessing.binning or self._binning
        self._left_out = dict(table.left_out)
        digest = table.ids.digest()
        self._ids = digest.hex()
        least = max(policy.min_bin_label_count, 1)
        release = Release(merge_rule(self._binning, self.n_train, least), policy.share_bin_counts == "host")
        if table.labels is not None:
            self._labels = table.labels[train]
            self._fit_own(table, train, self._labels)
            return BinsData(len(table.ids), digest, self.n_train, labels=self._labels), release
        self._fit_fine(table, train)
        codes = np.stack([each.codes for each in self._fine], axis=1)
        return BinsData(len(table.ids), digest, self.n_train, [each.bins for each in self._fine], codes), release

    def _fit_own(self, table: PartyTable, train: Rows, labels: FloatVector) -> None:
        """Divide the guest's own columns, which needs no other party."""
        for name, column in table.features.columns.items():
            config = self._binning.of_column(name)
            if config.method == "none":
                self._left_out[name] = "`method: none`"
                continue
            try:
                self._own.append(fit_bins(name, column[train], config, labels))
            except ConstantError as error:
                self._left_out[name] = str(error)

    def _fit_fine(self, table: PartyTable, train: Rows) -> None:
        for name, column in table.features.columns.items():
            config = self._binning.of_column(name)
            if config.method == "none":
                self._left_out[name] = "`method: none`"
                continue
            try:
                self._fine.append(divide(name, column[train], config))
            except ConstantError as error:
                self._left_out[name] = str(error)
        n_fine = sum(len(each.bins.n_rows) for each in self._fine)
        if not 0 < n_fine <= MAX_FINE:
            raise DataError(
                f"the host's columns have {n_fine} fine bins, and a bins job takes 1 to {MAX_FINE}: choose other"
                " columns in `features`, or set `method: none` for some in `preprocessing.binning.columns`"
            )

    def count(self, due: CountsDue) -> None:
        """Count the rows, and in the ledger what is about to leave about them, if the policy still permits the job.

        Raises:
            PolicyError: the policy does not allow so much.
            ConfigError: the ledger cannot be read or written.
        """
        account = self._account()
        secrecy = None if self._labels is None else LabelSecrecy.of_result(self._labels, None)
        self._permission.check_again()
        with self._permission.recording():
            self._add_rows(account.policy)
            account.spend_counts(due.equations, account.max_equations(self.n_train, secrecy))

    def file(self, result: BinsResult) -> BinsFile:
        """Return the file of what this party gets to know.

        Raises:
            DataError, OSError: the table cannot be read for its hash.
        """
        host_columns: list[HostColumn] = []
        if self._labels is None:
            self._merge(result)
        else:
            host_columns = [_seen(*each) for each in zip(result.bins, result.merged, strict=True)]
        return BinsFile.model_validate(
            {
                "role": self._account().role,
                "job": self._job,
                "run_id": self._run_id.hex(),
                "table": table_sha256(self._path),
                "ids": self._ids,
                "n_train": self.n_train,
                "train": self._train,
                "columns": self._own,
                "left_out": self._left_out,
                "host_columns": host_columns,
            }
        )

    def _merge(self, result: BinsResult) -> None:
        """Make the host's columns of what the guest has released."""
        if not result.merged:
            self._left_out |= {fine.name: NOT_RELEASED for fine in self._fine}
            return
        for fine, merged in zip(self._fine, result.merged, strict=True):
            if len(merged.n_positive) < 2:
                # The share is that of the party that has chosen the bins.
                whose = "the host's" if fine.bins.keep_from else "the guest's"
                self._left_out[fine.name] = (
                    f"too few rows for two bins, by {whose} `min_share` and the guest's policy.min_bin_label_count"
                )
                continue
            try:
                self._own.append(fine.merged(merged.groups, np.array(merged.n_positive), woe=True))
            except (ConstantError, ValueError) as error:
                self._left_out[fine.name] = str(error) if isinstance(error, ConstantError) else "counts that do not fit"


def _digest_of(train: Rows) -> str:
    """Return a digest of which common rows are training rows, hexadecimal."""
    return sha256(train.astype("<i8").tobytes()).hexdigest()


def _seen(fine: FineBins, merged: MergedColumn) -> HostColumn:
    n_rows = sum_groups(np.array(fine.n_rows), merged.groups).tolist()
    bins = [Bin(n_rows=rows, n_positive=each) for rows, each in zip(n_rows, merged.n_positive, strict=True)]
    return HostColumn(bins=bins)


def _load(state: Path, name: str) -> BinsFile:
    """Load what this party got to know in a bins job.

    Raises:
        DataError: there is no such job, or its file cannot be read. Other organisations read the text, so it does not
            name the folder.
    """
    path = JobFolder(state, name).bins
    if not path.exists():
        raise DataError(
            f"`preprocessing.binning.job` names {name}, and this party has no bins of a job with that name: name a bins"
            " job that has finished"
        )
    try:
        return load_bins(path)
    except DataError as error:
        log.error("%s", error)
        raise DataError(f"the bins of job {name} cannot be read: see the log of this process") from None


def bins_of_job(state: Path, binning: BinningConfig) -> Mapping[str, BinnedColumn] | None:
    """Return the host's columns that a bins job has counted, whatever its rows; see `counted_columns`."""
    if binning.job is None:
        return None
    return {column.name: column for column in _load(state, binning.job).columns}


def counted_columns(
    state: Path, dataset: DatasetConfig, job: JobConfig, table: PartyTable, roles: RoleVector | None
) -> Mapping[str, BinnedColumn] | None:
    """Return the host's columns that a bins job has counted, for a training on the same rows.

    The bins must not know the labels of hold-out rows, or the metrics would be too good. So the job must have had the
    same common rows, the same split and the same table.

    Args:
        state: the state folder.
        dataset: the host's dataset.
        job: the training.
        table: the common rows.
        roles: what they are for, in a job with `holdout: column`.

    Returns:
        The columns by name; None if the dataset names no bins job.

    Raises:
        DataError: the bins job is another one, or counted other rows.
    """
    binning = dataset.preprocessing.binning
    if binning is None or binning.job is None:
        return None
    bins = _load(state, binning.job)
    before = bins.job
    differing = {
        "holdout": (before.holdout, job.holdout),
        "dataset": (before.dataset, job.dataset),
    }
    if job.holdout != "column":
        differing["seed"] = before.seed, job.seed
    named = [f"`{name}: {a}`, not {b}" for name, (a, b) in differing.items() if a != b]
    if bins.ids != table.ids.digest().hex():
        named.append("other common rows")
    if bins.table != table_sha256(dataset.path):
        named.append("another table")
    train, _ = split_rows(len(table.ids), job, roles)
    if not named and bins.train != _digest_of(train):
        named.append("other training rows")
    if named:
        raise DataError(
            f"the bins job {binning.job} counted with {' and '.join(named)}: its bins know the labels of other rows"
            " than this training; run a bins job with the same settings, and name it in `preprocessing.binning.job`"
        )
    return {column.name: column for column in bins.columns}
