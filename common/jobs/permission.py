"""Whether a party's policy permits a job, from the offer of the job to its end: the policy may change meanwhile."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trilateral.common.base.errors import PolicyError, notes
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.party_data import PreparedData
from trilateral.common.jobs.job_account import JobAccount
from trilateral.common.jobs.policy import (
    JOB,
    check_counted,
    check_effective_rows,
    check_holdout,
    check_offer,
    check_peer,
    check_sizes,
    check_split,
    fold_points,
    holdout_scores,
)
from trilateral.common.jobs.quota import ScoreQuota
from trilateral.common.observe.audit import Audit
from trilateral.common.protocol.label_secrecy import LabelSecrecy
from trilateral.common.protocol.messages import Message
from trilateral.common.rpc.access import Caller

log = logging.getLogger(__name__)


class Permission:
    """The permission of one job. Each refusal is recorded in the audit log.

    Make it when the offer has been checked, and before anything else runs that could change the configuration.

    Args:
        job: the job, which this party has accepted.
        current: returns the configuration of this party's process at the time of the call.
        audit: the audit log.
        caller: who offered the job.

    Attributes:
        data: this party's prepared table, once it is known.
        secrecy: of the guest's labels, once it is known.
        account: counts what the job gives the other party, once the table is known.
        record: fields of each line in the audit log.
    """

    def __init__(
        self, job: JobConfig, current: Callable[[], ProcessConfig], audit: Audit, caller: Caller, record: dict[str, str]
    ) -> None:
        self.data: PreparedData | None = None
        self.secrecy: LabelSecrecy | None = None
        self.account: JobAccount | None = None
        self.record = record
        self._job = job
        self._current = current
        self._audit = audit
        self._caller = caller
        self._checked = current()
        self._n_peer_columns: int | None = None
        self._recorded: PolicyError | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record a refusal within the block, unless a block within this one has recorded it."""
        try:
            yield
        except PolicyError as error:
            if error is self._recorded:
                raise
            self._recorded = error
            for note in notes(error):
                log.warning("job %s: %s: %s", self._job.name, error, note)
            self._audit.refused(self._caller, "OpenJob", str(error), **self.record)
            raise

    def check_peer(self, n_columns: int) -> None:
        """Check the other party's number of training columns.

        Raises:
            PolicyError: the policy does not permit so many, in this job or after the earlier ones.
            ConfigError: the ledger cannot be read.
            ProtocolError: the other party had another number when the job began.
        """
        config, data, account = self._current(), self.data, self.account
        if data is None or account is None:
            raise RuntimeError("the other party's columns are checked before the table is known")
        self._n_peer_columns = n_columns
        with self.recording():
            check_peer(self._job, config.policy, len(data.block.columns), n_columns, config.role, secrecy=self.secrecy)
            account.check_training(n_columns, self.secrecy)

    def count(self, message: Message) -> None:
        """Count what the state machine is about to give; see `JobAccount.count`."""
        if self.account is None:
            raise RuntimeError("something is about to leave before the table is known")
        with self.recording():
            self.account.count(message)

    def check_again(self) -> None:
        """Check the job against the configuration, if that has changed since the last time.

        The scores of the hold-out rows are counted already. They may leave if the limit still covers what was counted.

        Raises:
            PolicyError: the policy no longer permits the job.
            ConfigError: the counter of the scores cannot be read.
        """
        config, data = self._current(), self.data
        if config is self._checked:
            return
        with self.recording():
            check_offer(self._job, config, known=True)
        if data is None:
            return
        n_train, n_holdout = len(data.block.columns), len(data.block.holdout_columns)
        with self.recording():
            check_sizes(self._job, config.policy, n_train, config.role, data.block.folds)
            check_holdout(self._job, config.policy, n_holdout, config.role)
            check_effective_rows(self._job, config.policy, data.block, config.role)
            check_split(self._job, config.policy, data, config.role)
            if holdout_scores(self._job, n_holdout, config.role) or fold_points(self._job, config.role):
                check_counted(ScoreQuota.of(config), config.role, JOB)
        if self._n_peer_columns is not None:
            self.check_peer(self._n_peer_columns)
        self._checked = config
