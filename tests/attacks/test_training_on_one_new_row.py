"""The host reads the label of one new row from the difference of two models, whose trainings differ in this row alone.

At the minimum, a new row with columns x and residual r = sigma(u) - y moves the weights by about -H^-1 x r / n. H^-1 is
positive definite, so the change along x has the sign of -r, which is that of the label. The host chooses its own values
of the row: extreme ones, without clipping, make its part of x outweigh the guest's. It makes no difference whether the
second training starts from the first model, nor whether the new table has another name. Nor does it help the guest that
its new table calls the other value of the label the positive one: all weights change their sign.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.three_servers import LENIENT, make_configs, serving, train_over_localhost
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import LabelConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import LEDGER
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED

N_ROWS, N_HOST = 400, 2
LABELS = [1, 0, 0, 1]
"""Of the new rows."""
EXTREME = np.array([2.5, -2.5])
"""The host's values of each new row, for which the model leaves both labels open."""
MAY = JobConfig(name="may", dataset="may", protocol="shares", holdout=0.0, tolerance=1e-7, epochs=40)
Configs = dict[Role, ProcessConfig]


def june(number: int, *, warm: bool, named_anew: bool = True) -> JobConfig:
    """Return the job on the rows of May and one new row."""
    name = f"june-{number}"
    settings: dict[str, Any] = {"name": name, "start_from": "may" if warm else None}
    return MAY.model_copy(update=settings | ({"dataset": name} if named_anew else {}))


def write(folder: Path) -> dict[Role, dict[str, Path]]:
    """Write the tables of May and, for each new row, a table with this row."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(N_ROWS + len(LABELS), N_HOST + 1))
    y = (X.sum(axis=1) + rng.logistic(size=len(X)) > 0).astype(int)
    X[N_ROWS:, :N_HOST], y[N_ROWS:] = EXTREME, LABELS
    table = pd.DataFrame(X, columns=["x0", "x1", "z"]).assign(label=y, id=[f"id-{row:04}" for row in range(len(X))])
    own = {Role.HOST: ["id", "x0", "x1"], Role.GUEST: ["id", "z", "label"]}
    rows = {"may": [*range(N_ROWS)]} | {
        f"june-{number}": [*range(N_ROWS), N_ROWS + number] for number in range(len(LABELS))
    }
    paths: dict[Role, dict[str, Path]] = {role: {} for role in PARTIES}
    for role, columns in own.items():
        for name, some in rows.items():
            paths[role][name] = folder / f"{role}-{name}.csv"
            table.loc[some, columns].to_csv(paths[role][name], index=False)
    return paths


def world(folder: Path, guest: Policy, *, lax_host: bool, swapped: bool = False) -> Configs:
    """Return the three configurations; `swapped` has the guest's label in the tables of June the other way round."""
    configs, paths = make_configs(folder), write(folder)
    policies = {Role.HOST: Policy(**LENIENT) if lax_host else Policy(), Role.GUEST: guest}
    for role in PARTIES:
        dataset = configs[role].datasets.popitem()[1]
        label = LabelConfig() if role is Role.GUEST else None
        other_label = LabelConfig(positive="0", negative="1") if swapped and label else label
        preprocessing = PreprocessingConfig(clip=None)
        datasets = {
            name: dataset.model_copy(
                update={
                    "path": path,
                    "label": label if name == "may" else other_label,
                    "preprocessing": preprocessing,
                }
            )
            for name, path in paths[role].items()
        }
        configs[role] = configs[role].model_copy(update={"datasets": datasets, "policy": policies[role]})
    return configs


def hosts_weights(configs: Configs, job: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.array([*load_model(JobFolder(configs[Role.HOST].state, job).model).weights.values()])


WITHOUT_RULE = Policy(min_changed_rows=0)
"""The guest's policy without the rule, which is otherwise the default."""


@pytest.mark.parametrize("lax_host", [False, True], ids=["default host", "lax host"])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
async def test_without_the_rule_the_label_of_each_new_row_is_read(tmp_path: Path, warm: bool, lax_host: bool) -> None:
    host = Policy(**LENIENT) if lax_host else WITHOUT_RULE
    configs = world(tmp_path, WITHOUT_RULE, lax_host=lax_host)
    configs[Role.HOST] = configs[Role.HOST].model_copy(update={"policy": host})
    found = []
    async with serving(configs) as client:
        assert (await train_over_localhost(client, MAY)).state == JOB_STATE_FINISHED
        for number in range(len(LABELS)):
            job = june(number, warm=warm)
            status = await train_over_localhost(client, job)
            assert status.state == JOB_STATE_FINISHED, status.detail
            change = hosts_weights(configs, job.name) - hosts_weights(configs, "may")
            found.append(int(change @ EXTREME > 0))
    assert found == LABELS


@pytest.mark.parametrize("lax_host", [False, True], ids=["default host", "lax host"])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("named_anew", [True, False], ids=["another name", "the same name"])
async def test_the_guests_default_policy_refuses_a_training_with_one_new_row(
    tmp_path: Path, warm: bool, lax_host: bool, named_anew: bool
) -> None:
    configs = world(tmp_path, Policy(), lax_host=lax_host)
    async with serving(configs) as client:
        assert (await train_over_localhost(client, MAY)).state == JOB_STATE_FINISHED
    if not named_anew:  # The guest has replaced its table by one with the new row, and so has the host.
        for role in PARTIES:
            datasets = configs[role].datasets
            configs[role] = configs[role].model_copy(update={"datasets": datasets | {"may": datasets["june-0"]}})
    async with serving(configs) as client:
        status = await train_over_localhost(client, june(0, warm=warm, named_anew=named_anew))
    assert status.state == JOB_STATE_FAILED
    assert "under policy.min_changed_rows: fewer than about 20 training rows differ from those of" in status.detail
    assert not JobFolder(configs[Role.HOST].state, "june-0").model.exists()
    entries = json.loads((configs[Role.GUEST].state / LEDGER).read_text())["datasets"]
    assert {name: each["trainings"] for name, each in entries.items()} == {"may": 1}


@pytest.mark.parametrize("protected", [True, False])
async def test_a_label_that_is_written_the_other_way_round_hides_no_row(tmp_path: Path, protected: bool) -> None:
    """Under `shares`, the comparison of folds, which knows no labels, would refuse these jobs as well."""
    configs = world(tmp_path, Policy() if protected else WITHOUT_RULE, lax_host=True, swapped=True)
    found = []
    async with serving(configs) as client:
        first = MAY.model_copy(update={"protocol": "paillier"})
        assert (await train_over_localhost(client, first)).state == JOB_STATE_FINISHED
        for number in range(len(LABELS)):
            job = june(number, warm=False).model_copy(update={"protocol": "paillier"})
            status = await train_over_localhost(client, job)
            if protected:
                assert "under policy.min_changed_rows" in status.detail
                continue
            assert status.state == JOB_STATE_FINISHED, status.detail
            change = -hosts_weights(configs, job.name) - hosts_weights(configs, "may")
            found.append(int(change @ EXTREME > 0))
    assert protected or found == LABELS


async def test_under_one_name_the_ledger_ends_the_trainings_even_without_the_rule(tmp_path: Path) -> None:
    configs = world(tmp_path, WITHOUT_RULE, lax_host=True)
    async with serving(configs) as client:
        assert (await train_over_localhost(client, MAY)).state == JOB_STATE_FINISHED
        statuses = [await train_over_localhost(client, june(n, warm=True, named_anew=False)) for n in range(3)]
    refused = [status.detail for status in statuses if status.state == JOB_STATE_FAILED]
    assert refused
    assert all("policy.min_label_bits" in detail for detail in refused)
    entries = json.loads((configs[Role.GUEST].state / LEDGER).read_text())["datasets"]
    assert entries["may"]["equations"] == entries["may"]["trainings"] * (N_HOST + 1)
