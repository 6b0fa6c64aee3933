"""Run the services of docker-compose.yml without a container engine; `tests.support.containers` describes how."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.compose import ROOT
from tests.support.containers import Containers
from tests.support.three_servers import check_coef
from tests.support.wan import why_not
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.load import load_job
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.party_data import make_block
from trilateral.common.data.tables.table import read_table
from trilateral.common.jobs.party_record import read_start
from trilateral.coordinator.numpy_training import JoinedTable, join, train_plain
from trilateral.demo.tables import demo_tables

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no containers without namespaces: {why_not()}")


JOB = load_job(ROOT / "configs/compose/job.yaml")


def joined_demo(folder: Path) -> JoinedTable:
    """Return the training columns of the demo's job."""
    blocks = []
    for role, table in demo_tables().items():
        path = folder / f"{role}.csv"
        table.to_csv(path, index=False)
        label = {"column": "diagnosis", "positive": "malignant", "negative": "benign"} if role is Role.GUEST else None
        dataset = DatasetConfig.model_validate({"path": path, "id": "patient", "label": label})
        blocks.append(make_block(read_table(dataset), dataset.preprocessing, JOB))
    return join(*blocks)


@pytest.mark.slow
def test_compose_trains_the_demo_in_containers_that_see_only_their_own_files(tmp_path: Path) -> None:
    result = tmp_path / "compose-result"
    result.mkdir()
    with Containers(tmp_path) as containers:
        told = containers.up("result")

        assert "the result is in the folder compose-result" in told
        models = [load_model(result / role / "model.json") for role in PARTIES]
        coef = np.concatenate([model.training_weights for model in models])
        joined, start = joined_demo(tmp_path), read_start(containers.volume("guest-state"), JOB.name)
        assert start is not None
        plain = train_plain(JOB, joined.columns, joined.labels, joined.penalty, start=start)
        check_coef(coef, plain.coef, joined, JOB)
        histories = [(result / role / "history.jsonl").read_text().splitlines() for role in Role]
        assert len({len(lines) for lines in histories}) == 1
        # The result belongs to the owner of the folder.
        owner = result.stat().st_uid
        assert {path.stat().st_uid for path in result.rglob("*")} == {owner}
        assert all(path.stat().st_mode & 0o444 == 0o444 for path in result.rglob("*"))
        # The state belongs to the servers.
        for path in containers.volume("guest-certs").iterdir():
            assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (10001, 0o600)

        seen = containers.run("host", "find", "/etc/trilateral", "/srv", "/var/lib/trilateral", "/trial", "-type", "f")
        names = {Path(line).name for line in seen.stdout.splitlines()}
        assert {"key.pem", "breast-cancer.csv", "model.json"} <= names
        key = containers.run("host", "cat", "/etc/trilateral/certs/key.pem").stdout
        assert key == (containers.volume("host-certs") / "key.pem").read_text()
        for forbidden in ("/opt/trilateral/new", "/etc/trilateral/certs/new", "/srv/trilateral/new", "/new"):
            assert "Read-only file system" in containers.run("host", "touch", forbidden).stdout

        # The demo acts as the guest on one network only, where it can neither resolve nor reach the host.
        assert "host" not in containers.run("demo", "cat", "/etc/hosts").stdout.replace("localhost", "").split()
        status = containers.run("guest", "trilateral", "status", "demo", "--config", "/etc/trilateral/process.yaml")
        assert status.returncode == 0, status.stdout
        assert "finished" in status.stdout

        assert [containers.stop(role) for role in Role] == [0, 0, 0]
    last = json.loads(histories[-1][-1])
    assert last["loss"] > 0
