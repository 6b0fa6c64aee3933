"""The permission of a job."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from tests.support.three_servers import DATASET, make_configs
from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import LabelConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.party_data import make_party_data
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.permission import Permission
from trilateral.common.observe.audit import Audit
from trilateral.common.protocol.messages import RoundKey, ScoresDue
from trilateral.common.rpc.access import Caller


def test_nothing_is_permitted_before_the_table_is_known(tmp_path: Path) -> None:
    config = make_configs(tmp_path)[Role.HOST]
    job, caller = JobConfig(name="credit", dataset=DATASET), Caller(Role.COORDINATOR)
    permission = Permission(job, lambda: config, Audit(tmp_path / "audit.jsonl"), caller, {})
    with pytest.raises(RuntimeError):
        permission.check_peer(1)
    with pytest.raises(RuntimeError):
        permission.count(ScoresDue(RoundKey(1, 1), np.zeros(2)))


def test_a_tighter_policy_counts_for_the_weights_of_a_training_that_runs(tmp_path: Path) -> None:
    """As much as 400 rows of equal weight, of 600 training rows."""
    config = make_configs(tmp_path)[Role.GUEST]
    label = LabelConfig(weight="c")
    dataset = config.datasets[DATASET].model_copy(update={"label": label})
    config = config.model_copy(update={"datasets": {DATASET: dataset}})
    job = JobConfig(name="credit", dataset=DATASET, protocol="shares", holdout=0)
    current = [config]
    audit = Audit(tmp_path / "audit.jsonl")
    permission = Permission(job, lambda: current[0], audit, Caller(Role.COORDINATOR), {})
    labels, weights = np.tile([-1.0, 1.0], 300), np.where(np.arange(600) < 400, 1.0, 0.0)
    table = PartyTable(
        Ids.of(f"{row:03}" for row in range(600)),
        features_of(pd.DataFrame({"x": np.arange(600.0)})),
        labels,
        weights=weights,
    )
    permission.data = make_party_data(table, PreprocessingConfig(), job)

    def tighten(min_batch: int) -> None:
        current[0] = config.model_copy(update={"policy": config.policy.model_copy(update={"min_batch": min_batch})})
        permission.check_again()

    tighten(400)
    with pytest.raises(PolicyError, match=r"policy\.min_batch: the minimum is 401, and by the weights"):
        tighten(401)
