"""The result of the demo, compared with models that a single organisation with all columns would get."""

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression

from trilateral.cli.results import add_metrics, metrics_table
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import LabelConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.assessment import assess
from trilateral.common.data.model.model_file import PartyModel, load_model
from trilateral.common.data.party_data import make_block
from trilateral.common.data.tables.table import read_table
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.party_record import read_start
from trilateral.common.protocol.evaluation import HoldoutMetrics, measure
from trilateral.coordinator.numpy_training import JoinedTable, join, train_plain
from trilateral.demo.files import JOB, DemoFiles


def print_report(files: DemoFiles, console: Console) -> None:
    """Print each party's part of the model, then the figures of three ways to train it."""
    job = load_job(files.job)
    configs = {role: load_process_config(files.config(role), {}) for role in PARTIES}
    models = {role: load_model(JobFolder(configs[role].state, JOB).model) for role in PARTIES}
    _print_parts(models, console)

    joined = _join(configs, job, whiten=True)
    start = read_start(configs[Role.GUEST].state, JOB)
    plain = train_plain(job, joined.columns, joined.labels, joined.penalty, start=start).coef
    federated = np.concatenate([models[role].training_weights for role in PARTIES])
    table = metrics_table("On the hold-out rows, which took no part in the training")
    federated_metrics = models[Role.GUEST].metrics
    if federated_metrics is not None:
        add_metrics(table, "federated, encrypted", federated_metrics)
    scores = joined.holdout_scores(plain)
    plain_metrics = assess(scores, joined.holdout_labels, LabelConfig(), joined.labels, intercept=job.intercept).metrics
    if plain_metrics is not None:
        add_metrics(table, "plain numpy, columns joined", plain_metrics)
    add_metrics(table, "scikit-learn, columns joined", _scikit_learn(_join(configs, job, whiten=False), job))
    console.print()
    console.print(table)
    # A terminal wraps long lines. A pipe gets whole lines.
    whole_lines = not console.is_terminal
    console.print(
        "Largest difference between a weight of the federated model and of plain numpy: "
        f"{np.abs(federated - plain).max():.1e} (training units)",
        highlight=False,
        soft_wrap=whole_lines,
    )
    console.print(
        "scikit-learn minimises the logistic loss itself. The other two minimise its second-order Taylor form, which "
        "can be computed under encryption, and calibrate their probabilities on the hold-out rows.",
        highlight=False,
        soft_wrap=whole_lines,
    )


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


def _scikit_learn(joined: JoinedTable, job: JobConfig) -> HoldoutMetrics:
    """Fit the logistic loss itself, not its Taylor form, on standardised columns with the same penalty.

    scikit-learn minimises C * (sum of losses) + ||beta||^2 / 2. The project minimises the mean loss plus
    lambda ||beta||^2 / 2.
    """
    inverse_penalty = np.inf if job.l2 == 0 else 1 / (job.l2 * len(joined.labels))
    # The guest's last column is the intercept. scikit-learn adds its own, without a penalty.
    model = LogisticRegression(C=inverse_penalty, max_iter=10_000).fit(joined.columns[:, :-1], joined.labels)
    return measure(model.decision_function(joined.holdout_columns[:, :-1]), joined.holdout_labels)
