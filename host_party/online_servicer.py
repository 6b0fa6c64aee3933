"""The host's answers to a guest that scores single rows."""

# The contract in protos/trilateral/common/pb/v1 names and documents the methods.
# ruff: noqa: N802, D102

import re
from collections.abc import AsyncIterator

from trilateral.common.base.errors import ProtocolError
from trilateral.common.config.settings import JOB_NAME
from trilateral.common.curve25519.points import POINT_BYTES
from trilateral.common.data.alignment.labelled_list import ENTRY_BYTES
from trilateral.common.pb.v1 import online_pb2, online_pb2_grpc
from trilateral.common.rpc.codec import CHUNK_BYTES, MAX_ONLINE_ROWS, job_key
from trilateral.common.rpc.interceptor import Context
from trilateral.host_party.alignment_servicer import check_form_names
from trilateral.host_party.online import LIST_BYTES, ListRequest, OnlineLists
from trilateral.host_party.prediction_servicer import MODEL_BYTES


class OnlineServicer(online_pb2_grpc.OnlineServiceServicer):
    """Answers the guest's calls.

    Args:
        lists: the lists of this process.
    """

    def __init__(self, lists: OnlineLists) -> None:
        self._lists = lists

    async def GetList(
        self, request: online_pb2.GetListRequest, context: Context
    ) -> AsyncIterator[online_pb2.GetListResponse]:
        run = job_key(request)
        if len(request.model) != MODEL_BYTES:
            raise ProtocolError("received a request for a list with an invalid model")
        if re.fullmatch(JOB_NAME, request.dataset) is None:
            raise ProtocolError("received an invalid dataset name")
        form = check_form_names(request.form)
        found = await self._lists.open(ListRequest(run, request.model, request.dataset, form))
        n_reasons, labels = found.wanted.reasons, found.reasons.names if found.reasons else ()
        entry_bytes = ENTRY_BYTES + n_reasons
        chunk = CHUNK_BYTES // entry_bytes * entry_bytes
        for start in range(0, len(found.data), chunk):
            yield online_pb2.GetListResponse(
                list=found.id,
                n_rows=found.n_rows,
                entries=found.data[start : start + chunk],
                n_reasons=n_reasons,
                labels=labels,
            )

    async def AnswerPoints(
        self, request: online_pb2.AnswerPointsRequest, context: Context
    ) -> online_pb2.AnswerPointsResponse:
        n_points, rest = divmod(len(request.points), POINT_BYTES)
        if rest or not 1 <= n_points <= MAX_ONLINE_ROWS or len(request.list) != LIST_BYTES:
            raise ProtocolError(
                f"received points of {len(request.points)} bytes; expected 1 to {MAX_ONLINE_ROWS} points"
            )
        points = await self._lists.answer(request.list, request.points, n_points)
        return online_pb2.AnswerPointsResponse(unknown_list=points is None, points=points or b"")
