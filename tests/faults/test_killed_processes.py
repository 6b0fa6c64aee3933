"""Processes that are killed, stopped, or frozen at any time, and restarted, train the same model."""

from pathlib import Path

import pytest

from tests.faults.killing import N_FAULTS, Way, run_trial


@pytest.mark.parametrize("seed", range(20))
def test_killed_stopped_and_frozen_processes_train_the_same_model(seed: int, tmp_path: Path) -> None:
    trial = run_trial(seed, tmp_path)
    assert len(trial.faults) == N_FAULTS
    assert trial.n_recoveries > 0 or all(fault.way is Way.FROZEN for fault in trial.faults)
