"""configs/three-hosts on three hosts: real names in certificates, separate hosts, and a slow network."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.faults.networks import Network
from tests.support.organisations import THREE_HOSTS, Organisations
from tests.support.three_hosts import ProcessesOnWan, addresses_on
from tests.support.three_servers import check_coef
from tests.support.wan import Line, Wan, why_not
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.party_record import read_start
from trilateral.coordinator.numpy_training import train_plain

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no three hosts without namespaces: {why_not()}")

LINE = Line(delay=0.01, bandwidth=20e6)
"""A round trip takes 40 ms, since it crosses two lines in each direction."""


def make_tables() -> dict[Role, pd.DataFrame]:
    """Write tables of 260 people. Each party lacks 20 different ones, and has the rest in its own order."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(260, 5)) @ (rng.normal(size=(5, 5)) + 2 * np.eye(5))
    score = X @ rng.normal(size=5)
    label = (score / np.std(score) + 0.7 * rng.normal(size=len(X)) > 0.2).astype(int)
    people = pd.DataFrame(X, columns=[f"x{j}" for j in range(5)]).assign(label=label)
    people.insert(0, "id", [f"person-{number:03d}" for number in range(len(X))])
    return {
        Role.HOST: people[["id", "x0", "x1", "x2"]].iloc[20:].sample(frac=1, random_state=1),
        Role.GUEST: people[["id", "x3", "x4", "label"]].iloc[:-20].sample(frac=1, random_state=2),
    }


def test_the_first_job_of_three_hosts_trains_the_right_model_over_a_wide_area_network(tmp_path: Path) -> None:
    tables = make_tables()
    shared = {*tables[Role.HOST]["id"]} & {*tables[Role.GUEST]["id"]}
    settings = yaml.safe_load((THREE_HOSTS / "guest/job.yaml").read_text()) | {"key_bits": 512}
    job_file = tmp_path / "job.yaml"
    job_file.write_text(yaml.safe_dump(settings))
    job = load_job(job_file)
    policy = {"min_key_bits": 512}
    organisations = Organisations(tmp_path, tables, policy)

    with Wan(dict.fromkeys(Role, LINE)) as wan:
        configs = organisations.at(addresses_on(wan))
        with ProcessesOnWan(wan, configs, tmp_path) as processes:
            status = Network(configs, processes.operator(), processes).train(job)

    assert list(status.notes) == ["the host has 240 rows, the guest 240; they have 220 in common"]
    models = [load_model(organisations.job_folder(role, job.name).model) for role in PARTIES]
    both = {role: table[table["id"].isin(shared)] for role, table in tables.items()}
    joined = Organisations(tmp_path / "common", both, policy).joined(job)
    holdout = joined.holdout_columns, joined.holdout_labels
    start = read_start(load_process_config(organisations.configs[Role.GUEST], {}).state, job.name)
    plain = train_plain(job, joined.columns, joined.labels, joined.penalty, holdout, n_host=joined.n_host, start=start)
    coef = np.concatenate([model.training_weights for model in models])
    check_coef(coef, plain.coef, joined, job)
    losses = {model.loss for model in models}
    np.testing.assert_allclose(sorted(losses), plain.loss, rtol=0, atol=1e-6)
