"""Several classes in one session on shares: a model of each class against the rest."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from tests.support.frames import features_of
from tests.support.three_machines import Outcome, Tables, make_machines, run_machines
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.party_data import PreparedData, make_party_data
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import BeginRound, ElementPiece, Kind

N_CLASSES = 3


def make_job(**settings: Any) -> JobConfig:
    return JobConfig(
        **{"name": "housing", "dataset": "made", "protocol": "shares", "classes": N_CLASSES, "tolerance": 1e-9}
        | settings
    )


def make_tables(job: JobConfig, n_rows: int = 400, n_classes: int = N_CLASSES) -> Tables:
    """Correlated columns at both parties, and classes that depend on all of them."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n_rows, 5)) @ (rng.normal(size=(5, 5)) + np.eye(5))
    odds = X @ rng.normal(size=(5, n_classes)) / 2 + rng.gumbel(size=(n_rows, n_classes))
    ids = Ids.of([f"id-{row:06d}" for row in range(n_rows)])

    def party(columns: Any, labels: Any) -> PreparedData:
        features = features_of(pd.DataFrame(columns, columns=[f"x{j}" for j in range(columns.shape[1])]))
        return make_party_data(PartyTable(ids, features, labels), PreprocessingConfig(clip=None), job)

    return Tables(party(X[:, :2], None), party(X[:, 2:], odds.argmax(axis=1).astype(np.float64)))


def train(job: JobConfig, tables: Tables, key: PrivateKey) -> Outcome:
    outcome = run_machines(make_machines(job, tables, key))
    assert outcome.ended.loss is not None, outcome.ended.reason
    return outcome


@pytest.mark.parametrize("settings", [{}, {"intercept": False}, {"l2": 0.1}, {"holdout": 0.0}])
def test_the_model_of_each_class_is_that_of_the_class_against_the_rest(
    settings: dict[str, Any], private_key: PrivateKey
) -> None:
    job = make_job(**settings)
    tables = make_tables(job)
    outcome = train(job, tables, private_key)
    host, guest = (outcome.results[role].coef.reshape(N_CLASSES, -1) for role in (Role.HOST, Role.GUEST))
    X = np.hstack([np.asarray(each.block.columns) for each in (tables.host, tables.guest)])
    held_out = np.hstack([np.asarray(each.block.holdout_columns) for each in (tables.host, tables.guest)])
    labels = tables.guest.block.labels
    assert labels is not None
    scores = outcome.results[Role.GUEST].holdout_scores
    assert scores is not None
    assert scores.shape == (N_CLASSES * len(held_out),)
    losses = []
    for number, (of_class, w) in enumerate(zip(np.split(scores, N_CLASSES), np.hstack([host, guest]), strict=True)):
        y = np.where(labels == number, 1.0, -1.0)
        gradient = X.T @ (1 / (1 + np.exp(-X @ w)) - (y > 0)) / len(y)
        penalty = np.concatenate([np.diag(tables.host.block.penalty), np.diag(tables.guest.block.penalty)]) * job.l2
        np.testing.assert_allclose(gradient + penalty * w, 0, atol=2e-4)
        np.testing.assert_allclose(of_class, held_out @ w, atol=2e-3)
        losses.append(np.logaddexp(0, -y * (X @ w)).mean() + w @ (penalty * w) / 2)
    assert outcome.ended.loss == pytest.approx(np.mean(losses), abs=1e-4)


def test_unpenalised_models_are_those_of_scikit_learn(private_key: PrivateKey) -> None:
    job = make_job(holdout=0.0)
    tables = make_tables(job, n_rows=2000)
    outcome = train(job, tables, private_key)
    coef = np.hstack([outcome.results[role].coef.reshape(N_CLASSES, -1) for role in (Role.HOST, Role.GUEST)])
    X = np.hstack([np.asarray(each.block.columns) for each in (tables.host, tables.guest)])
    labels = tables.guest.block.labels
    for number, w in enumerate(coef):
        model = LogisticRegression(C=np.inf, tol=1e-10).fit(X[:, :-1], labels == number)
        np.testing.assert_allclose(w, [*model.coef_[0], *model.intercept_], atol=5e-3)


def test_columns_and_labels_are_exchanged_once_for_all_classes(private_key: PrivateKey) -> None:
    job = make_job()
    tables = make_tables(job)
    traffic = run_machines(make_machines(job, tables, private_key)).traffic
    masked = [
        (sender, message)
        for sender, _, message in traffic
        if isinstance(message, ElementPiece) and message.kind is Kind.MASKED_COLUMNS
    ]
    n_rows = {sender: message.total for sender, message in masked}
    n_elements = {role: sum(len(each.elements) for sender, each in masked if sender is role) for role in n_rows}
    assert n_elements == {
        Role.HOST: 2 * n_rows[Role.HOST],
        Role.GUEST: (4 + N_CLASSES) * n_rows[Role.GUEST],  # Three columns, ones, and labels.
    }
    begun = [
        message.batch.index for sender, to, message in traffic if isinstance(message, BeginRound) and to is Role.HOST
    ]
    assert sorted(set(begun)) == [0, 1, 2]
    assert begun == sorted(begun)


def test_a_coordinator_that_asks_for_a_class_that_does_not_exist_is_refused(private_key: PrivateKey) -> None:
    job = make_job()

    def tamper(sender: Role, envelope: Any) -> list[Any]:
        if isinstance(envelope.message, BeginRound) and envelope.to is Role.GUEST:
            batch = Batch(envelope.message.batch.epoch, N_CLASSES)
            return [replace(envelope, message=replace(envelope.message, batch=batch))]
        return [envelope]

    ended = run_machines(make_machines(job, make_tables(job), private_key), tamper=tamper).ended
    assert ended.loss is None
    assert "with batch 4 of epoch 1: this job has 30 epochs of 3 batches" in ended.reason
