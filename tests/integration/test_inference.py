"""Standard errors over three servers: in the model files, on the console, and only if both policies permit them."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.support.three_servers import (
    DATASET,
    load_tables,
    make_configs,
    serving,
    train_over_localhost,
    trained_coef,
    write_tables,
)
from trilateral.cli.results import print_model, print_part
from trilateral.client.model import Model
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.inference import infer
from trilateral.common.data.model.model_file import PartyModel, load_model, save_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED
from trilateral.common.protocol.logistic import slope
from trilateral.common.shares.information import pack

JOB = JobConfig(name="inferred", dataset=DATASET, protocol="shares", inference=True, tolerance=1e-7)
Configs = dict[Role, ProcessConfig]


def permitting(configs: Configs, *parties: Role) -> Configs:
    """Let some parties permit inference."""
    changed = {
        role: configs[role].model_copy(
            update={"policy": configs[role].policy.model_copy(update={"share_inference": True})}
        )
        for role in parties
    }
    return configs | changed


def shown(model: PartyModel) -> str:
    out = io.StringIO()
    print_part(model, Console(file=out, width=160))
    return out.getvalue()


def printed_at_the_end(config: ProcessConfig) -> str:
    out = io.StringIO()
    print_model(config, JOB.name, Console(file=out, width=160), show="SHOW")
    return out.getvalue()


async def test_each_party_has_the_accuracy_of_its_own_weights(tmp_path: Path) -> None:
    write_tables(tmp_path, n_rows=1500)
    configs = permitting(make_configs(tmp_path), *PARTIES)
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FINISHED, status.detail

    joined, coef = load_tables(configs, JOB).joined, trained_coef(configs, JOB)
    X = joined.columns
    exact = np.asarray(np.linalg.inv(X.T @ (X * slope(X @ coef)[:, np.newaxis])), dtype=np.float64)
    parts = {Role.HOST: slice(joined.n_host), Role.GUEST: slice(joined.n_host, None)}
    for role, part in parts.items():
        model = load_model(JobFolder(configs[role].state, JOB.name).model)
        found = model.inference
        assert found is not None
        wanted = infer(model.steps, coef[part], pack(exact[part, part]), [])
        assert list(found.terms) == list(wanted.terms) == list(model.weights)
        for name, each in found.terms.items():
            assert each.weight == pytest.approx(model.weights[name])
            assert each.std_error == pytest.approx(wanted.terms[name].std_error, rel=3e-4)
        assert found.warnings == []
        text = shown(model)
        assert all(heading in text for heading in ("std err", "P>|z|", "[0.025", "0.975]"))
        assert ("McFadden R2" in text) == (role is Role.GUEST)
        assert Model(model).inference == found
        # At the end of the training there is no such table, but its warnings are there.
        at_the_end = printed_at_the_end(configs[role])
        assert "to see the weights and how accurate they are, run: SHOW\n" in at_the_end
        assert "warning" not in at_the_end
        doubtful = model.model_copy(update={"inference": found.model_copy(update={"warnings": ["take care"]})})
        save_model(JobFolder(configs[role].state, JOB.name).model, doubtful)
        assert "warning: take care\n" in printed_at_the_end(configs[role])
        # One equation for each pair of the other party's columns, and those of every training.
        n_peer = len(coef) - len(model.training_weights)
        entry = Ledger(configs[role].state, role).entry(DATASET)
        assert entry.equations == n_peer + 1 + n_peer * (n_peer + 1) // 2
    guest = load_model(JobFolder(configs[Role.GUEST].state, JOB.name).model).inference
    assert guest is not None
    assert guest.fit is not None
    assert guest.fit.n_parameters == len(coef)
    assert guest.fit.deviance == pytest.approx(2 * float(np.logaddexp(0, -joined.labels * (X @ coef)).sum()), rel=1e-4)
    assert guest.intercept is not None


@pytest.mark.parametrize("separates", PARTIES)
async def test_both_parties_see_that_a_feature_separates_the_labels(separates: Role, tmp_path: Path) -> None:
    tables = write_tables(tmp_path, n_rows=400)
    label_of = tables[Role.GUEST].set_index("id")["label"]
    table = tables[separates]
    table["outcome"] = np.where(label_of.loc[table["id"]] == "yes", 1, -1) * (1 + np.arange(len(table)) % 7)
    table.to_csv(tmp_path / f"{separates}.csv", index=False)
    configs = permitting(make_configs(tmp_path), *PARTIES)
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FINISHED, status.detail
    models = {role: load_model(JobFolder(configs[role].state, JOB.name).model) for role in PARTIES}
    for model in models.values():
        assert model.inference is not None
        assert model.inference.may_be_separated
        assert "complete or quasi-complete separation" in shown(model)
        assert f"the {separates}'s part of " in shown(model)
    assert "fit on the training rows, which say nothing if features separate the labels" in shown(models[Role.GUEST])


@pytest.mark.parametrize("permits", PARTIES)
async def test_a_job_with_inference_needs_the_permission_of_both_parties(permits: Role, tmp_path: Path) -> None:
    write_tables(tmp_path, n_rows=300)
    (refuses,) = set(PARTIES) - {permits}
    async with serving(permitting(make_configs(tmp_path), permits)) as client:
        status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FAILED
    assert f"the {refuses} refuses the job under policy.share_inference" in status.detail
