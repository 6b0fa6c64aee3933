"""A party's own policy against the job that it is offered, whoever asks.

Each check is as early as what it needs is known: `check_job` and `check_prediction` by what is asked for alone,
before any data are touched; `check_sizes` once the table is read and prepared, before anything of it leaves;
`take_scores` before scores leave. What bounds a training that runs, its rounds and attempts, follows from the job and
is the state machine's: `trilateral.common.protocol.bounds`.
Every refusal begins with the line of the configuration that says no.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.quota import IdQuota, ScoreQuota, Today
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.bounds import max_evaluations, max_rounds
from trilateral.common.rpc.errors import NameTakenError

JOB, PREDICTION, ALIGNMENT = "the job", "the prediction", "the alignment"
"""What is refused."""


def check_offer(job: JobConfig, config: ProcessConfig, *, known: bool = False) -> DatasetConfig:
    """Check what the offer of a job tells to this party, and return the table that it names.

    Args:
        job: what is asked for.
        config: of this party's process.
        known: the job goes on, and was taken before.

    Raises:
        NameTakenError: this party has a model of that name.
        PolicyError: there is no such table, or the line of the policy that the job breaks.
    """
    role = config.role
    if JobFolder(config.state, job.name).model.exists() and not known:
        raise NameTakenError(f"the {role} already has a job named {job.name}: choose another name")
    dataset = config.datasets.get(job.dataset)
    if dataset is None:
        raise PolicyError(
            f"the {role} has no dataset named {job.dataset}: name one of its configuration in the job, or add it there"
        )
    check_job(job, config.policy, dataset, role)
    return dataset


def check_job(job: JobConfig, policy: Policy, dataset: DatasetConfig, role: Role) -> None:
    """Check what the job alone tells.

    Args:
        job: what is asked for.
        policy: of this party.
        dataset: its table of the name that the job gives.
        role: of this party.

    Raises:
        PolicyError: the line of the policy that the job breaks.
    """
    _check_dataset(job.name, job.dataset, dataset, role)
    if job.key_bits < policy.min_key_bits:
        raise _least(role, "min_key_bits", policy.min_key_bits, "the job has", job.key_bits)
    if not job.aligned and policy.max_ids_a_day == 0:
        raise _refusal(role, "policy.max_ids_a_day", "no IDs are aligned: align the tables, and set `aligned: true`")
    if job.epochs > policy.max_epochs:
        raise _most(role, "max_epochs", policy.max_epochs, "the job has", job.epochs)
    if job.batch == "all":
        _check_rounds(job, policy, 1, role)
    else:
        _check_batch("the job's batch has", job.batch, policy, _n_features(dataset), role)
    if job.curvature_batch is not None:
        _check_batch("the job's curvature batch has", job.curvature_batch, policy, _n_features(dataset), role)
    if role is Role.HOST and job.holdout > 0:
        if not policy.share_holdout_scores:
            raise _refusal(
                role,
                "policy.share_holdout_scores",
                "scores of hold-out rows are not shared: set `holdout: 0` in the job",
            )
        if job.holdout > policy.max_holdout:
            raise _most(role, "max_holdout", policy.max_holdout, "the job has", job.holdout)
        evaluations = max_evaluations(job)
        if evaluations > policy.max_evaluations:
            has = f"{job.epochs} epochs with one every {job.evaluate_every} come to"
            raise _most(role, "max_evaluations", policy.max_evaluations, has, evaluations)


def check_sizes(job: JobConfig, policy: Policy, n_train: int, n_features: int, role: Role) -> None:
    """Check what the table's size tells.

    Args:
        job: what is asked for.
        policy: of this party.
        n_train: training rows, at least a batch of them.
        n_features: this party's features, each category and missing indicator counted as one.
        role: of this party.

    Raises:
        PolicyError: the line of the policy that the job breaks.
    """
    batches = Batches.of(job, n_train)
    _check_batch("a batch has", n_train if job.batch == "all" else job.batch, policy, n_features, role)
    if job.curvature_batch is not None:
        _check_batch("a curvature batch has", job.curvature_batch, policy, n_features, role)
    _check_rounds(job, policy, batches.count, role)


def check_holdout(job: JobConfig, policy: Policy, n_holdout: int, role: Role) -> None:
    """Check what the number of hold-out rows tells: what the guest says of them goes to the coordinator.

    Raises:
        PolicyError: the line of the policy that the job breaks.
    """
    if role is Role.GUEST and job.evaluate_every is not None and n_holdout < policy.min_batch:
        raise _least(role, "min_batch", policy.min_batch, "the hold-out, which the job evaluates on, has", n_holdout)


def check_prediction(
    job: str, name: str, datasets: Mapping[str, DatasetConfig], policy: Policy, role: Role
) -> DatasetConfig:
    """Check that rows of a table may be scored at all, and return the table.

    Args:
        job: whose model scores them.
        name: of the table.
        datasets: all of this party.
        policy: of this party.
        role: of this party.

    Raises:
        PolicyError: the line of the policy that says no, or there is no such table.
    """
    if role is Role.HOST and not policy.allow_prediction:
        raise _refusal(role, "policy.allow_prediction", "it gives no scores of rows for predictions", PREDICTION)
    dataset = datasets.get(name)
    if dataset is None:
        raise PolicyError(f"the {role} has no dataset named {name}: name one of its configuration, or add it there")
    _check_dataset(job, name, dataset, role, PREDICTION)
    return dataset


def holdout_scores(job: JobConfig, n_holdout: int, role: Role) -> int:
    """Return how many scores of its hold-out rows a job takes from this party: the host's, at each evaluation."""
    return n_holdout * (max_evaluations(job) + 1) if role is Role.HOST else 0


def check_scores(count: int, quota: ScoreQuota, what: str) -> None:
    """See that so many scores may leave the host today, without taking them; `what` asks for them, as in a refusal.

    Raises:
        PolicyError: they are too many.
        ConfigError: the counter cannot be read.
    """
    today = quota.today()
    if count > quota.limit - today.given:
        raise _too_many(count, quota, today, what)


def take_scores(count: int, quota: ScoreQuota, what: str) -> int:
    """Count scores as given, before they leave the host; return how many are left today.

    Raises:
        PolicyError: they are too many. None is counted then.
        ConfigError: the counter cannot be read or written.
    """
    left = quota.take(count)
    if left is None:
        raise _too_many(count, quota, quota.today(), what)
    return left


def take_ids(count: int, quota: IdQuota, role: Role) -> None:
    """Count the IDs that the other party brings to an alignment, before any is compared.

    Raises:
        PolicyError: they are too many. None is counted then.
        ConfigError: the counter cannot be read or written.
    """
    if quota.take(count) is None:
        today = quota.today()
        left = max(quota.limit - today.given, 0)
        raise _refusal(
            role,
            "policy.max_ids_a_day",
            f"{quota.limit} of the other party is the most, {left} are left until {today.end:%Y-%m-%d %H:%M} UTC, and "
            f"{count} are to come",
            ALIGNMENT,
        )


def _too_many(count: int, quota: ScoreQuota, today: Today, what: str) -> PolicyError:
    left = max(quota.limit - today.given, 0)
    return _refusal(
        Role.HOST,
        "policy.max_scores_a_day",
        f"{quota.limit} is the most, {left} are left until {today.end:%Y-%m-%d %H:%M} UTC, and {count} would leave",
        what,
    )


def _check_dataset(job: str, name: str, dataset: DatasetConfig, role: Role, what: str = JOB) -> None:
    if not any(fnmatchcase(job, pattern) for pattern in dataset.jobs):
        raise _refusal(role, f"datasets.{name}.jobs", f"does not name a job {job}", what)


def _n_features(dataset: DatasetConfig) -> int:
    """As far as the configuration tells: those that it lists."""
    return len(dataset.features or [])


def _check_batch(has: str, size: int, policy: Policy, n_features: int, role: Role) -> None:
    if size < policy.min_batch:
        raise _least(role, "min_batch", policy.min_batch, has, size)
    needed = policy.min_rows_per_feature * n_features
    if size < needed:
        raise _refusal(
            role,
            "policy.min_rows_per_feature",
            f"{policy.min_rows_per_feature} rows for each of {n_features} features, {needed}, is the least,"
            f" {has} {size}",
        )


def _check_rounds(job: JobConfig, policy: Policy, n_batches: int, role: Role) -> None:
    rounds = max_rounds(job, n_batches)
    if rounds > policy.max_rounds:
        raise _most(
            role, "max_rounds", policy.max_rounds, f"{job.epochs} epochs of {n_batches} batches come to", rounds
        )


def _least(role: Role, line: str, least: int, has: str, value: int) -> PolicyError:
    return _refusal(role, f"policy.{line}", f"{least} is the least, {has} {value}")


def _most(role: Role, line: str, most: float, has: str, value: float) -> PolicyError:
    return _refusal(role, f"policy.{line}", f"{most} is the most, {has} {value}")


def _refusal(role: Role, line: str, why: str, what: str = JOB) -> PolicyError:
    return PolicyError(f"the {role} refuses {what} by {line}: {why}")
