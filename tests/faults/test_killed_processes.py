"""Whatever happens to the processes, and whenever: started again, they end in the model of the undisturbed training."""

from pathlib import Path

import pytest

from tests.faults.killing import N_FAULTS, Way, run_trial


@pytest.mark.parametrize("seed", range(20))
def test_killed_stopped_and_frozen_processes_end_in_the_same_model(seed: int, tmp_path: Path) -> None:
    trial = run_trial(seed, tmp_path)
    assert len(trial.faults) == N_FAULTS
    assert trial.n_recoveries > 0 or all(fault.way is Way.FROZEN for fault in trial.faults)
