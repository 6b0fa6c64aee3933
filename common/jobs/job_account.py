"""What one job gives the other party about the rows of this party, counted before it leaves."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import UNLIMITED, Policy
from trilateral.common.data.party_data import PreparedData
from trilateral.common.jobs.account import Account, training_equations
from trilateral.common.jobs.ledger import point_of
from trilateral.common.jobs.party_record import PartyRecord
from trilateral.common.jobs.policy import JOB, fold_points, holdout_scores, scored_points, spend_scores
from trilateral.common.jobs.quota import ScoreQuota
from trilateral.common.protocol.label_secrecy import LabelSecrecy
from trilateral.common.protocol.messages import BeginRound, Message, ScoresDue, StepTaken

log = logging.getLogger(__name__)

MAX_REPEATS = 10
"""How many repeated openings of the scores of folds a job has at no further cost. An attempt that times out and a
process that is killed each cost one."""


class JobAccount:
    """The counts of one session of a job. Later sessions of the job count nothing twice.

    A job that fails before its first round has given nothing, and only its scores of the day are counted. A failed job
    leaves the points at which rows were scored in the ledger, and gives the others back.

    Args:
        job: the job.
        run_id: run ID of this session, for which points are reserved.
        record: what earlier sessions have counted.
        account: returns the account of the job's dataset, under the policy at the time of the call.
        data: this party's prepared table.
        add_rows: adds the rows of the job to those that this party has used, if the policy allows it.
    """

    def __init__(
        self,
        job: JobConfig,
        run_id: bytes,
        record: PartyRecord,
        account: Callable[[], Account],
        data: PreparedData,
        *,
        add_rows: Callable[[Policy], None],
    ) -> None:
        self._job = job
        self._run_id = run_id
        self._record = record
        self._account = account
        self._n_train, self._n_own = data.block.columns.shape
        self._n_holdout, self._n_test = len(data.block.holdout_columns), data.block.n_test
        self._steps = data.preprocessing
        self._add_rows = add_rows
        self._is_counted = record.counted_columns is not None
        self._secrecy: LabelSecrecy | None = None
        self._opened = record.opened_folds

    def open(self, quota: ScoreQuota) -> None:
        """Reserve points, and count the day's scores.

        Args:
            quota: the counter of the day's scores.

        Raises:
            PolicyError: the policy does not allow so many.
            ConfigError: a count cannot be read or written.
        """
        job, record, account = self._job, self._record, self._account()
        role = account.role
        n_holdout = self._n_holdout
        n_points, n_of_folds = scored_points(job, n_holdout, role), fold_points(job, role)
        if n_points or n_of_folds:
            given = account.ledger.entry(account.dataset).points
            n_left = max(n_points - record.n_scored_points(given) * job.n_models, 0)
            n_left += max(n_of_folds - max(self._opened.counts.values(), default=0), 0)
            account.reserve_points(self._run_id, n_left, self._steps.n_row_values)
        if record.has_spent_scores:
            return
        if n_points or n_of_folds:
            n_scores = holdout_scores(job, n_holdout, role, self._n_test) + n_of_folds * self._n_train
            left = spend_scores(n_scores, quota, JOB)
            rest = f"{left} are left today" if quota.limit < UNLIMITED else "without a daily limit"
            log.info("job %s: counted %d scores of rows as given, %s", job.name, n_scores, rest)
        record.keep_spent_scores()

    def check_training(self, n_columns: int, secrecy: LabelSecrecy | None) -> None:
        """Check what a training would give a peer with so many training columns, after the earlier trainings.

        Args:
            n_columns: training columns of the peer.
            secrecy: of the guest's labels in this job; None at the host.

        Raises:
            PolicyError: the policy does not allow so much.
            ConfigError: the ledger cannot be read.
            ProtocolError: the training was counted with another number of columns.
        """
        self._secrecy = secrecy
        account, counted = self._account(), self._record.counted_columns
        if counted is not None and counted != n_columns:
            peer = Role.GUEST if account.role is Role.HOST else Role.HOST
            raise ProtocolError(
                f"the {peer} has {n_columns} training columns, and the {account.role} has counted {counted} when the"
                " job began: start the job again"
            )
        if not self._is_counted:
            account.check_training(*self._equations(n_columns, account))

    def count(self, message: Message) -> None:
        """Count what the state machine is about to give.

        Args:
            message: what it reports to its own process.

        Raises:
            PolicyError: the policy does not allow it.
            ConfigError: the ledger cannot be read or written.
        """
        match message:
            case StepTaken(asked=BeginRound() as begin):
                self._end_repeats(begin.key.round)
                if not self._is_counted:
                    self._count_training(begin.peer_columns)
            case ScoresDue() if message.fold:
                self._count_fold(message.key.round, message.fold)
            case ScoresDue():
                points = [point_of(self._steps, each) for each in np.split(message.point, self._job.n_models)]
                self._record.keep_newest_point(message.key, points[-1])
                for point in points:
                    self._account().spend_point(point, self._steps.n_row_values, JOB, self._run_id)

    def _count_training(self, n_columns: int) -> None:
        account = self._account()
        self._add_rows(account.policy)
        account.spend_training(*self._equations(n_columns, account))
        self._record.keep_counted_columns(n_columns)
        self._is_counted = True

    def _end_repeats(self, round_number: int) -> None:
        """Count the next opening in any case, if a round begins that is not the one of the newest opening."""
        if self._opened.newest is not None and self._opened.newest[0] != round_number:
            self._opened = replace(self._opened, newest=None)
            self._record.keep_opened_folds(self._opened)

    def _count_fold(self, round_number: int, fold: int) -> None:
        """Count the opening of a fold's scores, by each of which a row of the fold is scored at one more point.

        The host does not know the points. A round that begins again, after a timeout or in another session, has the
        point that it had if no other round has begun since: the point follows from what the earlier rounds have shown.
        Such a repeat shows nothing new. A hostile coordinator could ask for it at another point, so `MAX_REPEATS` of a
        job are free.
        """
        before, newest = self._opened, (round_number, fold)
        if before.newest == newest and before.repeats < MAX_REPEATS:
            self._opened = replace(before, repeats=before.repeats + 1)
        else:
            counts = {**before.counts, fold: before.counts.get(fold, 0) + 1}
            self._opened = replace(before, counts=counts, newest=newest)
        self._record.keep_opened_folds(self._opened)
        # An earlier session may have ended before the ledger had the point.
        number = self._opened.counts[fold]
        point = hashlib.sha256(b"fold scores" + self._record.id + number.to_bytes(8)).hexdigest()
        self._account().spend_point(point, self._steps.n_row_values, JOB, self._run_id)

    def _equations(self, n_columns: int, account: Account) -> tuple[int, int]:
        """Return how many equations a peer with so many columns gets, and how many all trainings may give."""
        n_train, n_own = self._n_train, self._n_own
        n_equations = training_equations(self._job, (n_train, n_own), n_columns, self._secrecy)
        return n_equations, account.max_equations(n_train, self._secrecy)
