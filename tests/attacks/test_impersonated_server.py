"""Whoever controls the network, and has got an authority to sign too much, cannot receive what is meant for a peer."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.x509 import load_pem_x509_certificate

from tests.support.certificates import (
    issued_below,
    make_identity,
    new_authority,
    root_without_limit,
    signed_as_requested,
    write_identity,
)
from tests.support.rpc import plaintext_server
from tests.support.tcp_proxy import Cut, TcpProxy, connect_to
from tests.support.waiting import eventually
from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.pb.v1.jobs_pb2 import ListJobsRequest, ListJobsResponse
from trilateral.common.process.job_client import JobClient
from trilateral.common.process.server import bind
from trilateral.common.rpc import channel as channel_module
from trilateral.common.rpc import pinning
from trilateral.common.rpc.calls import call_peer
from trilateral.common.rpc.certificates import Certificates, Identity, load_certificates
from trilateral.common.rpc.channel import Peer, new_channel, open_peers
from trilateral.common.rpc.errors import UntrustedPeerError
from trilateral.common.rpc.issuers import fingerprint, spell
from trilateral.common.rpc.versions import version_metadata
from trilateral.common.trial.authority import Authority

HOST, GUEST, COORDINATOR = (f"{name}.example.org" for name in ("host", "guest", "coordinator"))
METHOD = "/trilateral.v1.JobService/ListJobs"


class Answers(grpc.GenericRpcHandler):
    """Answers every call, and counts the calls."""

    def __init__(self) -> None:
        self.n_calls = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def behaviour(request: bytes, context: Any) -> bytes:
            self.n_calls += 1
            context.set_trailing_metadata(version_metadata())
            return b""

        return grpc.unary_unary_rpc_method_handler(behaviour)


@asynccontextmanager
async def server_of(identity: Identity, folder: Path) -> AsyncIterator[tuple[str, Answers]]:
    """A server with a certificate that requires one of the caller's authority; yield its address and its calls."""
    answers = Answers()
    server = plaintext_server(Role.HOST)
    server.add_generic_rpc_handlers([answers])
    address = bind(server, "127.0.0.1:0", Certificates(write_identity(folder, identity)))
    await server.start()
    try:
        yield address, answers
    finally:
        await server.stop(None)


@dataclass
class Network:
    """The way from the guest to the host, which leads wherever its owner likes."""

    folder: Path
    authority: Authority
    leads_to: str = ""

    def __post_init__(self) -> None:
        self.guest = make_identity(self.authority, GUEST)
        self.host = make_identity(self.authority, HOST, COORDINATOR)
        _, self.become = signed_as_requested(self.authority, "other.example.org")

    def _connect(self) -> socket.socket:
        return connect_to(self.leads_to)()

    @contextmanager
    def proxy(self) -> Iterator[TcpProxy]:
        with TcpProxy(self._connect) as proxy:
            yield proxy

    @asynccontextmanager
    async def peer(self, address: str, *fingerprints: str) -> AsyncIterator[Peer]:
        """The guest's peer at the other end."""
        config = self.config(address, *fingerprints)
        async with open_peers(config, load_certificates(config)) as peers:
            yield peers[Role.HOST]

    def config(self, address: str, *fingerprints: str) -> ProcessConfig:
        return ProcessConfig.model_validate(
            {
                "role": "guest",
                "tls": write_identity(self.folder / "guest", self.guest),
                "listen": "127.0.0.1:0",
                "peers": {
                    "host": {"address": address, "name": HOST, "fingerprint": list(fingerprints)},
                    "coordinator": {"address": address, "name": COORDINATOR},
                },
                "state": self.folder / "state",
                "limits": {"peer_timeout": 1},
            }
        )


@pytest.fixture(params=[root_without_limit, new_authority], ids=["any root", "a root of this project"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Network:
    return Network(tmp_path, request.param())


def fingerprint_of(identity: Identity) -> str:
    return spell(fingerprint(load_pem_x509_certificate(identity.certificate).public_key()))


async def call(peer: Peer, network: Network) -> None:
    limits = network.config("127.0.0.1:1").limits
    await call_peer(peer, Role.GUEST, METHOD, ListJobsRequest(), ListJobsResponse, limits=limits)


def interloper(network: Network, kind: str) -> Identity:
    match kind:
        case "an intermediate that was signed by mistake":
            return issued_below(network.authority, network.become, HOST)
        case "a wildcard":
            return make_identity(network.authority, "*.example.org", "other.example.org")
        case _:
            return make_identity(network.authority, HOST)


KINDS = {
    "an intermediate that was signed by mistake": "no authority in `tls.authorities` has issued|path length constraint",
    "another key for the same name": "which is not one of `peers.host.fingerprint`: compare it",
    "a wildcard": "does not have the expected name",
}


@pytest.mark.parametrize("kind", KINDS)
async def test_an_interloper_receives_what_grpc_alone_would_send(network: Network, tmp_path: Path, kind: str) -> None:
    async with (
        server_of(interloper(network, kind), tmp_path / "interloper") as (address, answers),
        new_channel(address, network.guest, HOST) as channel,
    ):
        await call(Peer(Role.HOST, address, channel), network)
    assert answers.n_calls == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_interloper_receives_nothing(network: Network, tmp_path: Path, kind: str) -> None:
    pinned = [fingerprint_of(network.host)] if kind == "another key for the same name" else []
    async with (
        server_of(interloper(network, kind), tmp_path / "interloper") as (address, answers),
        network.peer(address, *pinned) as peer,
    ):
        with pytest.raises(UntrustedPeerError, match=f"cannot call the host at {address}: .*({KINDS[kind]})"):
            await call(peer, network)
    assert answers.n_calls == 0


async def test_an_interloper_that_takes_over_a_connection_receives_nothing(network: Network, tmp_path: Path) -> None:
    """The certificate is judged once, and each later connection accepts this certificate alone."""
    rogue = issued_below(network.authority, network.become, HOST)
    async with (
        server_of(network.host, tmp_path / "host") as (real, of_host),
        server_of(rogue, tmp_path / "interloper") as (false, of_interloper),
    ):
        network.leads_to = real
        with network.proxy() as proxy:
            async with network.peer(proxy.address) as peer:
                await call(peer, network)
                network.leads_to = false
                proxy.cut_all(Cut.RESET)
                with pytest.raises(PeerError):
                    await call(peer, network)
                # gRPC itself refuses the other certificate, whatever this project's code looks at.
                method: Any = peer.channel.unary_unary(METHOD)
                with pytest.raises(grpc.aio.AioRpcError, match="CERTIFICATE_VERIFY_FAILED"):
                    await method(b"", timeout=5)
                network.leads_to = real
                await call(peer, network)
    assert of_interloper.n_calls == 0
    assert of_host.n_calls == 2


async def test_the_command_line_does_not_talk_to_an_interloper_either(network: Network, tmp_path: Path) -> None:
    rogue = issued_below(network.authority, network.become, COORDINATOR)
    async with (
        server_of(rogue, tmp_path / "interloper") as (address, answers),
        JobClient(network.config(address)) as client,
    ):
        with pytest.raises(UntrustedPeerError, match=f"cannot call the coordinator at {address}: "):
            await client.statuses()
    assert answers.n_calls == 0


async def test_a_peer_may_renew_its_certificate_and_its_key(network: Network, tmp_path: Path) -> None:
    async with server_of(network.host, tmp_path / "host") as (address, answers):
        network.leads_to = address
        with network.proxy() as proxy:
            async with network.peer(proxy.address) as peer, JobClient(network.config(proxy.address)) as client:
                await call(peer, network)
                await client.statuses()
                write_identity(tmp_path / "host", make_identity(network.authority, HOST, COORDINATOR))
                await call(peer, network)  # on the open connection
                assert answers.n_calls == 3
                proxy.cut_all(Cut.CLOSE)
                await call(peer, network)
                await client.statuses()
    assert answers.n_calls == 5


async def test_a_changed_fingerprint_counts_for_the_next_call(network: Network, tmp_path: Path) -> None:
    async with server_of(network.host, tmp_path / "host") as (address, answers), network.peer(address) as peer:
        await call(peer, network)
        peer.configure(network.config(address, "ab" * 32).peers[Role.HOST])
        with pytest.raises(UntrustedPeerError, match="is not one of `peers.host.fingerprint`"):
            await call(peer, network)
        peer.configure(network.config(address, fingerprint_of(network.host)).peers[Role.HOST])
        await call(peer, network)
    assert answers.n_calls == 2


@contextmanager
def fails_to_look(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Iterator[None]:
    """Within the block, an attacker on the network cuts off each connection that examines a certificate."""

    async def cut_off(*given: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(channel_module, "shown_certificate", cut_off)
        yield


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError()], ids=["reset", "dropped"])
async def test_a_removed_fingerprint_does_not_count_if_the_look_fails(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with server_of(network.host, tmp_path / "host") as (address, answers), network.peer(address) as peer:
        await call(peer, network)
        with fails_to_look(monkeypatch, error):
            peer.configure(network.config(address, "ab" * 32).peers[Role.HOST])
            with pytest.raises(PeerError, match="has not answered"):
                await call(peer, network)
        with pytest.raises(UntrustedPeerError, match="is not one of `peers.host.fingerprint`"):
            await call(peer, network)
    assert answers.n_calls == 1


async def test_the_issuer_in_the_own_chain_is_not_trusted_before_the_first_look(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.guest = replace(network.guest, certificate=network.guest.certificate + network.authority.pem)
    async with server_of(network.host, tmp_path / "host") as (address, answers), network.peer(address) as peer:
        with fails_to_look(monkeypatch, ConnectionResetError()), pytest.raises(PeerError):
            await call(peer, network)
    assert answers.n_calls == 0


def replace_authority(network: Network, folder: Path) -> None:
    """Let the guest trust only another authority, which has issued its new certificate."""
    network.guest = make_identity(new_authority(), GUEST)
    write_identity(folder / "guest", network.guest)


async def test_a_removed_authority_does_not_count_if_the_look_fails(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server_of(network.host, tmp_path / "host") as (address, answers), network.peer(address) as peer:
        await call(peer, network)
        with fails_to_look(monkeypatch, ConnectionResetError()):
            replace_authority(network, tmp_path)
            peer.renew()
            with pytest.raises(PeerError):
                await call(peer, network)
    assert answers.n_calls == 1


@pytest.mark.parametrize("removed", ["fingerprint", "authority"])
async def test_what_changes_during_a_look_counts_for_its_result(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    look = pinning.shown_certificate
    changes = 0

    async def change_after(*given: Any) -> Any:
        nonlocal changes
        shown = await look(*given)
        changes += 1
        if changes == 1 and removed == "fingerprint":
            peer.configure(network.config(address, "ab" * 32).peers[Role.HOST])
        elif changes == 1:
            replace_authority(network, tmp_path)
            peer.renew()
        return shown

    monkeypatch.setattr(channel_module, "shown_certificate", change_after)
    async with server_of(network.host, tmp_path / "host") as (address, answers), network.peer(address) as peer:
        with pytest.raises(UntrustedPeerError):
            await call(peer, network)
    assert answers.n_calls == 0


async def test_a_change_of_other_settings_keeps_the_connection(network: Network, tmp_path: Path) -> None:
    async with server_of(network.host, tmp_path / "host") as (address, _), network.peer(address) as peer:
        await call(peer, network)
        before = peer.channel
        peer.configure(network.config(address).peers[Role.HOST])
        assert await peer.connected() is before


async def test_calls_wait_for_one_look_together(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_looks = 0
    look = pinning.shown_certificate

    async def count(*given: Any) -> Any:
        nonlocal n_looks
        n_looks += 1
        await asyncio.sleep(0.05)
        return await look(*given)

    monkeypatch.setattr(channel_module, "shown_certificate", count)
    async with server_of(network.host, tmp_path / "host") as (address, answers), network.peer(address) as peer:
        await asyncio.gather(*(call(peer, network) for _ in range(20)))
    assert (answers.n_calls, n_looks) == (20, 1)


async def test_a_peer_that_starts_late_is_pinned_then(network: Network, tmp_path: Path) -> None:
    """As long as nothing answers there is nothing to judge, and no server but the peer may answer first."""
    async with server_of(network.host, tmp_path / "host") as (address, answers):
        network.leads_to = "127.0.0.1:1"
        with network.proxy() as proxy:
            async with network.peer(proxy.address) as peer:
                calling = asyncio.create_task(call(peer, network))
                await eventually(lambda: peer.retries > 0)
                network.leads_to = address
                await calling
    assert answers.n_calls == 1
