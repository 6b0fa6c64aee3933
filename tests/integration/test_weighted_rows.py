"""Weights of the guest's rows over three servers: the model is that of scikit-learn, and nobody else sees a weight."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from tests.support.three_servers import (
    DATASET,
    load_tables,
    make_configs,
    serving,
    train_over_localhost,
    trained_coef,
    write_tables,
)
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import LabelConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.party_data import split_rows
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED

JOB = JobConfig(name="weighted", dataset=DATASET, protocol="shares", tolerance=1e-7)
Configs = dict[Role, ProcessConfig]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    """1,500 rows with weights in the guest's table, which also balances the labels."""
    guest = write_tables(tmp_path, n_rows=1500)[Role.GUEST]
    guest["exposure"] = np.random.default_rng(3).lognormal(size=1500)
    guest.to_csv(tmp_path / f"{Role.GUEST}.csv", index=False)
    return with_label(
        make_configs(tmp_path),
        LabelConfig(positive="yes", negative="no", weight="exposure", class_weight="balanced"),
    )


def with_label(configs: Configs, label: LabelConfig) -> Configs:
    guest = configs[Role.GUEST]
    dataset = guest.datasets[DATASET].model_copy(update={"label": label})
    return {**configs, Role.GUEST: guest.model_copy(update={"datasets": {DATASET: dataset}})}


async def test_the_model_is_that_of_scikit_learn_and_no_weight_leaves_the_guest(
    configs: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serving(configs) as client:
            status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FINISHED, status.detail

    tables = load_tables(configs, JOB)
    joined, scaled = tables.joined, tables.guest.block.sample_weights
    assert scaled is not None
    table = pd.read_csv(configs[Role.GUEST].datasets[DATASET].path, dtype={"id": str}).set_index("id")
    train, _ = split_rows(tables.guest.n_rows, JOB, None)
    weights = table["exposure"].sort_index().to_numpy()[train]
    model = LogisticRegression(C=np.inf, class_weight="balanced", fit_intercept=False, solver="newton-cholesky")
    model.fit(joined.columns, joined.labels, sample_weight=weights)
    # The covariance of the coefficients by the sandwich estimator.
    p = model.predict_proba(joined.columns)[:, 1]
    inverse = np.linalg.inv((joined.columns.T * (scaled * p * (1 - p))) @ joined.columns)
    scores = joined.columns.T * (scaled * (p - (joined.labels > 0)))
    errors = np.sqrt(np.diag(inverse @ scores @ scores.T @ inverse))
    assert np.abs((trained_coef(configs, JOB) - model.coef_[0]) / errors).max() < 0.1

    assert load_model(JobFolder(configs[Role.GUEST].state, JOB.name).model).data.weighted
    written = {
        "log": caplog.text.encode(),
        **{
            str(path): path.read_bytes()
            for role in (Role.HOST, Role.COORDINATOR)
            for path in configs[role].state.rglob("*")
            if path.is_file()
        },
    }
    traces = [
        trace for weight in weights[:200] for trace in (repr(float(weight)).encode(), np.float64(weight).tobytes())
    ]
    assert [name for name, content in written.items() if any(trace in content for trace in traces)] == []


async def test_a_wrong_weight_ends_the_job_with_its_column_and_without_its_value(
    configs: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    path = configs[Role.GUEST].datasets[DATASET].path
    table = pd.read_csv(path, dtype={"id": str})
    table.loc[7, "exposure"] = -0.123456789
    table.to_csv(path, index=False)
    with caplog.at_level(logging.DEBUG):
        async with serving(configs) as client:
            status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FAILED
    assert status.detail == (
        "the guest: column 'exposure' has 1 negative weight: correct them, or set them to 0 to leave the rows out of"
        " training"
    )
    assert "the first is in line 9, column 'exposure'" in caplog.text  # in the guest's log
    assert "123456789" not in caplog.text
