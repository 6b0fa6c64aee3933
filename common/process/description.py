"""How a process describes itself to its peers, and how it asks a peer for its description."""

# The contract in protos/trilateral/common/pb/v1 names and documents the methods.
# ruff: noqa: N802, D102

import time
from dataclasses import dataclass
from types import MappingProxyType

import grpc

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.pb.v1 import process_pb2, process_pb2_grpc
from trilateral.common.rpc.access import call_metadata, calling_role
from trilateral.common.rpc.interceptor import Context
from trilateral.common.rpc.versions import Version, is_release, own_version

_TO_WIRE = MappingProxyType(
    {
        Role.HOST: process_pb2.PROCESS_ROLE_HOST,
        Role.GUEST: process_pb2.PROCESS_ROLE_GUEST,
        Role.COORDINATOR: process_pb2.PROCESS_ROLE_COORDINATOR,
    }
)
_FROM_WIRE = MappingProxyType({number: role for role, number in _TO_WIRE.items()})


MAX_TIME = 2.0**40
"""Unix time that a peer may state, in seconds: tens of thousands of years from now."""


@dataclass(frozen=True)
class Description:
    """A process as it describes itself.

    Attributes:
        role: its role.
        caller: the role that it recognises in the caller.
        version: its protocol and its release.
        clock_ahead: seconds by which its clock is ahead of this machine's.
        uncertainty: seconds by which `clock_ahead` may be off: half of the duration of the call.
    """

    role: Role
    caller: Role
    version: Version
    clock_ahead: float
    uncertainty: float


class ProcessServicer(process_pb2_grpc.ProcessServiceServicer):
    """Answers a peer's questions about the process itself.

    Args:
        role: the role of the process.
    """

    def __init__(self, role: Role) -> None:
        self._role = role

    async def Describe(self, request: process_pb2.DescribeRequest, context: Context) -> process_pb2.DescribeResponse:
        own = own_version()
        return process_pb2.DescribeResponse(
            role=_TO_WIRE[self._role],
            caller=_TO_WIRE[calling_role()],
            protocol=own.protocol or 0,
            version=own.package,
            time=time.time(),
        )


async def ask_description(channel: grpc.aio.Channel, caller: Role, seconds: float) -> Description:
    """Ask the process at the other end of a channel to describe itself.

    Args:
        channel: to the process.
        caller: role of this process.
        seconds: deadline of the call.

    Raises:
        grpc.aio.AioRpcError: the process cannot be called, or refuses.
        ProtocolError: the answer has a value that the contract does not allow.
    """
    sent, begun = time.time(), time.monotonic()
    answer = await process_pb2_grpc.ProcessServiceStub(channel).Describe(
        process_pb2.DescribeRequest(), timeout=seconds, metadata=call_metadata(caller)
    )
    half = (time.monotonic() - begun) / 2
    known = answer.role in _FROM_WIRE and answer.caller in _FROM_WIRE and answer.protocol > 0
    if not known or not 0 <= answer.time < MAX_TIME:
        raise ProtocolError("the peer's description has values that this release does not know")
    package = answer.version if is_release(answer.version) else ""
    return Description(
        _FROM_WIRE[answer.role],
        _FROM_WIRE[answer.caller],
        Version(answer.protocol, package),
        answer.time - (sent + half),
        half,
    )
