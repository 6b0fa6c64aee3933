"""With queues that hold next to nothing, every process waits for every other, and a training ends in the same model."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from tests.support.three_servers import (
    DATASET,
    PROTOCOLS,
    Protocol,
    load_tables,
    make_configs,
    plain_model,
    serving,
    train_over_localhost,
    trained_coef,
    write_tables,
)
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Lbfgs, Sqn
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs import inbox, links
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.protocol import arithmetic, bounds, paillier_tasks, scales
from trilateral.guest_party import arithmetic as guest_arithmetic
from trilateral.host_party import arithmetic as host_arithmetic

PATIENCE = 100.0
"""Seconds after which a test that waits for ever fails."""


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Role, ProcessConfig]:
    """Queues for one message, calls of one piece, pieces of three ciphertexts, and windows of two pieces."""
    with_pieces = bounds, scales, arithmetic, paillier_tasks, host_arithmetic, guest_arithmetic
    for module, name, value in (
        (links, "QUEUE_BYTES", 1),
        (links, "CALL_BYTES", 1),
        (inbox, "MAX_MESSAGES", 1),
        (bounds, "WINDOW_BYTES", 1),
        *((module, "PIECE", 3) for module in with_pieces),
    ):
        monkeypatch.setattr(module, name, value)
    write_tables(tmp_path, n_rows=150)
    return make_configs(tmp_path)


def job_of(protocol: Protocol, algorithm: Lbfgs | Sqn) -> JobConfig:
    options = {"key_bits": 512, "slots": 1} if protocol == "paillier" else {}
    return JobConfig.model_validate(
        {
            "name": f"{protocol}-{algorithm.name}",
            "dataset": DATASET,
            "protocol": protocol,
            "algorithm": algorithm,
            "epochs": 3,
            "evaluate_every": 1,
            "batch": "all" if algorithm.name == "lbfgs" else 30,
            **options,
        }
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_training_through_the_smallest_queues_ends_in_the_right_model(
    configs: dict[Role, ProcessConfig], protocol: Protocol
) -> None:
    algorithms: list[Lbfgs | Sqn] = [Lbfgs(), Sqn(interval=1)] if protocol == "paillier" else [Lbfgs()]
    async with serving(configs) as client, asyncio.timeout(PATIENCE):
        for algorithm in algorithms:
            job = job_of(protocol, algorithm)
            status = await train_over_localhost(client, job)
            assert status.state == JOB_STATE_FINISHED, status.detail
            columns = load_tables(configs, job).joined.columns
            scores, expected = (columns @ coef for coef in (trained_coef(configs, job), plain_model(configs, job).coef))
            np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-3)
