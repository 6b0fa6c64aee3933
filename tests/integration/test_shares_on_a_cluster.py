"""A training on shares whose tasks run on the workers of a real cluster."""

from dataclasses import replace

import pytest

from tests.attacks.test_shares_views import WHOLE, tables_of
from tests.protocol.test_shares_engine import pieces
from tests.support.share_views import Randomness, run_session
from tests.support.shares_rounds import cut_small
from tests.support.three_machines import REAL
from trilateral.common.base.roles import Role
from trilateral.common.compute.dask import DaskCluster
from trilateral.common.config.engine import EngineConfig
from trilateral.common.paillier.keys import PrivateKey, generate_private_key
from trilateral.common.protocol.messages import ElementPiece, Envelope, Kind
from trilateral.common.trial.cluster import trial_cluster

PATIENCE = 60.0
"""Seconds to wait for a worker. A nanny starts another one for the one that was killed."""


@pytest.fixture(scope="module")
def private_key() -> PrivateKey:
    return generate_private_key(1024)


def test_a_worker_that_is_killed_changes_no_bit(private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch, window=6)
    tables = tables_of(WHOLE, weighted=False, seed=1)
    here = run_session(WHOLE, tables, private_key, Randomness(3))
    with trial_cluster(2) as cluster:
        killed: list[int] = []

        def kill_one(sender: Role, envelope: Envelope) -> list[Envelope]:
            message = envelope.message
            is_due = isinstance(message, ElementPiece) and (message.kind, message.key.round) == (
                Kind.MASKED_RESIDUAL,
                3,
            )
            if not killed and is_due:
                killed.append(cluster.pids[0])
                cluster.kill(killed[0])
            return [envelope]

        connection = DaskCluster(EngineConfig(**cluster.settings), PATIENCE)
        away = replace(REAL, open_engine=connection.open_engine)
        try:
            there = run_session(WHOLE, tables, private_key, Randomness(3), lambda: kill_one, away)
        finally:
            connection.close()
        assert killed
    assert pieces(here) == pieces(there)
