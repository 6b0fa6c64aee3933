"""The host knows its features and, from its first step, their product with the labels: as many equations as columns."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trilateral.common.jobs.party_jobs
from tests.attacks.wire import Recording, record_training
from tests.support.three_servers import DATASET
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED
from trilateral.common.protocol.messages import BeginRound, Envelope, IdChallenge, IdProof, RoundKey
from trilateral.host_party.machine import HostMachine

N_ROWS, N_HOST = 16, 8
RATE = 0.125
JOB = JobConfig(
    name="attacked", dataset=DATASET, algorithm=Sgd(learning_rate=RATE), epochs=2, key_bits=512, holdout=0.0
)


def sums_of_labels(recorded: Recording) -> FloatVector:
    """X_A'y, of a guest that starts at zero: the first step is eta X_A'd / m, and d = -y/2."""
    (step,) = [
        message.step
        for message in recorded.messages("/BeginRound")
        if isinstance(message, BeginRound) and message.key == RoundKey(2, 1) and len(message.step) == N_HOST
    ]
    return -2 * N_ROWS * step / RATE


def labels_that_fit(X: FloatMatrix, sums: FloatVector) -> list[FloatVector]:
    """All y of +-1 with X'y = `sums`, to the precision of the fixed-point numbers: each of 2^16 is tried."""
    bits = np.arange(2**N_ROWS)[:, np.newaxis] >> np.arange(N_ROWS) & 1
    candidates = 2.0 * bits - 1
    distance = np.abs(candidates @ X - sums).max(axis=1)
    return list(candidates[distance < 1e-4])


async def record(folder: Path, patch: pytest.MonkeyPatch, key: PrivateKey, policy: Policy | None) -> Recording:
    """Record a training under a policy of the guest. The host is hostile: its own file permits everything.

    The guest starts at zero: a secret start and the entropy of labels are tested in `test_labels_from_the_hosts_steps`.
    """
    patch.setattr(trilateral.common.jobs.party_jobs, "draw_start", lambda columns: np.zeros(columns.shape[1]))

    def change(config: ProcessConfig) -> ProcessConfig:
        of_party = policy if policy is not None and config.role is Role.GUEST else config.policy
        return config.model_copy(update={"policy": of_party})

    return await record_training(JOB, folder, patch, key, n_rows=N_ROWS, n_host=N_HOST, n_guest=1, change=change)


async def test_a_batch_with_few_rows_per_feature_gives_the_labels_away(
    private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded = await record(tmp_path, monkeypatch, private_key, None)
    assert recorded.status.state == JOB_STATE_FINISHED
    (found,) = labels_that_fit(np.asarray(recorded.truth.host.block.columns), sums_of_labels(recorded))
    np.testing.assert_array_equal(found, recorded.truth.joined.labels)


@pytest.mark.parametrize("line", ["min_rows_per_feature", "min_batch"])
async def test_either_of_two_settings_of_the_guests_default_policy_refuses_such_a_batch(
    line: str, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    default = {line: getattr(Policy(), line)}
    lax = {"min_key_bits": 256, "min_rows_per_feature": 2, "min_batch": 2, "min_label_bits": 0}
    policy = Policy.model_validate(lax | default)
    recorded = await record(tmp_path, monkeypatch, private_key, policy)
    assert recorded.status.state == JOB_STATE_FAILED
    assert line in recorded.status.detail
    assert list(recorded.messages("/BeginRound")) == []


async def test_a_host_that_understates_its_columns_is_refused_before_it_sees_a_step(
    private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It can lie to the guest, but not to the coordinator, which sends it one number of the step for each column."""
    prove = HostMachine._prove_ids

    def understate(machine: HostMachine, challenge: IdChallenge) -> Envelope:
        proof = prove(machine, challenge)
        assert isinstance(proof.message, IdProof)
        return replace(proof, message=replace(proof.message, n_columns=1))

    monkeypatch.setattr(HostMachine, "_prove_ids", understate)
    policy = Policy.model_validate(
        {"min_key_bits": 256, "min_rows_per_feature": 10, "min_batch": 2, "min_label_bits": 0}
    )
    recorded = await record(tmp_path, monkeypatch, private_key, policy)
    assert recorded.status.state == JOB_STATE_FAILED
    assert f"told the guest 1 of training columns, and the coordinator {N_HOST}" in recorded.status.detail
    steps = [message for message in recorded.messages("/BeginRound") if isinstance(message, BeginRound)]
    assert {message.key for message in steps} == {RoundKey(1, 1)}  # with a step of zeros
    assert not any(np.any(message.step) for message in steps)
