"""Three servers as processes of their own, shared by all tests of the API."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

import trilateral
from tests.support.new_rows import NEW, with_new_rows, write_new_rows
from tests.support.three_processes import write_configs
from tests.support.three_servers import DATASET, make_configs, write_tables
from trilateral.common.base.roles import Role
from trilateral.common.trial.localhost import LocalProcesses

N_COMMON, N_ONLY = 60, 15
TRAINED = "trained"


@dataclass(frozen=True)
class World:
    """Three organisations, and a job that has finished."""

    files: dict[Role, Path]
    """Each process's configuration."""
    rows: dict[Role, pd.DataFrame]
    """New rows to score, of each party."""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    rows = write_new_rows(folder, write_tables(folder), n_common=N_COMMON, n_only=N_ONLY)
    configs = make_configs(folder)
    for role in rows:
        configs[role] = with_new_rows(configs[role], folder)
    host = configs[Role.HOST]
    policy = host.policy.model_copy(update={"allow_prediction": True, "max_scores_a_day": 100_000})
    configs[Role.HOST] = host.model_copy(update={"policy": policy})
    files = write_configs(configs, folder)
    with LocalProcesses(files, {role: folder / f"{role}.log" for role in Role}):
        with trilateral.connect(files[Role.GUEST]) as session:
            session.train(job(TRAINED)).wait()
        yield World(files, rows)


@pytest.fixture
def session(world: World) -> Iterator[trilateral.Session]:
    with trilateral.connect(world.files[Role.GUEST]) as session:
        yield session


def job(name: str) -> dict[str, object]:
    """A job that is soon done."""
    return {"name": name, "dataset": DATASET, "key_bits": 256, "epochs": 3}


def long_job(name: str) -> dict[str, object]:
    """A job that lasts until it is stopped."""
    sgd = {"name": "sgd", "learning_rate": 1e-6}
    return job(name) | {"algorithm": sgd, "batch": 20, "epochs": 100_000, "tolerance": 0}


__all__ = ["DATASET", "NEW", "N_COMMON", "N_ONLY", "TRAINED", "World", "job", "long_job"]
