"""Asking the guest's own process for online scores."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from math import isnan
from typing import Any

from trilateral.client.asynchronous import Score
from trilateral.client.errors import wrong_type
from trilateral.common.base.roles import Role
from trilateral.common.config.process import MAX_REASONS, Limits, PeerConfig, ProcessConfig
from trilateral.common.pb.v1 import online_pb2
from trilateral.common.process.health import own_address
from trilateral.common.rpc.calls import FIRST_CONTACT_SECONDS, call_peer
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import Peer, new_peer
from trilateral.common.rpc.codec import PACKAGE

SCORE_SECONDS = 60.0
"""How long the guest's process may take. Its first request for a dataset reads a table and gets the host's list."""
_LACKING = {online_pb2.LACKING_HOST: Role.HOST, online_pb2.LACKING_GUEST: Role.GUEST}


@asynccontextmanager
async def own_process(config: ProcessConfig) -> AsyncIterator[Peer]:
    """Yield the running process of a configuration, as a peer.

    Raises:
        ConfigError: the configuration leaves its port open, or its certificate cannot be used.
    """
    certificates = load_certificates(config)
    # Any name of the certificate will do for a call to itself.
    name = certificates.current().host_name if certificates else None
    peer = new_peer(config.role, PeerConfig(address=own_address(config), name=name), config, certificates)
    try:
        yield peer
    finally:
        await peer.close()


async def score_rows(
    guest: Peer,
    limits: Limits,
    *,
    job: str,
    dataset: str,
    ids: Sequence[str | Sequence[str]],
    features: Sequence[Mapping[Any, Any] | None] | None,
    reasons: int = 0,
    host_reasons: int = 0,
) -> list[Score]:
    """Ask the guest's process for scores; see `AsyncSession.score`."""
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise wrong_type("ids", "a list of IDs", ids)
    if features is not None and len(features) != len(ids):
        raise ValueError(f"there are {len(ids)} IDs, but {len(features)} features")
    rows = [
        online_pb2.RowToScore(
            id=[one] if isinstance(one, str) else one,
            features="" if features is None else _json(features[place]),
        )
        for place, one in enumerate(ids)
    ]
    for name, count in (("reasons", reasons), ("host_reasons", host_reasons)):
        if not 0 <= count <= MAX_REASONS:
            raise ValueError(f"{name}: expected 0 to {MAX_REASONS}, not {count}")
    impatient = limits.model_copy(update={"peer_timeout": min(limits.peer_timeout, FIRST_CONTACT_SECONDS)})
    answer = await call_peer(
        guest,
        Role.GUEST,
        f"/{PACKAGE}.ScoreService/Score",
        online_pb2.ScoreRequest(job=job, dataset=dataset, rows=rows, n_reasons=reasons, n_host_reasons=host_reasons),
        online_pb2.ScoreResponse,
        limits=impatient,
        seconds=SCORE_SECONDS,
    )
    return [_score(one, row) for one, row in zip(ids, answer.rows, strict=True)]


def _json(features: Mapping[Any, Any] | None) -> str:
    if features is None:
        return ""
    # pandas and numpy write a missing number as NaN, which is not JSON, and have integers of their own.
    plain = {name: None if isinstance(value, float) and isnan(value) else value for name, value in features.items()}
    return json.dumps(plain, default=int)


def _score(one: str | Sequence[str], row: online_pb2.RowScore) -> Score:
    written = one if isinstance(one, str) else tuple(one)
    lacking = _LACKING.get(row.lacking)
    if lacking:
        return Score(written, None, None, lacking)
    return Score(written, row.score, row.probability, None, tuple(row.reasons), tuple(row.host_reasons))
