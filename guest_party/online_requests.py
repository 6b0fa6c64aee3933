"""Requests for online scores over gRPC, and what they have in common with those over HTTP.

No error quotes what a program has sent.
"""

import math
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.pb.v1 import online_pb2, online_pb2_grpc
from trilateral.common.rpc.codec import MAX_ONLINE_ROWS
from trilateral.common.rpc.interceptor import Context
from trilateral.guest_party.online import Features, OnlineScores, ReasonsWanted, RowScore, RowToScore

MAX_FEATURES_CHARACTERS = 100_000
_LARGEST = 2**63
_LACKING = {
    None: online_pb2.LACKING_UNSPECIFIED,
    Role.HOST: online_pb2.LACKING_HOST,
    Role.GUEST: online_pb2.LACKING_GUEST,
}


class ScoreServicer(online_pb2_grpc.ScoreServiceServicer):
    """Answers programs of the guest's organisation that have the guest's certificate.

    Args:
        scores: of this process.
    """

    def __init__(self, scores: OnlineScores) -> None:
        self._scores = scores

    async def Score(  # noqa: N802 (the contract names it)
        self, request: online_pb2.ScoreRequest, context: Context
    ) -> online_pb2.ScoreResponse:
        """Score rows; see the contract."""
        check_count(request.rows)
        rows = [RowToScore(tuple(row.id), _features_in(row.features)) for row in request.rows]
        reasons = ReasonsWanted(request.n_reasons, request.n_host_reasons)
        scored = await self._scores.score(request.job, request.dataset, rows, reasons)
        return online_pb2.ScoreResponse(rows=[*map(_message_of, scored.rows)], calibration=scored.calibration)


def _message_of(row: RowScore) -> online_pb2.RowScore:
    return online_pb2.RowScore(
        score=row.score or 0.0,
        probability=row.probability or 0.0,
        lacking=_LACKING[row.lacking],
        reasons=row.reasons,
        host_reasons=row.host_reasons,
    )


def _features_in(text: str) -> Features | None:
    if not text:
        return None
    if len(text) > MAX_FEATURES_CHARACTERS:
        raise ProtocolError(f"the features of a row have more than {MAX_FEATURES_CHARACTERS} characters")
    try:
        return check_features(from_json(text, allow_inf_nan=False))
    except ValueError:
        raise ProtocolError("the features of a row are not JSON") from None


def check_features(features: Any) -> Features:
    """Return the features of a row, as JSON has them.

    Raises:
        ProtocolError: they are no object.
        DataError: a value is not of a type that a table may have.
    """
    if not isinstance(features, dict):
        raise ProtocolError("expected the features of a row as an object")
    for value in features.values():
        is_number = isinstance(value, int | float) and math.isfinite(value) and abs(value) < _LARGEST
        if not (value is None or isinstance(value, str) or is_number):
            raise DataError("a feature of a row is not text, a finite number below 2^63, true, false or null")
    return features


def check_count(rows: Sequence[object]) -> None:
    """Check the number of rows of a request.

    Raises:
        ProtocolError: there are none, or too many.
    """
    if not 1 <= len(rows) <= MAX_ONLINE_ROWS:
        raise ProtocolError(f"a request asks for {len(rows)} rows: expected 1 to {MAX_ONLINE_ROWS}")
