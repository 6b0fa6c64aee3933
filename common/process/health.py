"""Asking the process of one's own configuration whether it serves."""

from types import MappingProxyType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from trilateral.common.base.errors import ConfigError, PeerError
from trilateral.common.config.process import ProcessConfig
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.errors import RUN_IT, way_out

HEALTH_SECONDS = 5.0
"""Within which a process answers that serves; the loop that answers does no arithmetic."""
LOOPBACK_OF = MappingProxyType({"0.0.0.0": "127.0.0.1", "[::]": "[::1]"})  # noqa: S104 (nothing listens here)
"""Where to call a server of this machine that listens on all its addresses."""


def own_address(config: ProcessConfig) -> str:
    """Return where on this machine the process of a configuration can be called.

    Raises:
        ConfigError: the configuration leaves its port open.
    """
    if config.listen.endswith(":0"):
        raise ConfigError(f"listen: {config.listen} leaves the port open: give the port the {config.role} listens on")
    host, _, port = config.listen.rpartition(":")
    return f"{LOOPBACK_OF.get(host, host)}:{port}"


async def check_health(config: ProcessConfig, seconds: float = HEALTH_SECONDS) -> None:
    """Return if the process of this configuration serves, by the files of its certificate as they are now.

    Raises:
        ConfigError: it cannot be called, since a file of its certificate cannot be used or its port is left open.
        PeerError: it does not answer, or is starting or stopping.
    """
    address, certificates = own_address(config), load_certificates(config)
    identity = certificates.current() if certificates else None
    # To itself, a process is known by any name of its certificate.
    async with open_channel(address, identity, identity.host_name if identity else "") as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise PeerError(f"the {config.role} at {address} does not answer: {_why(error, seconds)}") from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise PeerError(f"the {config.role} at {address} answers and does not serve: it is starting or stopping")


def _why(error: grpc.aio.AioRpcError, seconds: float) -> str:
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"it has not within {seconds:g} s"
        case grpc.StatusCode.UNAVAILABLE if way_out(error) == RUN_IT:
            return "nothing listens there"
        case grpc.StatusCode.UNAVAILABLE:
            return way_out(error)
        case grpc.StatusCode.UNIMPLEMENTED:
            return "what listens there is another program"
        case code:
            return code.name
