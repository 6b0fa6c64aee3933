"""What a party's policy allows the other party to learn about a dataset over all jobs, and what one training gives.

The counts are in the ledger; see `trilateral.common.jobs.ledger`.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.jobs.ledger import MAX_COUNT, Ledger
from trilateral.common.jobs.policy import JOB, refusal
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.bounds import max_curvature_draws
from trilateral.common.protocol.label_secrecy import LabelSecrecy, told_by

_WAYS_OUT = "lower the setting, or name the dataset anew if its rows or their values are new"


@dataclass(frozen=True)
class Account:
    """What a party's policy allows the other party to learn about one dataset, over all jobs.

    Attributes:
        ledger: what the other party has learnt.
        policy: the policy of this party.
        dataset: name of the dataset.
        role: the role of this party.
    """

    ledger: Ledger
    policy: Policy
    dataset: str
    role: Role

    def max_points(self, n_columns: int) -> int:
        """Return at how many points rows with `n_columns` columns may be scored; at least one."""
        return math.ceil(n_columns / self.policy.min_columns_per_point)

    def max_equations(self, n_train: int, secrecy: LabelSecrecy | None) -> int:
        """Return how many equations all trainings may give the other party, in the units of `training_equations`.

        Args:
            n_train: number of training rows.
            secrecy: see `label_secrecy`.
        """
        if secrecy is None:
            return math.floor(n_train / self.policy.min_rows_per_equation)
        bits = self.policy.min_label_bits
        return MAX_COUNT if bits == 0 else secrecy.max_equations(bits)

    def check_points(self, n_points: int, n_columns: int, what: str) -> None:
        """Check that rows may be scored at `n_points` further points, without counting them.

        Args:
            n_points: number of points that are not in the ledger yet.
            n_columns: number of the host's columns.
            what: scores the rows: `JOB` or `PREDICTION`.

        Raises:
            PolicyError: fewer are left.
            ConfigError: the ledger cannot be read.
        """
        given = len(self.ledger.entry(self.dataset).points) + self.ledger.n_reserved(self.dataset)
        if given + n_points > self.max_points(n_columns):
            raise self._too_many_points(n_points, n_columns, what)

    def check_further(self, points: Collection[str], n_columns: int, what: str) -> None:
        """Check that rows may be scored at some points, without counting them; see `spend_point`."""
        new = set(points).difference(self.ledger.entry(self.dataset).points)
        if new:
            self.check_points(len(new), n_columns, what)

    def reserve_points(self, job_id: bytes, n_points: int, n_columns: int) -> None:
        """Reserve points for a job of this process; see `check_points` for the other arguments and the errors."""
        if not self.ledger.reserve(self.dataset, job_id, n_points, self.max_points(n_columns)):
            raise self._too_many_points(n_points, n_columns, JOB)

    def spend_point(self, point: str, n_columns: int, what: str, job_id: bytes = b"") -> None:
        """Count a point, before the first score leaves. A point that was counted before costs nothing.

        Args:
            point: see `point_of`.
            n_columns: number of the host's columns.
            what: scores the rows: `JOB` or `PREDICTION`.
            job_id: the job, if one scores the rows.

        Raises:
            PolicyError: none is left. No score may leave.
            ConfigError: the ledger cannot be read or written. No score may leave.
        """
        if not self.ledger.add_point(self.dataset, point, self.max_points(n_columns), job_id):
            raise self._too_many_points(1, n_columns, what)

    def check_training(self, n_equations: int, most: int) -> None:
        """Check that a training may give the other party so many equations, without counting them.

        Args:
            n_equations: see `training_equations`.
            most: see `max_equations`.

        Raises:
            PolicyError: fewer are left.
            ConfigError: the ledger cannot be read.
        """
        if self.ledger.entry(self.dataset).equations + n_equations > most:
            raise self._too_many_equations(n_equations, most)

    def spend_training(self, n_equations: int, most: int) -> None:
        """Count a training, before its first round; see `check_training` for the arguments and the errors."""
        if not self.ledger.add_training(self.dataset, n_equations, most):
            raise self._too_many_equations(n_equations, most)

    def spend_counts(self, n_equations: int, most: int) -> None:
        """Count what a bins job gives, before it leaves; see `check_training` for the arguments and the errors."""
        if not self.ledger.add_counts(self.dataset, n_equations, most):
            raise self._too_many_equations(n_equations, most)

    def _too_many_points(self, n_points: int, n_columns: int, what: str) -> PolicyError:
        given = len(self.ledger.entry(self.dataset).points)
        reserved = self.ledger.n_reserved(self.dataset)
        others = f" and {reserved} reserved for running jobs" if reserved else ""
        in_the_job = (
            "set `holdout: 0`, `choose: log_loss` or a larger `evaluate_every` in the job, " if what == JOB else ""
        )
        why = (
            f"rows of {self.dataset} with {n_columns} columns may be scored with at most {self.max_points(n_columns)}"
            f" different sets of weights; {given} given so far{others}, {n_points} more needed;"
            f" {_rounded_down(n_columns / (given + reserved + n_points))} would allow it:"
            f" {in_the_job}{_WAYS_OUT}"
        )
        return refusal(self.role, "policy.min_columns_per_point", why, what)

    def _too_many_equations(self, n_equations: int, most: int) -> PolicyError:
        entry = self.ledger.entry(self.dataset)
        numbers = f"{entry.equations} given so far (trainings: {entry.trainings}), {n_equations} more needed"
        together = f"all trainings on {self.dataset} together would give the other party too many equations about"
        way_out = f"train in larger batches (`paillier` only), {_WAYS_OUT}"
        if self.role is Role.HOST:
            lower = _rounded_down(self.policy.min_rows_per_equation * most / (entry.equations + n_equations))
            why = f"{together} its rows: the maximum is {most}; {numbers}; {lower} would allow it: {way_out}"
            return refusal(self.role, "policy.min_rows_per_equation", why)
        # The limit follows from the number of positive labels, and the other numbers come close to it.
        error = refusal(
            self.role, "policy.min_label_bits", f"{together} the labels: {way_out}; the guest's log has the numbers"
        )
        error.add_note(f"policy.min_label_bits allows {most} equations about the labels; {numbers}")
        return error


def _rounded_down(number: float) -> str:
    """Return a number with four significant digits that is not larger."""
    digits = 3 - math.floor(math.log10(number)) if number > 0 else 0
    return f"{math.floor(number * 10.0**digits) / 10.0**digits:.4g}"


def training_equations(
    job: JobConfig, shape: tuple[int, int], n_peer_columns: int, secrecy: LabelSecrecy | None
) -> int:
    """Return how many equations a training gives the other party about this party's labels, or about its columns.

    Every epoch has the same batches, and a gradient has one number for each of the other party's columns. At the host,
    these are equations about each of its columns, and a batch that is drawn for a curvature pair adds equations about
    one combination of its columns. They count by the host's number of columns. At the guest, only equations that the
    secret start does not cover count. Curvature does not depend on the labels.

    Under the protocol on shares, a training shows the other party only its own final weights and the final loss,
    whatever the batches are: one equation for each. With folds it also learns the rounds of each fit and, at the guest,
    how the penalties compare; see `label_secrecy.told_by`. At the host, each is about one combination of its columns,
    and counts in full nevertheless. There, a job counts at least one equation for each fold: the coordinator sees a sum
    over each, and many searches together must not show it the rows.

    With the job's `inference`, the other party also learns the covariance of its own weights: one equation for each
    pair of its columns, about the slopes of all rows, and with them about the scores.

    Args:
        job: the job.
        shape: numbers of this party's training rows and of its training columns.
        n_peer_columns: number of the other party's training columns.
        secrecy: see `label_secrecy`.
    """
    if secrecy is not None:
        return secrecy.n_equations(n_peer_columns)
    if job.protocol == "shares":
        told = n_peer_columns * job.n_models + told_by(job, with_table=True)
        of_inference = n_peer_columns * (n_peer_columns + 1) // 2 if job.inference else 0
        return max(told, job.folds or 0) + of_inference
    n_train, n_columns = shape
    n_batches = Batches.of(job, n_train).count
    drawn = math.ceil(max_curvature_draws(job, n_batches) * n_peer_columns / max(n_columns, 1))
    return n_batches * n_peer_columns + drawn
