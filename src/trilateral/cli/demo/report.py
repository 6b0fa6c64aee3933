"""The result of the demo, compared with models that a single organisation with all columns would get."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression

from trilateral.cli.wording import decimal
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import PartyModel, load_model
from trilateral.common.data.party_data import make_block
from trilateral.common.data.tables.table import read_table
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.party_record import read_start
from trilateral.common.protocol.evaluation import measure
from trilateral.common.protocol.logistic import logistic_loss
from trilateral.coordinator.numpy_training import JoinedTable, join, train_plain
from trilateral.demo.files import JOB, JOB_ON_SHARES, DemoFiles


def print_report(files: DemoFiles, seconds: Mapping[str, float], console: Console) -> None:
    """Print each party's part of the model on shares, then the figures of each way to train a model.

    Args:
        files: the folder of the demo.
        seconds: how long each job took, by its name.
        console: where to print.
    """
    jobs = [load_job(path) for path in (files.job, files.job_on_shares)]
    configs = {role: load_process_config(files.config(role), {}) for role in PARTIES}
    models = {job.name: _load_parts(configs, job) for job in jobs}
    _print_parts(models[JOB_ON_SHARES], console)

    table = Table(title="On the hold-out rows, which took no part in the training", title_justify="left")
    table.add_column("model")
    for column in ("AUC", "log loss", "calibrated", "rounds", "seconds"):
        table.add_column(column, justify="right")
    for job in jobs:
        guest = models[job.name][Role.GUEST]
        if guest.metrics is not None and guest.calibration_report is not None:
            figures = (guest.metrics.auc, guest.calibration_report.before.log_loss, guest.metrics.log_loss)
            table.add_row(job.protocol, *map(_figure, figures), str(guest.rounds), decimal(seconds[job.name], 1))
    standardised = _join(configs, jobs[0], whiten=False)
    scikit_learn = _scikit_learn(standardised, jobs[0])
    metrics = measure(scikit_learn.decision_function(standardised.holdout_columns[:, :-1]), standardised.holdout_labels)
    table.add_row("scikit-learn, columns joined", _figure(metrics.auc), _figure(metrics.log_loss), "", "", "")
    console.print()
    console.print(table)
    for text in _differences(configs, jobs, models, standardised, scikit_learn):
        # A terminal wraps long lines. A pipe gets whole lines.
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def _figure(value: float | None) -> str:
    return "-" if value is None else decimal(value, 4)


def _load_parts(configs: Mapping[Role, ProcessConfig], job: JobConfig) -> dict[Role, PartyModel]:
    return {role: load_model(JobFolder(configs[role].state, job.name).model) for role in PARTIES}


def _differences(
    configs: dict[Role, ProcessConfig],
    jobs: Sequence[JobConfig],
    models: Mapping[str, Mapping[Role, PartyModel]],
    standardised: JoinedTable,
    scikit_learn: LogisticRegression,
) -> Iterator[str]:
    """Say what each protocol minimises, and how close its model is to that of the joined columns."""
    on_ciphertexts, on_shares = jobs
    coef = {name: np.concatenate([parts[role].training_weights for role in PARTIES]) for name, parts in models.items()}
    joined = _join(configs, on_ciphertexts, whiten=True)
    start = read_start(configs[Role.GUEST].state, JOB)
    plain = train_plain(on_ciphertexts, joined.columns, joined.labels, joined.penalty, start=start).coef
    yield (
        "paillier minimises the second-order Taylor form of the logistic loss, which can be computed on ciphertexts, "
        "and calibrates the probabilities on the hold-out rows. Largest difference between a weight and that of plain "
        f"numpy: {np.abs(coef[JOB] - plain).max():.1e} (training units)"
    )
    theirs = np.concatenate([scikit_learn.coef_[0], scikit_learn.intercept_])
    excess = _loss(joined, on_shares, coef[JOB_ON_SHARES]) - _loss(standardised, on_shares, theirs)
    yield (
        "shares minimise the logistic loss itself, as scikit-learn does. Training loss above that of scikit-learn: "
        f"{excess:.1e} (the job has a tolerance of {on_shares.tolerance:.0e})"
    )


def _loss(joined: JoinedTable, job: JobConfig, coef: FloatVector) -> float:
    """Return the logistic loss and the penalty on the training rows."""
    return logistic_loss(joined.columns @ coef, joined.labels) + job.l2 / 2 * float(coef @ joined.penalty @ coef)


def _print_parts(models: dict[Role, PartyModel], console: Console) -> None:
    table = Table(title="Each party has its own part of the model; no party has the whole", title_justify="left")
    for role in PARTIES:
        table.add_column(f"{role}'s feature")
        table.add_column("weight", justify="right")
    rows = [[(name, f"{weight:+.5g}") for name, weight in _weights(models[role])] for role in PARTIES]
    for cells in zip(*rows, strict=True):
        table.add_row(*(text for cell in cells for text in cell))
    console.print(table)


def _weights(model: PartyModel) -> list[tuple[str, float]]:
    return [*model.weights.items(), ("(intercept)", model.intercept)]


def _join(configs: dict[Role, ProcessConfig], job: JobConfig, *, whiten: bool) -> JoinedTable:
    blocks = []
    for role in PARTIES:
        dataset = configs[role].datasets[job.dataset]
        preprocessing = dataset.preprocessing.model_copy(update={"whiten": whiten})
        blocks.append(make_block(read_table(dataset), preprocessing, job))
    return join(*blocks)


def _scikit_learn(joined: JoinedTable, job: JobConfig) -> LogisticRegression:
    """Fit the logistic loss on standardised columns with the same penalty.

    scikit-learn minimises C * (sum of losses) + ||beta||^2 / 2. The project minimises the mean loss plus
    lambda ||beta||^2 / 2.
    """
    inverse_penalty = np.inf if job.l2 == 0 else 1 / (job.l2 * len(joined.labels))
    # The guest's last column is the intercept. scikit-learn adds its own, without a penalty.
    model = LogisticRegression(C=inverse_penalty, tol=1e-10, max_iter=10_000)
    return model.fit(joined.columns[:, :-1], joined.labels)
