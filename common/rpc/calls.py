"""Calls that return an answer, each repeated until it is answered. `jobs.links` sends the messages that return none."""

import asyncio
import logging
import time
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.jobs.links import judge, pauses
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.versions import check_answer

log = logging.getLogger(__name__)

Response = TypeVar("Response", bound=Message)


async def call_peer(
    peer: Peer, sender: Role, path: str, request: Message, response: type[Response], *, limits: Limits
) -> Response:
    """Call a method that may be called again, and return its answer.

    Tries again with growing pauses, up to `Limits.peer_timeout`, while the peer is away; an answer itself may take up
    to `Limits.party_timeout`.

    Raises:
        TrilateralError: the peer does not answer, or refuses.
    """
    begun, pause = object(), pauses()
    try:
        while True:
            method: Any = peer.channel.unary_unary(
                path, request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
            )
            try:
                call = method(request, timeout=limits.party_timeout, metadata=call_metadata(sender))
                answer: Response = await call
            except grpc.aio.AioRpcError as error:
                now = time.monotonic()
                since = peer.unanswered.setdefault(begun, now)
                problem, patience = judge(error, peer, sender, limits, limits.party_timeout)
                if now - since >= patience:
                    raise problem from error
                peer.retries += 1
                log.info("waiting for %s (%s)", peer, error.code().name)
                await asyncio.sleep(next(pause))
            else:
                check_answer(peer, await call.trailing_metadata())
                return answer
    finally:
        peer.unanswered.pop(begun, None)
