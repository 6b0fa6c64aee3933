"""Asking the process of one's own configuration for its health."""

from types import MappingProxyType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from trilateral.common.base.addresses import join_address, split_address
from trilateral.common.base.errors import ConfigError, PeerError
from trilateral.common.config.process import ProcessConfig
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.errors import RUN_IT, way_out

HEALTH_SECONDS = 5.0
"""Time within which a healthy process answers: the loop that answers does no arithmetic."""
LOOPBACK_OF = MappingProxyType({"0.0.0.0": "127.0.0.1", "::": "::1"})  # noqa: S104 (nothing listens here)
"""Address at which to call a server on this machine that listens on all addresses."""


def own_address(config: ProcessConfig) -> str:
    """Return the address at which to call the process of a configuration on this machine.

    Raises:
        ConfigError: the configuration leaves its port open.
    """
    if config.listen.endswith(":0"):
        raise ConfigError(f"listen: {config.listen} has no fixed port: set the port that the {config.role} listens on")
    host, port = split_address(config.listen)
    return join_address(LOOPBACK_OF.get(host, host), port)


async def check_health(config: ProcessConfig, seconds: float = HEALTH_SECONDS) -> None:
    """Check that the process of a configuration is healthy, with the certificate that its files have now.

    Args:
        config: the configuration of the process.
        seconds: deadline of the call.

    Raises:
        ConfigError: a file of the certificate cannot be used, or the configuration leaves its port open.
        PeerError: the process does not answer, or is starting or stopping.
    """
    address, certificates = own_address(config), load_certificates(config)
    identity = certificates.current() if certificates else None
    # Any name of the certificate will do for a call to itself.
    async with open_channel(address, identity, identity.host_name if identity else "") as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise PeerError(f"the {config.role} at {address} does not answer: {_why(error, seconds)}") from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise PeerError(f"the {config.role} at {address} answers but does not serve: it is starting or stopping")


def _why(error: grpc.aio.AioRpcError, seconds: float) -> str:
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer within {seconds:g} s"
        case grpc.StatusCode.UNAVAILABLE if way_out(error) == RUN_IT:
            return "nothing listens there"
        case grpc.StatusCode.UNAVAILABLE:
            return way_out(error)
        case grpc.StatusCode.UNIMPLEMENTED:
            return "another program listens there"
        case code:
            return code.name
