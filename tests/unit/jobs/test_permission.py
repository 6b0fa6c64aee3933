"""The permission of a job."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.three_servers import DATASET, make_configs
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
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
