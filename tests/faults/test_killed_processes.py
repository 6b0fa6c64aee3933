"""Processes that are killed, stopped, or frozen at any time, and restarted, train the same model."""

from pathlib import Path

import pytest

from tests.faults.killing import N_FAULTS, Way, run_trial
from tests.support.three_servers import Protocol

SEEDS: dict[Protocol, tuple[int, ...]] = {"paillier": (0, 2, 6, 8, 10, 15), "shares": (0, 2)}
"""The six kill, stop, and freeze each of the processes, alone and with others, at the beginning of a session and later.
`make chaos` tries 200."""


@pytest.mark.parametrize(("seed", "protocol"), [(seed, protocol) for protocol in SEEDS for seed in SEEDS[protocol]])
def test_killed_stopped_and_frozen_processes_train_the_same_model(
    seed: int, protocol: Protocol, tmp_path: Path
) -> None:
    trial = run_trial(seed, tmp_path, protocol)
    assert len(trial.faults) == N_FAULTS
    assert trial.n_recoveries > 0 or all(fault.way is Way.FROZEN for fault in trial.faults)
