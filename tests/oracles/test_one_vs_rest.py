"""A job of three classes over localhost, against scikit-learn's one-vs-rest on the joined table."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix
from sklearn.multiclass import OneVsRestClassifier
from typer.testing import CliRunner

from tests.support.three_servers import DATASET, lenient, make_configs, serving, train_over_localhost
from trilateral import load_model as load_public
from trilateral.cli.main import app
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.checks.tables import check_tables
from trilateral.common.config.dataset import DatasetConfig, LabelConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.data.model.classes import Softmax, class_probabilities
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.quota import ScoreQuota
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.protocol.batches import holdout_split
from trilateral.common.rpc.channel import Peer, new_channel
from trilateral.guest_party.prediction import PredictionPlan, predict

CLASSES = ["own", "rent", "for free"]
JOB = JobConfig(name="housing", dataset=DATASET, protocol="shares", classes=3, tolerance=1e-9, holdout=0.25)
N_ROWS = 2000
Configs = dict[Role, ProcessConfig]


def write_classes(folder: Path) -> pd.DataFrame:
    """Write both parties' tables, and return the joined one in canonical order of the IDs."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(N_ROWS, 5)) @ (rng.normal(size=(5, 5)) + np.eye(5))
    odds = X @ rng.normal(size=(5, 3)) / 2 + rng.gumbel(size=(N_ROWS, 3))
    table = pd.DataFrame(X, columns=list("abcde"))
    table["label"] = np.array(CLASSES)[odds.argmax(axis=1)]
    table.insert(0, "id", [f"{number:06d}" for number in range(N_ROWS)])
    table[["id", "a", "b"]].sample(frac=1, random_state=1).to_csv(folder / "host.csv", index=False)
    table[["id", "c", "d", "e", "label"]].sample(frac=1, random_state=2).to_csv(folder / "guest.csv", index=False)
    return table


def configured(folder: Path, **policy: object) -> Configs:
    configs = make_configs(folder)
    for role in PARTIES:
        label = LabelConfig(classes=CLASSES) if role is Role.GUEST else None
        dataset = DatasetConfig(path=folder / f"{role}.csv", label=label, preprocessing=PreprocessingConfig(clip=None))
        own = {"allow_prediction": True, "min_columns_per_point": 0.2} if role is Role.HOST else {}
        lines = Policy(**lenient(role, min_key_bits=256, **own) | policy)
        configs[role] = configs[role].model_copy(update={"datasets": {DATASET: dataset}, "policy": lines})
    return configs


async def predicted(configs: Configs, out: Path) -> pd.DataFrame:
    host = configs[Role.HOST].listen
    async with new_channel(host, None, "") as channel:
        plan = PredictionPlan(job=JOB.name, dataset=DATASET, out=out, missing=out.with_name("missing.csv"))
        counts = await predict(configs[Role.GUEST], Peer(Role.HOST, host, channel), plan)
    assert counts.n_scored == N_ROWS
    assert counts.calibration == "calibrated by a softmax of the scores of all classes on the hold-out rows"
    return pd.read_csv(out, dtype={"id": str}).set_index("id").sort_index()


@pytest.mark.slow
async def test_classes_are_trained_measured_and_predicted_as_by_scikit_learn(tmp_path: Path) -> None:
    table = write_classes(tmp_path)
    configs = configured(tmp_path)
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)
        assert status.state == JOB_STATE_FINISHED, status.detail
        scores = await predicted(configs, tmp_path / "scores.csv")

    X, y = table[list("abcde")].to_numpy(), table["label"].to_numpy()
    train, holdout = holdout_split(N_ROWS, 0.25, JOB.seed)
    oracle = OneVsRestClassifier(LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)).fit(X[train], y[train])
    host, guest = (load_model(JobFolder(configs[role].state, JOB.name).model) for role in PARTIES)
    assert guest.classes is not None
    assert guest.classes.names == CLASSES
    assert host.classes is not None
    assert host.classes.names is None
    for number, name in enumerate(CLASSES):
        estimator = oracle.estimators_[list(oracle.classes_).index(name)]
        parts = host.of_class(str(number + 1)), guest.of_class(name)
        weights = [*parts[0].weights.values(), *parts[1].weights.values()]
        np.testing.assert_allclose(weights, estimator.coef_[0], atol=5e-3)
        assert parts[0].intercept + parts[1].intercept == pytest.approx(estimator.intercept_[0], abs=5e-3)
        expected = estimator.decision_function(X)
        np.testing.assert_allclose(scores[f"score_{name}"], expected, atol=2e-2)

    # The map is fitted on the hold-out rows, and makes of scores what the file says.
    mapped = guest.classes.calibration
    assert isinstance(mapped, Softmax)
    given = scores[[f"score_{name}" for name in CLASSES]].to_numpy()
    p = scores[[f"probability_{name}" for name in CLASSES]].to_numpy()
    np.testing.assert_allclose(p, class_probabilities(given, mapped))
    assert (scores["class"] == np.array(CLASSES)[p.argmax(axis=1)]).all()
    metrics = guest.classes.metrics
    assert metrics is not None
    plain = confusion_matrix(y[holdout], scores["class"].to_numpy()[holdout], labels=CLASSES)
    assert np.abs(np.array(metrics.confusion) - plain).max() <= 8  # Their maps were fitted without each row.
    assert np.sum(metrics.confusion) == len(holdout)

    # What the host counts: a point for each class, and a score for each row and class.
    entry = Ledger(configs[Role.HOST].state, Role.HOST).entry(DATASET)
    assert (entry.trainings, len(entry.points)) == (1, 3)
    assert entry.equations == 3 * len(host.training_weights) + 3 * 2 + 1
    quota = json.loads((configs[Role.HOST].state / ".scores-given.json").read_text())
    assert quota["given"] == 3 * (N_ROWS + len(holdout))
    assert ScoreQuota.of(configs[Role.HOST]).limit > 0


async def test_what_a_person_reads_names_the_classes(tmp_path: Path) -> None:
    write_classes(tmp_path)
    configs = configured(tmp_path)
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB.model_copy(update={"tolerance": 1e-4}))
        assert status.state == JOB_STATE_FINISHED, status.detail
    run = CliRunner()
    paths = {role: JobFolder(configs[role].state, JOB.name).model for role in PARTIES}
    shown = run.invoke(app, ["model", "show", str(paths[Role.GUEST])], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    for text in (
        "weights for rent against the rest",
        "of each class, by the class with the highest",
        "a softmax of the",
    ):
        assert text in shown.output
    shown = run.invoke(app, ["model", "show", str(paths[Role.HOST])])
    assert "weights for class 3 against the rest" in shown.output
    assert "for free" not in paths[Role.HOST].read_text()

    out = tmp_path / "part.pmml"
    command = ["model", "export", str(paths[Role.GUEST]), "--format", "pmml", "--out", str(out)]
    refused = run.invoke(app, command)
    assert refused.exit_code == 2
    assert "has several classes: name one of them, with --class or `of_class`: own, rent, for free" in refused.output
    assert run.invoke(app, [*command, "--class", "rent"]).exit_code == 0
    weights = load_model(paths[Role.GUEST]).of_class("rent").weights
    assert all(repr(weight) in out.read_text() for weight in weights.values())

    assert load_public(paths[Role.HOST], of_class="2").coef.tolist() == list(
        load_model(paths[Role.HOST]).parts[1].weights.values()
    )
    with pytest.raises(ConfigError, match="has no class 4: it has the classes 1, 2, 3"):
        load_public(paths[Role.HOST], of_class="4")
    with pytest.raises(ConfigError, match="has several classes: name one of"):
        load_public(paths[Role.HOST])


async def test_a_dataset_with_other_classes_than_the_job_is_refused(tmp_path: Path) -> None:
    write_classes(tmp_path)
    async with serving(configured(tmp_path)) as client:
        status = await train_over_localhost(client, JOB.model_copy(update={"classes": 4}))
        assert status.detail == (
            f"the guest: dataset '{DATASET}': the label has 3 values, but the job has `classes: 4`: correct one"
        )


async def test_a_job_that_is_stopped_in_its_second_class_resumes_to_the_same_models(tmp_path: Path) -> None:
    write_classes(tmp_path)
    configs = configured(tmp_path)
    async with serving(configs) as client:
        assert (await train_over_localhost(client, JOB)).state == JOB_STATE_FINISHED
        stopped = JOB.model_copy(update={"name": "stopped"})
        await client.start(stopped)
        async for status in client.watch(stopped.name):
            if status.batch == 2:
                break
        await client.stop(stopped.name)
    async with serving(configs) as client:
        await client.resume(stopped.name)
        async for status in client.watch(stopped.name):
            last = status
    assert last.state == JOB_STATE_FINISHED, last.detail
    for role in PARTIES:
        whole, resumed = (load_model(JobFolder(configs[role].state, name).model) for name in (JOB.name, "stopped"))
        for one, other in zip(whole.parts, resumed.parts, strict=True):
            np.testing.assert_allclose(one.training_weights, other.training_weights, atol=5e-3)


def test_check_counts_the_rows_of_each_class(tmp_path: Path) -> None:
    table = write_classes(tmp_path)
    config = configured(tmp_path)[Role.GUEST]
    found = [finding.text for finding in check_tables(config, None)]
    counts = ", ".join(str((table["label"] == name).sum()) for name in CLASSES)
    assert any(f"rows by class, in the order of `label.classes`: {counts}" in text for text in found)
