"""Checks of an offered job or prediction against a party's own policy.

Each check runs as soon as its inputs are known. `check_job` and `check_prediction` need only the request, and run
before any data is read. `check_sizes` runs once the table is read and prepared, before anything leaves the party.
`check_peer` runs once the other party has told how many columns it has, before the first round.
`spend_scores` runs before scores leave. `account.Account` has the checks over all jobs on a dataset. The bounds on the
rounds and attempts of a running training follow from the job, and the state machine enforces them: see
`trilateral.common.protocol.bounds`.
Every refusal names the setting that causes it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from trilateral.common.base.errors import Counted, PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import UNLIMITED, Policy, ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Entry
from trilateral.common.jobs.quota import DayQuota, IdQuota, ScoreQuota
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.block import PartyData, TrainingBlock
from trilateral.common.protocol.bounds import max_evaluations, max_rounds
from trilateral.common.protocol.label_secrecy import N_TOLD, LabelSecrecy, told_by
from trilateral.common.protocol.row_roles import RoleVector
from trilateral.common.protocol.sample_weights import n_effective
from trilateral.common.rpc.errors import NameTakenError

JOB, PREDICTION, ALIGNMENT = "the job", "the prediction", "the alignment"
"""The thing refused, as the text of a refusal names it."""


def check_offer(job: JobConfig, config: ProcessConfig, *, known: bool = False) -> DatasetConfig:
    """Check the offer of a job.

    Args:
        job: the offered job.
        config: the configuration of this party's process.
        known: whether this party accepted the job in an earlier session.

    Returns:
        The dataset that the job names.

    Raises:
        NameTakenError: this party has a model of that name.
        PolicyError: this party has no such dataset, or its policy does not allow the job.
    """
    role = config.role
    folder = JobFolder(config.state, job.name)
    if (folder.model.exists() or folder.bins.exists()) and not known:
        raise NameTakenError(f"the {role} already has a job named {job.name}: choose another name")
    dataset = find_dataset(job.dataset, config.datasets, role)
    check_job(job, config.policy, dataset, role)
    return dataset


def find_dataset(name: str, datasets: Mapping[str, DatasetConfig], role: Role) -> DatasetConfig:
    """Return a dataset of a party.

    Raises:
        PolicyError: the configuration has no dataset of that name.
    """
    dataset = datasets.get(name)
    if dataset is None:
        raise PolicyError(f"the {role} has no dataset named {name}: name another, or add it to the configuration")
    return dataset


def check_job(job: JobConfig, policy: Policy, dataset: DatasetConfig, role: Role) -> None:
    """Check a job's settings.

    Args:
        job: the offered job.
        policy: the policy of this party.
        dataset: this party's dataset that the job names.
        role: the role of this party.

    Raises:
        PolicyError: the policy does not allow the job.
    """
    _check_dataset(job.name, job.dataset, dataset, role)
    if job.protocol not in policy.protocols:
        raise refusal(
            role,
            "policy.protocols",
            f"the setting allows {' and '.join(policy.protocols)}; the job has `protocol: {job.protocol}`",
        )
    if job.start_from is not None and not policy.share_earlier_weights:
        raise refusal(
            role, "policy.share_earlier_weights", "the job starts from an earlier model: leave out `start_from`"
        )
    weighting = [] if dataset.label is None else dataset.label.weighting
    if job.protocol == "paillier" and weighting:
        raise refusal(
            role,
            f"datasets.{job.dataset}.{weighting[0]}",
            "a ciphertext holds many rows and can only be multiplied as a whole, so all rows count alike: set"
            " `protocol: shares` in the job, or remove the setting",
        )
    if job.protocol == "paillier" and job.key_bits < policy.min_key_bits:
        raise _too_small(role, "min_key_bits", policy.min_key_bits, "the job has", job.key_bits)
    if not job.aligned and policy.max_ids_a_day == 0:
        raise refusal(role, "policy.max_ids_a_day", "IDs are not compared: align the tables, and set `aligned: true`")
    if job.epochs > policy.max_epochs:
        raise _too_large(role, "max_epochs", policy.max_epochs, f"the job has {job.epochs}", job.epochs)
    if job.n_fits > policy.max_fits:
        has = f"{Counted(len(job.penalties)):penalty|penalties} with {job.folds} folds: {job.n_fits} fits"
        raise _too_large(role, "max_fits", policy.max_fits, has, job.n_fits)
    if job.batch == "all":
        _check_rounds(job, policy, 1, role)
    else:
        _check_batch("the job's batch has", job.batch, policy, role)
    if job.curvature_batch is not None:
        _check_batch("the job's curvature batch has", job.curvature_batch, policy, role)
    if job.inference and not policy.share_inference:
        raise refusal(
            role,
            "policy.share_inference",
            f"the {role} does not let the other party learn the accuracy of its weights: set `inference: false` in the"
            " job",
        )
    evaluations = max_evaluations(job)
    if evaluations > policy.max_evaluations:
        has = f"{job.epochs} epochs have {evaluations} evaluations, and fewer with a larger `evaluate_every`"
        raise _too_large(role, "max_evaluations", policy.max_evaluations, has, evaluations)
    if job.holdout == "column" and dataset.split is not None and not policy.share_split:
        raise refusal(
            role,
            "policy.share_split",
            f"the {role} does not tell the other party what its split column says about each row: set `holdout` to a"
            " share of the rows in the job",
        )
    decides = (
        role is Role.GUEST
        if job.fold_by == "label"
        else job.fold_by != "random" and dataset.folds is not None and dataset.folds.by == job.fold_by
    )
    if decides and not policy.share_folds:
        raise refusal(
            role,
            "policy.share_folds",
            f"the {role} does not tell the other party in which fold each row lies: set `fold_by: random` in the job",
        )
    if role is Role.HOST and job.choose == "auc" and not policy.share_fold_scores:
        raise refusal(
            role,
            "policy.share_fold_scores",
            "the host does not let the guest learn the scores of training rows: set `choose: log_loss` in the job",
        )
    if job.task == "bins":
        if role is Role.HOST and policy.share_bins == "none":
            raise refusal(
                role,
                "policy.share_bins",
                "the guest may not see the labels in the host's bins: set it to `guest` at the host, or start no bins"
                " job",
            )
        return  # No score of a hold-out row leaves.
    if role is Role.HOST and job.holdout != 0:
        if not policy.share_holdout_scores:
            raise refusal(
                role,
                "policy.share_holdout_scores",
                "the host does not share scores of hold-out rows: set `holdout: 0` in the job",
            )
        if job.holdout != "column" and job.holdout > policy.max_holdout:
            raise _too_large(role, "max_holdout", policy.max_holdout, f"the job has {job.holdout}", job.holdout)


def check_sizes(job: JobConfig, policy: Policy, n_train: int, role: Role, folds: RoleVector | None = None) -> None:
    """Check a job against the size of this party's table.

    Args:
        job: the offered job.
        policy: the policy of this party.
        n_train: number of training rows, at least one batch.
        role: the role of this party.
        folds: the fold of each training row, if a party decides it.

    Raises:
        PolicyError: the policy does not allow the job on a table of this size.
    """
    for has, size in _batches(job, n_train, folds):  # The coordinator sees the gradient of each, in both protocols.
        _check_batch(has, size, policy, role)
    _check_rounds(job, policy, Batches.of(job, n_train).count, role)


def max_peer_features(job: JobConfig, policy: Policy, n_train: int) -> int:
    """Return how many features the other party may have: its step, or its final weights, has one number for each.

    Args:
        job: the offered job.
        policy: of this party.
        n_train: number of training rows, at least one batch.
    """
    return min(size for _, size in _shown_to_peer(job, n_train)) // policy.min_rows_per_feature


def check_peer(
    job: JobConfig, policy: Policy, n_train: int, n_columns: int, role: Role, *, secrecy: LabelSecrecy | None
) -> None:
    """Check a job by itself against the number of the other party's training columns.

    Args:
        job: the offered job.
        policy: of this party.
        n_train: number of training rows, at least one batch.
        n_columns: see `check_peer_columns`.
        role: of this party.
        secrecy: at the guest, of its labels; see `label_secrecy`.

    Raises:
        PolicyError: the policy does not allow so many columns.
    """
    check_peer_columns(job, policy, n_train, n_columns, role)
    if secrecy is not None:
        check_label_secrecy(job, policy, secrecy, n_columns)


def label_secrecy(job: JobConfig, block: TrainingBlock, *, secret_start: bool) -> LabelSecrecy | None:
    """Measure the labels of the guest in a job; None at the host.

    Args:
        job: the job.
        block: this party's rows.
        secret_start: whether the guest's first weights are secret, as in all jobs under the Paillier protocol but those
            that 0.1.0 began.
    """
    if block.labels is None:
        return None
    if job.protocol == "shares":
        labels = [one.labels for one in block.one_vs_rest() if one.labels is not None]
        told = told_by(job, with_table=False)
        models = [LabelSecrecy.of_result(each, block.sample_weights, told) for each in labels]
        least = min(models, key=lambda each: each.batch_bits[0])
        return replace(least, n_models=len(models), has_inference=job.inference)
    return LabelSecrecy.of(block.columns, block.labels, Batches.of(job, len(block.columns)), secret_start=secret_start)


def check_peer_columns(job: JobConfig, policy: Policy, n_train: int, n_columns: int, role: Role) -> None:
    """Check a job's batches against the number of the other party's training columns.

    Args:
        job: the offered job.
        policy: of this party.
        n_train: number of training rows, at least one batch.
        n_columns: training columns of the other party. Each category and each missing indicator is one. The guest's
            intercept does not count.
        role: of this party.

    Raises:
        PolicyError: the policy does not allow so many columns.
    """
    check_peer_features(job, policy, n_train, n_columns - int(role is Role.HOST and job.intercept), role)


def check_peer_features(job: JobConfig, policy: Policy, n_train: int, n_features: int, role: Role) -> None:
    """Check a job against the number of the other party's features; see `check_peer_columns`."""
    peer = Role.GUEST if role is Role.HOST else Role.HOST
    needed = policy.min_rows_per_feature * n_features
    for has, size in _shown_to_peer(job, n_train):
        if size < needed:
            raise refusal(
                role,
                "policy.min_rows_per_feature",
                f"the minimum is {policy.min_rows_per_feature} rows for each of the {n_features} features of the"
                f" {peer}, {needed} rows; {has} {size}, which allows {size // policy.min_rows_per_feature} features"
                + (f"; {size // n_features} would allow it" if size >= 2 * n_features else ""),
            )


def check_label_secrecy(job: JobConfig, policy: Policy, secrecy: LabelSecrecy, n_host: int) -> None:
    """Check, at the guest, that the host's sums do not determine the labels.

    The text of the error says nothing about the labels except that they do not suffice. Its notes, which stay with the
    guest, say what would.

    Args:
        job: the offered job.
        policy: of the guest.
        secrecy: of the guest's labels in this job.
        n_host: training columns of the host.

    Raises:
        PolicyError: the labels of a batch have too little entropy for so many equations.
    """
    bits = policy.min_label_bits
    if bits == 0 or secrecy.n_equations(n_host) <= secrecy.max_equations(bits):
        return
    # The batches matter only to a host that sees the sums of each.
    is_whole = job.batch == "all" or job.protocol == "shares"
    way_out = "more rows or fewer columns" if is_whole else "larger batches, `batch: all` or fewer columns"
    way_out += " or `inference: false`" if job.inference else ""
    shown = "weights" if job.protocol == "shares" else "steps"
    error = refusal(
        Role.GUEST,
        "policy.min_label_bits",
        f"from its {shown}, a host with {_columns(n_host)} could learn too much about the labels: try {way_out}; the"
        " guest's log has the numbers",
    )
    error.add_note(describe_secrecy(secrecy, bits, Entry(), n_host))
    raise error


def describe_secrecy(secrecy: LabelSecrecy, bits_per_equation: float, given: Entry, n_host: int | None = None) -> str:
    """Describe what the labels allow, for the guest alone: how many rows have each label follows from the numbers.

    Args:
        secrecy: of the guest's labels in a job.
        bits_per_equation: `policy.min_label_bits`, above 0.
        given: what earlier trainings have given.
        n_host: training columns of a host that is refused; None to leave out how large its batches should be.
    """
    n_batches, least = len(secrecy.batch_bits), min(secrecy.batch_bits)
    whose = "the labels have" if n_batches == 1 else f"of {n_batches} batches, the one with the least has"
    most = secrecy.max_equations(bits_per_equation)
    earlier = f", {given.equations:,} of them given (trainings: {given.trainings:,})" if given.trainings else ""
    beside = f"; the secret start covers {secrecy.n_secret} further ones"
    if secrecy.n_told:
        told = "the loss" if secrecy.n_told == N_TOLD else "the loss and the rounds of each fit"
        beside = f"; {Counted(secrecy.n_told):equation is|equations are} {told} that the host is told"
    if secrecy.has_inference:
        beside += "; with `inference`, each pair of the host's columns is one more"
    text = (
        f"{whose} {least:,.1f} bits of entropy, enough for {most:,} equations{earlier}{beside}: policy.min_label_bits"
        f" allows the host {secrecy.max_host_columns(most - given.equations):,} columns"
    )
    if n_host is not None and least > 0:
        times = bits_per_equation * replace(secrecy, n_secret=0).n_equations(n_host) / n_batches / least
        are = "is" if n_host == 1 else "are"
        text += f"; {_columns(n_host)} {are} sure to be allowed with {times:.1f} times as many rows in each batch"
    return text


def _columns(count: int) -> str:
    return "one column" if count == 1 else f"{count} columns"


def _shown_to_peer(job: JobConfig, n_train: int) -> list[tuple[str, int]]:
    """Return each kind of set of rows of which the other party sees sums, with its size, worded for a refusal.

    Under the protocol on shares, the other party sees no gradient of a batch. Its final weights are a function of all
    training rows.
    """
    return [("the training set has", n_train)] if job.protocol == "shares" else _batches(job, n_train)


def _batches(job: JobConfig, n_train: int, folds: RoleVector | None = None) -> list[tuple[str, int]]:
    """Return each kind of batch with its size, worded for a refusal."""
    sizes = [("a batch has", n_train if job.batch == "all" else job.batch)]
    if job.folds is not None:  # The difference of two gradients at one point is a sum over a fold.
        least = n_train // job.folds if folds is None else int(np.bincount(folds, minlength=job.folds).min())
        sizes = [("a fold has", least)]
    if job.curvature_batch is not None:
        sizes.append(("a curvature batch has", job.curvature_batch))
    return sizes


def check_effective_rows(job: JobConfig, policy: Policy, block: TrainingBlock, role: Role) -> None:
    """Check that no few rows make up most of a batch by their weights: the coordinator sees a mean over each batch.

    The text of the error says nothing about the weights except that they are too uneven. A note for the guest has the
    number.

    Args:
        job: the offered job.
        policy: the policy of this party.
        block: this party's rows. Rows without weights pass: `check_sizes` has checked their number.
        role: the role of this party.

    Raises:
        PolicyError: the policy does not allow it.
    """
    if block.sample_weights is None:
        return
    batches = Batches.of(job, len(block.columns), block.folds)
    parts = [batches.part_rows(number) for number in range(batches.n_parts)]
    least = min(n_effective(block.sample_weights[rows]) for rows in parts)
    if least >= policy.min_batch:
        return
    error = refusal(
        role,
        "policy.min_batch",
        f"the minimum is {policy.min_batch}, and by the weights of its rows a batch counts as fewer rows: use larger"
        " batches or more even weights; the guest's log has the number",
    )
    error.add_note(f"a batch counts as {least:,.1f} rows of equal weight")
    raise error


def check_holdout(job: JobConfig, policy: Policy, n_holdout: int, role: Role) -> None:
    """Check the number of hold-out rows at the guest: the coordinator is told their loss and, under Paillier, AUC.

    Args:
        job: the offered job.
        policy: the policy of this party.
        n_holdout: number of hold-out rows.
        role: the role of this party.

    Raises:
        PolicyError: the policy does not allow an evaluation on so few rows.
    """
    if role is Role.GUEST and job.evaluate_every is not None and n_holdout < policy.min_batch:
        raise _too_small(
            role, "min_batch", policy.min_batch, "the hold-out on which the job is evaluated has", n_holdout
        )


def check_chosen_rows(job: JobConfig, role: Role) -> None:
    """Check a job in which the other party chooses the rows.

    Under the Paillier protocol, the host sees the log loss of each evaluation. If it chose rows whose labels it is
    sure of, and one other row, the loss would show the label of that row.

    Args:
        job: the offered job.
        role: the role of this party.

    Raises:
        PolicyError: the guest does not allow evaluations on rows that the host chooses.
    """
    if role is Role.GUEST and job.protocol == "paillier" and job.evaluate_every is not None:
        raise PolicyError(
            "the guest refuses the job: the host's split column chooses the rows whose log loss the evaluations tell:"
            " set `protocol: shares`, remove `evaluate_every`, or let the guest have the split column"
        )


def check_split(job: JobConfig, policy: Policy, data: PartyData, role: Role) -> None:
    """Check how many rows a split column holds out, for which the host gives scores.

    Args:
        job: the offered job.
        policy: the policy of this party.
        data: this party's rows.
        role: the role of this party.

    Raises:
        PolicyError: the policy does not allow a job that holds out so many.
    """
    if role is not Role.HOST or job.holdout != "column":
        return
    share = data.block.n_scored / data.n_rows
    if share > policy.max_holdout:
        least = math.ceil(share * 1000) / 1000
        raise _too_large(role, "max_holdout", policy.max_holdout, "the split column holds out more", least)


def check_prediction(
    job: str, name: str, datasets: Mapping[str, DatasetConfig], policy: Policy, role: Role, *, n_reasons: int = 0
) -> DatasetConfig:
    """Check that the rows of a dataset may be scored.

    Args:
        job: name of the job whose model would score them.
        name: the name of the dataset.
        datasets: all datasets of this party.
        policy: the policy of this party.
        role: the role of this party.
        n_reasons: how many of the host's reason codes the guest wants for each row.

    Returns:
        The dataset.

    Raises:
        PolicyError: this party has no such dataset, or its policy does not allow the prediction.
    """
    if role is Role.HOST and not policy.allow_prediction:
        raise refusal(
            role,
            "policy.allow_prediction",
            "the host gives no scores for predictions; to allow them, it sets this line to true",
            PREDICTION,
        )
    if role is Role.HOST and n_reasons > policy.max_reasons:
        raise refusal(
            role,
            "policy.max_reasons",
            f"the maximum is {policy.max_reasons} reason codes of a row; {n_reasons} asked for: ask for fewer",
            PREDICTION,
        )
    dataset = find_dataset(name, datasets, role)
    _check_dataset(job, name, dataset, role, PREDICTION)
    return dataset


def holdout_scores(job: JobConfig, n_holdout: int, role: Role, n_test: int = 0) -> int:
    """Return how many scores of its hold-out rows a job takes from this party.

    The host gives its scores at each evaluation and at the end; the guest gives none. Under the protocol on shares, the
    evaluations during a training give no scores, but a loss to the coordinator.

    Args:
        job: the job.
        n_holdout: number of hold-out rows.
        role: the role of this party.
        n_test: number of rows of the further evaluation sets, which are scored at the end.
    """
    n_points = scored_points(job, n_holdout, role)
    return n_holdout * n_points + (n_test if n_points else 0)


def scored_points(job: JobConfig, n_holdout: int, role: Role) -> int:
    """Return at how many points a job scores hold-out rows of this party at most; see `holdout_scores`."""
    if role is not Role.HOST or not n_holdout:
        return 0
    return job.n_models if job.protocol == "shares" else max_evaluations(job) + 1


def fold_points(job: JobConfig, role: Role) -> int:
    """Return at how many points a job scores each training row of this party: with `choose: auc`, by each penalty.

    A row lies in one fold. So it is scored by one model for each penalty, although each fold has models of its own.
    """
    return len(job.penalties) if role is Role.HOST and job.choose == "auc" else 0


def check_scores(count: int, quota: ScoreQuota, what: str) -> None:
    """Check that `count` scores may still leave the host today, without spending them.

    Args:
        count: number of scores.
        quota: the host's counter.
        what: asks for the scores: `JOB` or `PREDICTION`.

    Raises:
        PolicyError: fewer are left.
        ConfigError: the counter cannot be read.
    """
    _check_left(count, quota, Role.HOST, what)


def check_ids(count: int, quota: IdQuota, role: Role, what: str = JOB) -> None:
    """Check that the other party may still bring so many IDs today, without counting them; see `spend_ids`.

    `what` asks for them: `JOB` or `PREDICTION`.
    """
    _check_left(count, quota, role, what)


def _check_left(count: int, quota: DayQuota, role: Role, what: str) -> None:
    if quota.limit < UNLIMITED and count > quota.limit - quota.today().given:
        raise _too_many(count, quota, role, what)


def check_counted(quota: DayQuota, role: Role, what: str) -> None:
    """Check that what was counted today is still permitted: the limit may have been lowered since.

    Args:
        quota: a counter of this party.
        role: the role of this party.
        what: asks for more of what was counted: `JOB`, `PREDICTION` or `ALIGNMENT`.

    Raises:
        PolicyError: more was counted than the limit permits now.
        ConfigError: the counter cannot be read.
    """
    _check_left(0, quota, role, what)


def spend_scores(count: int, quota: ScoreQuota, what: str) -> int:
    """Count scores as given, before they leave the host.

    Args:
        count: number of scores.
        quota: the host's counter.
        what: asks for the scores: `JOB` or `PREDICTION`.

    Returns:
        How many are left today.

    Raises:
        PolicyError: fewer are left, and nothing was counted.
        ConfigError: the counter cannot be read or written.
    """
    left = quota.spend(count)
    if left is None:
        raise _too_many(count, quota, Role.HOST, what)
    return left


def spend_ids(count: int, quota: IdQuota, role: Role) -> None:
    """Count the IDs that the other party brings to an alignment, before any is compared.

    Args:
        count: number of IDs.
        quota: this party's counter.
        role: the role of this party.

    Raises:
        PolicyError: fewer are left today, and nothing was counted.
        ConfigError: the counter cannot be read or written.
    """
    if quota.spend(count) is None:
        raise _too_many(count, quota, role, ALIGNMENT)


# --- refusals


def _too_many(count: int, quota: DayQuota, role: Role, what: str) -> PolicyError:
    today = quota.today()
    left = max(quota.limit - today.given, 0)
    why = (
        f"the maximum is {quota.limit} {quota.unit} a day; {left} left until {today.end:%Y-%m-%d %H:%M} UTC,"
        f" {count} needed; {today.given + count} would allow it today"
    )
    return refusal(role, quota.setting, why, what)


def _check_dataset(job: str, name: str, dataset: DatasetConfig, role: Role, what: str = JOB) -> None:
    if not any(fnmatchcase(job, pattern) for pattern in dataset.jobs):
        raise refusal(role, f"datasets.{name}.jobs", f"the setting does not include a job named {job}", what)


def _check_batch(has: str, size: int, policy: Policy, role: Role) -> None:
    if size < policy.min_batch:
        raise _too_small(role, "min_batch", policy.min_batch, has, size)


def _check_rounds(job: JobConfig, policy: Policy, n_batches: int, role: Role) -> None:
    rounds = max_rounds(job, n_batches)
    if rounds > policy.max_rounds:
        parts = f"{n_batches} batches" if job.classes is None else f"{job.classes} classes"
        has = f"{job.epochs} epochs of {parts} have {rounds} rounds"
        if job.folds is not None:
            has = f"{job.n_fits} fits of {job.epochs} epochs have {rounds} rounds"
        raise _too_large(role, "max_rounds", policy.max_rounds, has, rounds)


def _too_small(role: Role, line: str, minimum: int, has: str, value: int) -> PolicyError:
    return refusal(role, f"policy.{line}", f"the minimum is {minimum}; {has} {value}")


def _too_large(role: Role, line: str, maximum: float, has: str, value: float) -> PolicyError:
    return refusal(role, f"policy.{line}", f"the maximum is {maximum}; {has}; {value} would allow it")


def refusal(role: Role, line: str, why: str, what: str = JOB) -> PolicyError:
    """Return the error that refuses something.

    Args:
        role: the party that refuses it.
        line: name of the setting.
        why: the reason and the way out.
        what: `JOB`, `PREDICTION` or `ALIGNMENT`.
    """
    return PolicyError(f"the {role} refuses {what} under {line}: {why}")
