"""Processes that are killed, stopped, or frozen at any time, and restarted, train the same model."""

from itertools import product
from pathlib import Path

import pytest

from tests.faults.killing import N_FAULTS, Way, run_trial
from tests.support.three_servers import Protocol


@pytest.mark.parametrize(("seed", "protocol"), [*product(range(20), ["paillier"]), *product(range(3), ["shares"])])
def test_killed_stopped_and_frozen_processes_train_the_same_model(
    seed: int, protocol: Protocol, tmp_path: Path
) -> None:
    trial = run_trial(seed, tmp_path, protocol)
    assert len(trial.faults) == N_FAULTS
    assert trial.n_recoveries > 0 or all(fault.way is Way.FROZEN for fault in trial.faults)
