"""The host's answers to a guest that asks for scores of rows."""

# The contract in protos/trilateral/common/pb/v1 names and documents the methods.
# ruff: noqa: N802, D102

import re

from trilateral.common.base.errors import ProtocolError
from trilateral.common.config.process import MAX_REASONS
from trilateral.common.config.settings import JOB_NAME
from trilateral.common.pb.v1 import prediction_pb2, prediction_pb2_grpc
from trilateral.common.rpc.codec import PREDICTION_BYTES, job_key
from trilateral.common.rpc.interceptor import Context
from trilateral.host_party.alignment_servicer import check_opening
from trilateral.host_party.predictions import AlignRequest, PredictionRequest, Predictions

MODEL_BYTES = 32


class PredictionServicer(prediction_pb2_grpc.PredictionServiceServicer):
    """Answers the guest's calls.

    Args:
        predictions: the sessions of this process.
    """

    def __init__(self, predictions: Predictions) -> None:
        self._predictions = predictions

    async def OpenPrediction(
        self, request: prediction_pb2.OpenPredictionRequest, context: Context
    ) -> prediction_pb2.OpenPredictionResponse:
        run = job_key(request)
        if len(request.prediction) != PREDICTION_BYTES or len(request.model) != MODEL_BYTES:
            raise ProtocolError("received a prediction with an invalid ID or model")
        if re.fullmatch(JOB_NAME, request.dataset) is None:
            raise ProtocolError("received an invalid dataset name")
        if request.n_reasons > MAX_REASONS:
            raise ProtocolError(f"received a prediction with {request.n_reasons} reasons: the maximum is {MAX_REASONS}")
        wanted = PredictionRequest(run, request.model, request.dataset, request.n_reasons)
        opened = await self._predictions.open(request.prediction, wanted)
        return prediction_pb2.OpenPredictionResponse(n_rows=opened.n_rows, labels=opened.labels)

    async def AlignPrediction(
        self, request: prediction_pb2.AlignPredictionRequest, context: Context
    ) -> prediction_pb2.AlignPredictionResponse:
        form = check_opening(request.nonce, request.n_rows, request.form)
        wanted = AlignRequest(request.nonce, request.n_rows, form, request.aligned)
        begun = await self._predictions.align(request.prediction, wanted)
        return prediction_pb2.AlignPredictionResponse(nonce=begun.nonce, session=begun.session)

    async def SettleShard(
        self, request: prediction_pb2.SettleShardRequest, context: Context
    ) -> prediction_pb2.SettleShardResponse:
        await self._predictions.settle(request.prediction, request.shard, request.told)
        return prediction_pb2.SettleShardResponse()

    async def GetScores(
        self, request: prediction_pb2.GetScoresRequest, context: Context
    ) -> prediction_pb2.GetScoresResponse:
        released = await self._predictions.scores(request.prediction, request.shard)
        return prediction_pb2.GetScoresResponse(scores=released.scores, reasons=released.reasons)

    async def ClosePrediction(
        self, request: prediction_pb2.ClosePredictionRequest, context: Context
    ) -> prediction_pb2.ClosePredictionResponse:
        self._predictions.close(request.prediction)
        return prediction_pb2.ClosePredictionResponse()
