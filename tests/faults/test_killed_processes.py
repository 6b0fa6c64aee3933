"""Whichever processes are killed, and whenever: started again, they end in the model of the undisturbed training."""

import random
from pathlib import Path

import numpy as np
import pytest

from common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from coordinator.plain import train_plain
from tests.faults.killing import JOB, run_trial
from tests.support.three_servers import load_tables, make_configs, trained_coef, write_tables


@pytest.mark.parametrize("seed", range(2))
def test_killed_processes_end_in_the_same_model(seed: int, tmp_path: Path) -> None:
    write_tables(tmp_path)
    configs = make_configs(tmp_path, peer_timeout=60)

    trial = run_trial(configs, tmp_path, JOB, random.Random(seed), n_faults=3)

    assert trial.status.state == JOB_STATE_FINISHED, trial.status.detail
    assert trial.faults
    joined = load_tables(configs, JOB).joined
    plain = train_plain(
        JOB, joined.columns, joined.labels, joined.penalty, (joined.holdout_columns, joined.holdout_labels)
    )
    np.testing.assert_allclose(trained_coef(configs, JOB), plain.coef, rtol=0, atol=1e-6)
