"""A real training over three servers on localhost, and all of its requests as bytes from the wire."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from gmpy2 import mpz

import trilateral.coordinator.jobs
from tests.support.three_machines import Tables
from tests.support.three_servers import load_tables, make_configs, serving, train_over_localhost, write_tables
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.party_record import read_start
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.pb.v1.jobs_pb2 import JobStatus
from trilateral.common.protocol.messages import Kind, Message, RoundKey, VectorPiece
from trilateral.common.rpc.routes import MESSAGE_ROUTES, decode

N_HOST, N_GUEST = 4, 2
"""Features. With the guest's intercept 4 and 3 columns, so the length of a vector says whose it is."""
COLUMNS = {Role.HOST: N_HOST, Role.GUEST: N_GUEST + 1}
_REQUESTS = {route.path: route.request for route in MESSAGE_ROUTES}


@dataclass
class Recording:
    """What an observer without a key sees of a training, and besides that, what the test knows."""

    requests: list[tuple[str, bytes]] = field(default_factory=list)
    """Method and body of every request of the protocol, in the order in which they came."""
    status: JobStatus = field(default_factory=JobStatus)
    tables: Tables | None = None
    """With the guest's start."""

    def messages(self, path: str = "") -> Iterator[Message]:
        for method, body in self.requests:
            if path in method:
                yield decode(_REQUESTS[method].FromString(body))

    def pieces(self) -> Iterator[VectorPiece]:
        for message in self.messages("/SendVector"):
            assert isinstance(message, VectorPiece)
            yield message

    def vector(self, kind: Kind, number: int = 1, attempt: int = 1, sender: Role | None = None) -> list[mpz]:
        """Return one encrypted vector of a round. The length of a gradient shows its sender."""
        return [
            ciphertext
            for piece in self.pieces()
            if piece.kind is kind and piece.key == RoundKey(number, attempt)
            if sender is None or piece.total == COLUMNS[sender]
            for ciphertext in piece.ciphertexts
        ]

    @property
    def truth(self) -> Tables:
        assert self.tables is not None
        return self.tables


class _Interceptor(grpc.aio.ServerInterceptor):
    def __init__(self, requests: list[tuple[str, bytes]]) -> None:
        self._requests = requests

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or method not in _REQUESTS:
            return handler
        parse = handler.request_deserializer

        def deserialise(body: bytes) -> Any:
            self._requests.append((method, body))
            return parse(body)

        return handler._replace(request_deserializer=deserialise)


@contextmanager
def recording(patch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """Every server that is made in here writes down what it is sent, before anything else sees it."""
    recorded = Recording()
    make_server = grpc.aio.server

    def server(*, interceptors: Sequence[Any], **options: Any) -> grpc.aio.Server:
        return make_server(interceptors=[_Interceptor(recorded.requests), *interceptors], **options)

    with patch.context() as inner:
        inner.setattr(grpc.aio, "server", server)
        yield recorded


async def record_training(
    job: JobConfig,
    folder: Path,
    patch: pytest.MonkeyPatch,
    private_key: PrivateKey,
    *,
    n_rows: int = 120,
    n_host: int = N_HOST,
    n_guest: int = N_GUEST,
    change: Callable[[ProcessConfig], ProcessConfig] = lambda config: config,
) -> Recording:
    """Train over localhost with a key that the test knows too; whether the job succeeds is the test's affair."""
    write_tables(folder, n_rows, n_host, n_guest)
    configs = {role: change(config) for role, config in make_configs(folder).items()}
    with recording(patch) as recorded:
        patch.setattr(trilateral.coordinator.jobs, "generate_private_key", lambda bits: private_key)
        async with serving(configs) as client:
            status = await train_over_localhost(client, job)
    start = read_start(configs[Role.GUEST].state, job.name)
    return replace(recorded, status=status, tables=replace(load_tables(configs, job), start=start))
