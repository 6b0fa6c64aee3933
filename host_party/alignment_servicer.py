"""The host's answers to a guest that looks for common rows."""

# The contract in protos/trilateral/common/pb/v1 names and documents the methods.
# ruff: noqa: N802, D102

import re
from collections.abc import Callable, Sequence

from trilateral.common.base.errors import ProtocolError
from trilateral.common.config.settings import JOB_NAME
from trilateral.common.pb.v1 import alignment_pb2, alignment_pb2_grpc
from trilateral.common.protocol.ids import NONCE_BYTES
from trilateral.common.rpc.codec import MAX_TOTAL, job_key
from trilateral.common.rpc.interceptor import Context
from trilateral.host_party.alignments import Alignments, Asked, Offer

MAX_RULES = 16
RULE = r"[a-z0-9_]{1,32}"


class AlignmentServicer(alignment_pb2_grpc.AlignmentServiceServicer):
    """Answers the guest's calls.

    Args:
        alignments: the sessions of this process.
        load: returns the IDs of a dataset, given its name.
    """

    def __init__(self, alignments: Alignments, load: Callable[[str], Offer]) -> None:
        self._alignments = alignments
        self._load = load

    async def OpenAlignment(
        self, request: alignment_pb2.OpenAlignmentRequest, context: Context
    ) -> alignment_pb2.OpenAlignmentResponse:
        form = check_opening(request.nonce, request.n_ids, request.form)
        match request.WhichOneof("purpose"):
            case "run":
                run = job_key(request.run)
                opened = await self._alignments.open_for_job(run, form, request.n_ids, request.nonce)
            case "dataset":
                name = request.dataset
                if re.fullmatch(JOB_NAME, name) is None:
                    raise ProtocolError("received an invalid dataset name")
                opened = await self._alignments.open_loose(
                    request.nonce,
                    lambda: self._load(name),
                    Asked(form, request.n_ids, request.nonce, {"dataset": name}),
                )
            case _:
                raise ProtocolError("received an alignment without a purpose")
        n_ids = opened.session.dealing.n_host
        return alignment_pb2.OpenAlignmentResponse(session=opened.id, nonce=opened.nonce, n_ids=n_ids)

    async def IntersectShard(
        self, request: alignment_pb2.IntersectShardRequest, context: Context
    ) -> alignment_pb2.IntersectShardResponse:
        setup, response = await self._alignments.intersect(request.session, request.shard, request.points)
        return alignment_pb2.IntersectShardResponse(setup=setup, response=response)

    async def ConfirmShard(
        self, request: alignment_pb2.ConfirmShardRequest, context: Context
    ) -> alignment_pb2.ConfirmShardResponse:
        await self._alignments.settle(request.session, request.shard, request.tags)
        return alignment_pb2.ConfirmShardResponse()

    async def CloseAlignment(
        self, request: alignment_pb2.CloseAlignmentRequest, context: Context
    ) -> alignment_pb2.CloseAlignmentResponse:
        self._alignments.close(request.session)
        return alignment_pb2.CloseAlignmentResponse()


def check_opening(nonce: bytes, n_ids: int, form: Sequence[str]) -> list[str]:
    """Check the fields that every request for an alignment has.

    Args:
        nonce: drawn by the guest.
        n_ids: how many IDs the guest has.
        form: names of the rules by which the guest normalises its IDs.

    Returns:
        The names of the rules.

    Raises:
        ProtocolError: a field is not valid.
    """
    if len(nonce) != NONCE_BYTES:
        raise ProtocolError(f"received a nonce of {len(nonce)} bytes")
    if not 1 <= n_ids <= MAX_TOTAL:
        raise ProtocolError(f"received a count of {n_ids} IDs; expected 1 to {MAX_TOTAL}")
    return check_form_names(form)


def check_form_names(form: Sequence[str]) -> list[str]:
    """Check the names of the rules by which the guest normalises its IDs, and return them.

    Raises:
        ProtocolError: there are too many, or one is not a name.
    """
    if len(form) > MAX_RULES or any(re.fullmatch(RULE, rule) is None for rule in form):
        raise ProtocolError("received an invalid form of IDs")
    return list(form)
